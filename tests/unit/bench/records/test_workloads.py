"""Registration of workloads: what it refuses, and that no code decides by a workload's name."""

import ast
from functools import partial
from typing import Any

import pytest

from bench import workloads
from bench.records.workloads import WORKLOADS, Suite, Workload, WorkloadError, register
from tests.support.paths import ROOT


def make(**changes: Any) -> Workload:
    fields = {"name": "dummy", "title": "Dummy", "size": "-"} | changes
    return Workload(**{name: value for name, value in fields.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a-b"}, "workload 'a-b': name: "),
        ({"title": None}, "workload 'dummy': title: missing"),
        ({"size": None}, "workload 'dummy': size: missing"),
        ({"needs": ("model", "gpu")}, "workload 'dummy': needs: .* found 'gpu'"),
        ({"memory_fields": ("seed",)}, "workload 'dummy': memory_fields: .* found 'seed'"),
    ],
)
def test_a_registration_without_a_field_is_refused_by_its_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        make(**changes)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ([make()], "workload 'dummy': registered twice"),
        ([make(name="other", suites=(Suite(name="s", trials=()),))], "workload 'other': suite 's': registered twice"),
        ([make(name="other", suites=(Suite(name="all", trials=()),))], "'other': suite 'all': registered twice"),
    ],
)
def test_a_name_is_registered_once(others: list[Workload], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        register(make(suites=(Suite(name="s", trials=()),)), *others)


@pytest.mark.parametrize(("name", "lacking"), [("dummy", "no such module"), ("ranks", "measure: missing")])
def test_a_workload_without_its_function_is_refused_by_its_name(
    name: str, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workloads, "WORKLOADS", {name: make(name=name)})
    check = workloads.check_modules if lacking == "no such module" else partial(workloads.load, make(name=name))
    with pytest.raises(WorkloadError, match=f"workload '{name}': bench.workloads.{name}.*{lacking}"):
        check()


def test_no_code_compares_a_kind_with_the_name_of_a_workload() -> None:
    comparisons = []
    for path in (path for top in ("bench", "remote", "reports", "tasks") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                names = {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
                names |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                values = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
                if "kind" in names and values & WORKLOADS.keys():
                    comparisons.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert comparisons == []
