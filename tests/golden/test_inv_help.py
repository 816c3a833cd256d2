"""Golden files of `inv --list` and each `--help TASK`. Update them with UPDATE_GOLDEN=1 pytest tests/golden"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import ForkServer
from tests.support.paths import ROOT

GOLDEN = Path(__file__).with_name("inv")
INV = Path(sys.executable).with_name("inv")


def stdout_of(completed: subprocess.CompletedProcess[str]) -> str:
    # Without a terminal, Invoke always formats for 80 columns.
    assert (completed.returncode, completed.stderr) == (0, "")
    return completed.stdout


@pytest.fixture(scope="module")
def inv(inv_server: ForkServer) -> Callable[..., str]:
    return cache(lambda *argv: stdout_of(inv_server.inv(*argv, cwd=ROOT, env=os.environ, timeout_sec=60)))


def all_tasks(collection: dict[str, Any], prefix: str = "") -> Iterator[str]:
    yield from (prefix + task["name"] for task in collection["tasks"])
    for group in collection["collections"]:
        yield from all_tasks(group, f"{prefix}{group['name']}.")


LIST = subprocess.run((str(INV), "--list", "--list-format=json"), cwd=ROOT, capture_output=True, text=True, check=False)
TASKS = sorted(all_tasks(json.loads(stdout_of(LIST))))
HELP = {"list": ("--list",), **{name: ("--help", name) for name in TASKS}}


@pytest.mark.parametrize("name", HELP)
def test_help_matches_its_golden_file(name: str, inv: Callable[..., str]) -> None:
    golden = GOLDEN / f"{name}.txt"
    help_text = inv(*HELP[name])
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(help_text, encoding="utf-8")
    assert golden.is_file(), "a new task: UPDATE_GOLDEN=1 pytest tests/golden, and read what it wrote"
    assert help_text == golden.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_task() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(HELP)


def test_the_list_has_one_line_for_each_task(inv: Callable[..., str]) -> None:
    lines = [line for line in inv("--list").splitlines()[1:] if line.strip()]
    assert len(lines) == len(TASKS)
    assert all(re.fullmatch(r"  [\w.-]+ {2,}[A-Z].*\.", line) for line in lines), lines


@pytest.mark.parametrize("name", TASKS)
def test_every_flag_of_a_task_is_documented(name: str, inv: Callable[..., str]) -> None:
    docstring, _, options = inv("--help", name).partition("\nOptions:\n")
    assert "Docstring:\n  none" not in docstring
    flags = [line for line in options.splitlines() if re.match(r"  -", line)]
    # One line each: the flag, at least three spaces, and a first word of what it is for.
    assert [flag for flag in flags if not re.match(r"  -\S.*?   +\S", flag)] == []
