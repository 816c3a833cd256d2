"""Text that a terminal would obey, on its way to one: shown, and never obeyed; rich's own colours stay."""

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

from remote.image.vm_jobs import JobLine
from tasks.cli.sanitize import drawn, plain
from tasks.cli.streams import SanitizedStream
from tasks.cli.terminal import console as console_of_tables
from tasks.clients.build_vm import show_line
from tasks.fleet.live_display import LiveView

TITLE, CLIPBOARD, CLEAR = "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x1b\\", "\x1b[2J\x1b[H"
HOSTILE = f"{TITLE}{CLIPBOARD}{CLEAR}\x9b31m\u202egnp.exe\r"


def stream() -> tuple[SanitizedStream, io.BytesIO]:
    content = io.BytesIO()
    return SanitizedStream(content, encoding="utf-8", errors="backslashreplace", write_through=True), content


@given(st.text(st.characters()))
def test_no_text_at_all_orders_a_terminal_about(text: str) -> None:
    said = plain(text)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in said)
    said.encode()  # no lone surrogate is left
    assert plain(said) == said


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_json_stays_the_same_json(text: str) -> None:
    assert json.loads(plain(json.dumps(text, ensure_ascii=False))) == text


def test_what_people_read_stays_as_it_is() -> None:
    said = "Gerät — 6.38 ✓ 日本語 │─┐ 10 GB\n\tnext"
    assert plain(said) == said


def test_a_line_of_a_job_is_one_line_and_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, content = stream()
    monkeypatch.setattr("sys.stdout", shown)
    show_line(JobLine(text=f"{HOSTILE}\n[ 0.0s] confirmed  all is well", stage="\x1b[8m", elapsed_sec=1.0))
    said = content.getvalue().decode()
    assert said.count("\n") == 1
    assert "\x1b" not in said
    assert "\\x1b]0;owned" in said


@pytest.mark.parametrize("printed", [print, lambda text, file: file.writelines([text, "\n"])])
def test_whatever_is_printed_goes_through_the_same_place(printed: object) -> None:
    shown, content = stream()
    printed(HOSTILE, file=shown)  # type: ignore[operator]
    assert content.getvalue().decode() == f"{plain(HOSTILE)}\n"


def test_rich_keeps_its_colours_and_its_live_table_and_lets_no_order_of_others_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown, content = stream()
    monkeypatch.setattr("sys.stdout", shown)
    console = Console(force_terminal=True, width=200, color_system="truecolor", legacy_windows=False)
    table = Table("name")
    table.add_row(Text(HOSTILE, style="bold red"))
    with Live(table, console=console, auto_refresh=False) as live:
        live.refresh()
    said = content.getvalue().decode()
    assert "\x1b[1;31m" in said
    assert "\x1b[?25l" in said
    assert [order for order in ("\x1b]", "\x07", "\x9b", "\x1b[2J") if order in said] == []
    assert drawn("\x1b[1mx\x1b[0m") == "\x1b[1mx\x1b[0m"


@pytest.mark.parametrize("order", ["\x1b[1A\x1b[2K", "\x1b[8m", "\x1b[?25l", "\r"])
@pytest.mark.parametrize("made", [str, Text])
def test_words_like_richs_own_in_a_cell_are_shown(
    made: Callable[[str], str | Text], order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = made(f"a{order}b")  # before there is a console
    shown, content = stream()
    monkeypatch.setattr("sys.stdout", shown)
    table = Table("name", box=None)
    table.add_row(cell)
    for console in (console_of_tables(), Console(force_terminal=True, width=200, highlight=False)):
        console.print(table)
        console.print(cell)
    said = content.getvalue().decode()
    assert order not in said
    if order != "\r":  # which rich leaves out itself
        assert said.count(f"a{plain(order)}b") == 4


def test_a_table_that_lives_is_drawn_and_not_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Live replaces sys.stdout, and rich then does not find the stream for its own words."""
    shown, content = stream()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with LiveView(run_id=HOSTILE, planned=[], workers=["w"], expected_sec={}, price_usd_per_gpu_hour=None):
        pass
    with Live(console=console_of_tables(), auto_refresh=False) as live:
        live.update(Text("alive", style="bold"), refresh=True)
    said = content.getvalue().decode()
    assert "\x1b[1malive" in said
    assert "u001b[" not in said
    assert [order for order in ("\x1b]", "\x07", "\x9b", "\x1b[2J") if order in said] == []
