"""Terminal output: consoles, tables, yes/no questions."""

import os
import sys
from collections.abc import Collection
from pathlib import Path
from shutil import get_terminal_size
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

from reports.formatting import escape_text
from tasks.cli.streams import glue_commands, wrap
from tasks.settings.sources import display_path


def console(*, soft_wrap: bool = True) -> Console:
    """Return a console on standard output, the only kind that tasks may draw on.

    Without a terminal and COLUMNS its lines are 200 wide, so that no name is cut. With `soft_wrap`, lines of text are
    not wrapped, except on a terminal: between words, and with commands in backticks kept whole.
    """
    # Pass the stream: Live replaces sys.stdout by one behind which rich's own sequences would be escaped.
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if has_width else 200
    make = _TerminalConsole if sys.stdout.isatty() else Console
    return make(file=sys.stdout, soft_wrap=soft_wrap, markup=False, highlight=False, width=width)


class _TerminalConsole(Console):
    """Console on a terminal, whose lines never end inside a word or a command."""

    def print(self, *objects: Any, **options: Any) -> None:
        texts = [
            Text(each) if isinstance(each, str) else each.copy() if isinstance(each, Text) else each for each in objects
        ]
        for text in texts:
            if isinstance(text, Text):
                text.plain = glue_commands(text.plain)  # as long as before, so that its styles stay
        super().print(*texts, **(options | {"soft_wrap": False}))


def print_path(path: Path) -> None:
    """Print a file's path on a line that is not wrapped; on a terminal of this machine as a link to the file."""
    shown, out = display_path(path), console()
    # A terminal at the other end of SSH would look for the file on its own machine.
    takes_links = out.is_terminal and os.environ.get("TERM") != "linux" and "SSH_CONNECTION" not in os.environ
    if not takes_links:
        print(shown)
        return
    link = Text(shown, style=Style(link=path.absolute().as_uri()))
    out.print(link, no_wrap=True, overflow="ignore", crop=False)


_MIN_FOLDED_CHARS = 10  # a name that is folded into shorter lines is unreadable


class FoldingTable(Table):
    """Table that prints each row as a block of whole cells if the terminal is too narrow for its columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gap = 2 if self.box else self.padding[1] + self.padding[3]
        if sum(_min_width(column) + gap for column in self.columns) - gap <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        headers = [" ".join(str(column.header).split()) for column in self.columns]
        for name, *cells in zip(*(map(str, column.cells) for column in self.columns), strict=True):
            yield Text(name, style="bold")
            pairs = zip(headers[1:], cells, strict=True)
            labelled_cells = (f"{header} {cell}" for header, cell in pairs if cell not in ("", "-"))
            yield Padding(Text(" ".join("; ".join(labelled_cells).split())), (0, 0, 0, 2))


def _min_width(column: Column) -> int:
    """Return the width below which a column is unreadable."""
    cells = "\n".join(map(str, (column.header, *column.cells)))
    if column.no_wrap:
        return max(map(cell_len, cells.splitlines()))
    return min(_MIN_FOLDED_CHARS, max(map(cell_len, cells.split()), default=0))


def plain_table(*headers: str) -> Table:
    """Return an empty table without lines. Its columns fold on a narrow terminal: nothing is cut."""
    table = FoldingTable(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def ruled_table(*headers: str, right: Collection[str] = ()) -> Table:
    """Return an empty table with a line under its headers. Its columns fold; those in `right` are right-aligned."""
    table = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold", justify="right" if header in right else "left")
    return table


def confirm(question: str) -> bool:
    """Ask a yes/no question on the terminal. Returns False without a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return read_line(f"{question} [y/N] ").lower() in ("y", "yes")
    except EOFError:
        return False


def read_line(prompt: str) -> str:
    """Return the line typed after the prompt, which is wrapped between words. Raises EOFError at the input's end."""
    *lines, last = wrap(escape_text(prompt), get_terminal_size().columns).split("\n")
    print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    return input(f"{last.rstrip()} ").strip()
