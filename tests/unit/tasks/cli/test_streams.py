"""Tests of the escapes of terminal controls in printed text; rich's own colours stay."""

import io
import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reports.formatting import escape_text
from tasks.cli.streams import SanitizedStream
from tasks.cli.terminal import console as console_of_tables
from tasks.clients.build_vm import print_job_line
from tasks.fleet.live_display import FleetView

TITLE, CLIPBOARD, CLEAR = "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1b[2J\x1b[H"
HOSTILE = f"{TITLE}{CLIPBOARD}{CLEAR}\x9b31m\u202egnp.exe\r"


def stream() -> tuple[SanitizedStream, io.BytesIO]:
    content = io.BytesIO()
    return SanitizedStream(content, encoding="utf-8", errors="backslashreplace", write_through=True), content


@given(st.text(st.characters()))
def test_no_text_controls_a_terminal(text: str) -> None:
    escaped = escape_text(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in escaped)
    escaped.encode()  # no lone surrogate is left
    assert escape_text(escaped) == escaped


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_stays_the_same_json(text: str) -> None:
    assert json.loads(escape_text(json.dumps(text, ensure_ascii=False))) == text


def test_printable_text_is_unchanged() -> None:
    text = "Gerät — 6.38 ✓ 日本語 │─┐ 10 GB\n\tnext"
    assert escape_text(text) == text


def test_a_line_of_a_job_is_one_line_without_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout, content = stream()
    monkeypatch.setattr("sys.stdout", stdout)
    print_job_line(1.0, "\x1b[8m", f"{HOSTILE}\n[ 0.0s] confirmed  all is well")
    output = content.getvalue().decode()
    assert output.count("\n") == 1
    assert "\x1b" not in output
    assert "\\x1b]0;owned" in output


@pytest.mark.parametrize("write", [print, lambda text, file: file.writelines([text, "\n"])])
def test_all_written_text_is_escaped(write: object) -> None:
    stdout, content = stream()
    write(HOSTILE, file=stdout)  # type: ignore[operator]
    assert content.getvalue().decode() == f"{escape_text(HOSTILE)}\n"


@pytest.mark.parametrize("control", ["\x1b[1A\x1b[2K", "\x1b[8m", "\r"])
@pytest.mark.parametrize("make_cell", [str, Text])
def test_sequences_like_richs_own_in_a_cell_are_escaped(
    make_cell: Callable[[str], str | Text], control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = make_cell(f"a{control}b")  # before a console exists
    stdout, content = stream()
    monkeypatch.setattr("sys.stdout", stdout)
    table = Table("name", box=None)
    table.add_row(cell)
    for console in (console_of_tables(), Console(force_terminal=True, width=200, highlight=False)):
        console.print(table)
        console.print(cell)
    output = content.getvalue().decode()
    assert control not in output
    if control != "\r":  # rich itself removes it
        assert output.count(f"a{escape_text(control)}b") == 4


def test_the_sequences_of_a_live_table_are_not_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that rich writes its sequences unescaped although Live replaces sys.stdout."""
    stdout, content = stream()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", stdout)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with FleetView(run_id=HOSTILE, planned=[], workers=["w"]):
        pass
    table = Table("name", box=None)
    table.add_row(Text(f"alive{HOSTILE}", style="bold"))
    with Live(table, console=console_of_tables(), auto_refresh=False) as live:
        live.refresh()
    output = content.getvalue().decode()
    assert "\x1b[1malive" in output
    assert "\x1b[?25l" in output
    assert [control for control in ("\x1b]", "\x07", "\x9b", "\x1b[2J") if control in output] == []
