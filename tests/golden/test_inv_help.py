"""Golden files of `inv --list` and each `--help TASK`. Update them with UPDATE_GOLDEN=1 pytest tests/golden"""

import os
import sys
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from tasks import ns
from tasks.cli.flags import Section
from tasks.cli.parser import patch_parser
from tasks.cli.program import _InvProgram
from tests.support.paths import ROOT

GOLDEN = Path(__file__).with_name("inv")
LISTS = {"bare": (), "list": ("--list",), "list_all": ("--list", "--all")}
HELP = LISTS | {context.name: ("--help", context.name) for context in ns.to_contexts()}


@pytest.mark.parametrize("name", HELP)
def test_help_matches_its_golden_file(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setitem(sys.modules, "tasks", sys.modules["tasks"])  # restored afterwards: tasks.py loads it again
    patch_parser()
    with pytest.raises(Exit):  # without a terminal, Invoke always formats for 80 columns
        _InvProgram().run_argv(["inv", *HELP[name]])
    golden, help_text = GOLDEN / f"{name}.txt", capsys.readouterr().out
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(help_text, encoding="utf-8")
    assert golden.is_file(), "a new task: UPDATE_GOLDEN=1 pytest tests/golden, and read what it wrote"
    assert help_text == golden.read_text(encoding="utf-8")


def test_every_golden_file_belongs_to_a_task() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(HELP)


TABLE_BEGIN, TABLE_END = "<!-- begin: what each task does -->\n", "<!-- end: what each task does -->\n"


def test_the_reference_has_what_each_task_does() -> None:
    commands = [task for collection in (ns, *ns.collections.values()) for task in collection.tasks.values()]
    rows = ["| task | | `--json` | `--dry-run` |", "|---|---|---|---|"]
    for command in sorted(commands, key=lambda command: (list(Section).index(command.section), command.order)):
        effect = command.effect
        json_cell = "yes" if effect.shows else "with `--dry-run`" if effect.changes else ""
        rows.append(f"| `{command.shown_name}` | {effect.value} | {json_cell} | {'yes' if effect.changes else ''} |")
    path = ROOT / "docs" / "reference.md"
    before, rest = path.read_text(encoding="utf-8").split(TABLE_BEGIN)
    table, after = rest.split(TABLE_END)
    expected = "\n".join(rows) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(TABLE_BEGIN.join((before, TABLE_END.join((expected, after)))), encoding="utf-8")
        table = expected
    assert table == expected
