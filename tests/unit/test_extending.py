"""docs/extending.md lists what the dummies of the other tests needed.

Workloads, providers, formats and connectors: next to their dummies, in tests/integration/bench/workloads,
tests/integration/tasks/cluster, tests/unit/bench/data and tests/integration/tasks/clients.
"""

import re
from collections.abc import Callable
from functools import partial
from types import ModuleType

from bench.architectures import families
from bench.records import status, training
from bench.records.trial import RECIPES
from reports.figures import CHARTS
from tasks.doctor.doctor import all_checks
from tests.support.extending import listed_files
from tests.support.paths import ROOT


def path_of(item: ModuleType | Callable[..., object]) -> str:
    item = item.func if isinstance(item, partial) else item
    name = item.__name__ if isinstance(item, ModuleType) else item.__module__
    return f"{name.replace('.', '/')}.py"


def test_an_architecture_needs_its_declaration_alone() -> None:
    assert listed_files("A model architecture") == ([path_of(families)], [])


def test_a_status_or_cause_needs_a_row_and_its_detection() -> None:
    assert listed_files("A status or its cause") == ([path_of(status)], [])


def test_a_training_setting_needs_its_declaration_and_its_line() -> None:
    assert listed_files("A training setting") == ([path_of(training), "invoke.yaml"], [])


def test_every_recipe_figure_and_check_is_in_a_module_of_the_listed_folder() -> None:
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (recipe|figure|check) \| `([^`]+)<", page, re.MULTILINE))
    modules = {
        "recipe": {f"bench/qlora/recipes/{name}.py" for name in RECIPES},
        "figure": {path_of(chart.gather) for chart in CHARTS},
        "check": {path_of(check.run) for check in all_checks()},
    }
    for kind, paths in modules.items():
        assert {f"{path.rpartition('/')[0]}/" for path in paths} == {rows[kind]}
        assert all((ROOT / path).is_file() for path in paths)
