"""The operator's terminal: a console, a table, a question; and one JSON object for programs instead."""

import contextlib
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from tasks.cli.sanitize import plain


def console() -> Console:
    """A console for tables of names, which are not cut where the output is no terminal."""
    # The stream is named: Live puts another in the place of sys.stdout, behind which rich's own words are escaped.
    width = None if sys.stdout.isatty() else 200
    return Console(file=sys.stdout, soft_wrap=True, markup=False, highlight=False, width=width)


_FOLDED = 10  # characters in a line of a name that is folded: fewer are no name any more


class FoldingTable(Table):
    """A table that becomes a block for each row, its cells whole, where the terminal is too narrow for its columns."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        gap = 2 if self.box else self.padding[1] + self.padding[3]
        if sum(_least(column) + gap for column in self.columns) - gap <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        heads = [" ".join(str(column.header).split()) for column in self.columns]
        for name, *cells in zip(*(map(str, column.cells) for column in self.columns), strict=True):
            yield Text(name, style="bold")
            said = (f"{head} {cell}" for head, cell in zip(heads[1:], cells, strict=True) if cell not in ("", "-"))
            yield Padding(Text(" ".join("; ".join(said).split())), (0, 0, 0, 2))


def _least(column: Column) -> int:
    """The characters without which a column cannot be read."""
    cells = "\n".join(map(str, (column.header, *column.cells)))
    if column.no_wrap:
        return max(map(cell_len, cells.splitlines()))
    return min(_FOLDED, max(map(cell_len, cells.split()), default=0))


def table(*heads: str) -> Table:
    """An empty table without lines, whose columns fold where the terminal is too narrow: nothing is cut."""
    made = FoldingTable(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        made.add_column(head, overflow="fold")
    return made


def ruled(*heads: str, right: Collection[str] = ()) -> Table:
    """An empty table with a line under its heads, whose columns fold; those of `right` hold numbers."""
    made = FoldingTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        made.add_column(head, overflow="fold", justify="right" if head in right else "left")
    return made


@contextlib.contextmanager
def for_programs(wanted: bool) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """While `wanted`, standard output is kept for one JSON object: what is called prints it, and every other line goes
    to standard error. Otherwise what is called prints nothing."""
    out = sys.stdout

    def say(document: Mapping[str, Any]) -> None:
        if wanted:
            print(json.dumps(document, indent=1, ensure_ascii=False), file=out, flush=True)

    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield say


def asks(question: str) -> bool:
    """Ask on the terminal; False where nobody can answer."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    try:
        return input(f"{plain(question)} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
