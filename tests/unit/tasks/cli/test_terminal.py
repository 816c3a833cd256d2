"""Tests of tables on a narrow terminal: every column is there, every cell complete."""

import io
import re

import pytest
from rich.console import Console

from tasks.cli.terminal import ruled_table
from tests.support.paths import ROOT


@pytest.mark.parametrize("width", [40, 120])
def test_where_columns_have_no_room_each_row_is_a_block_with_every_cell_whole(width: int) -> None:
    cells = {"configuration": "no-checkpointing", "kind": "distributed", "step s": "12.5", "useful tok/s": "1,234"}
    rows = ruled_table(*cells, "x baseline", right=("step s",))
    for column in rows.columns[1:]:
        column.no_wrap = True
    rows.add_row(*cells.values(), "11.50 (11.43-11.57)")
    rows.add_row("packed", "training", "-", "", "1")
    narrow = Console(file=io.StringIO(), width=width)
    narrow.print(rows)
    output = narrow.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, output.splitlines())) <= width
    text = " ".join(output.split())
    assert all(cell in text for cell in (*list(cells)[1:], *cells.values(), "11.50 (11.43-11.57)"))
    if width < 80:
        assert "\nno-checkpointing\n  kind distributed; step s 12.5;" in f"\n{output}"
        assert text.endswith("packed kind training; x baseline 1")


def test_only_the_module_terminal_makes_a_console_and_only_waiting_draws() -> None:
    """A Live with a console of its own prints rich's sequences as text (tasks.cli.streams)."""
    calls = re.compile(r"\b(Console\((?!.*record=)|Live\(|Progress\(|Status\(|track\()")
    files = {path.name: calls.findall(path.read_text()) for path in (ROOT / "tasks").rglob("*.py")}
    assert {name: made for name, made in files.items() if made} == {
        "terminal.py": ["Console("],
        "waiting.py": ["Live("],
    }
