"""`inv --list` and each `--help TASK`, word for word. After a deliberate change: UPDATE_GOLDEN=1 pytest tests/golden"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

GOLDEN = Path(__file__).with_name("inv")
INV = Path(sys.executable).with_name("inv")


def inv(*arguments: str) -> str:
    # Without a terminal Invoke lays its columns out for 80 characters, whoever runs this.
    ended = subprocess.run(
        (str(INV), *arguments),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


def all_tasks(collection: dict[str, Any], above: str = "") -> Iterator[str]:
    yield from (above + task["name"] for task in collection["tasks"])
    for below in collection["collections"]:
        yield from all_tasks(below, f"{above}{below['name']}.")


TASKS = sorted(all_tasks(json.loads(inv("--list", "--list-format=json"))))
HELP = {"list": ("--list",), **{name: ("--help", name) for name in TASKS}}


@pytest.mark.parametrize("name", HELP)
def test_what_inv_says_is_what_was_agreed(name: str) -> None:
    golden = GOLDEN / f"{name}.txt"
    said = inv(*HELP[name])
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(said, encoding="utf-8")
    assert golden.is_file(), "a new task: UPDATE_GOLDEN=1 pytest tests/golden, and read what it wrote"
    assert said == golden.read_text(encoding="utf-8")


def test_no_agreed_help_is_left_of_a_task_that_is_gone() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(HELP)


def test_the_list_has_one_line_for_each_task() -> None:
    lines = [line for line in inv("--list").splitlines()[1:] if line.strip()]
    assert len(lines) == len(TASKS)
    assert all(re.fullmatch(r"  [\w.-]+ {2,}[A-Z].*\.", line) for line in lines), lines


@pytest.mark.parametrize("name", TASKS)
def test_every_flag_of_a_task_is_documented(name: str) -> None:
    docstring, _, options = inv("--help", name).partition("\nOptions:\n")
    assert "Docstring:\n  none" not in docstring
    flags = [line for line in options.splitlines() if re.match(r"  -", line)]
    # One line each: the flag, at least three spaces, and a first word of what it is for.
    assert [flag for flag in flags if not re.match(r"  -\S.*?   +\S", flag)] == []
