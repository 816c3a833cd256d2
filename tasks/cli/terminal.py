"""Terminal output: consoles, tables, yes/no questions."""

import os
import sys
from collections.abc import Collection

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from reports.formatting import escape_text


def console(*, soft_wrap: bool = True) -> Console:
    """Return a console on standard output, the only kind that tasks may draw on.

    Without a terminal and COLUMNS its lines are 200 wide, so that no name is cut. With `soft_wrap`, lines of text are
    not wrapped; a terminal does.
    """
    # Pass the stream: Live replaces sys.stdout by one behind which rich's own sequences would be escaped.
    has_width = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if has_width else 200
    return Console(file=sys.stdout, soft_wrap=soft_wrap, markup=False, highlight=False, width=width)


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
        return input(f"{escape_text(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
