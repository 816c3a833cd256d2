"""The content of a report without its form: what the page, Markdown and the terminal show.

A benchmark, a training and a check of data differ in their sections only. Texts may come from a run and are untrusted:
the writers escape them. In a text, a command stands between backquotes.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from reports import formatting
from reports.formatting import HasInterval

MAX_ROWS = 400  # rows of a table that the page and report.md show


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as text, and details in small print: interval, share of the chip's peak, note.

    `log` has lines that the page folds.
    """

    value: str
    details: tuple[str, ...] = ()
    log: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Value and details on one line."""
        return "; ".join((self.value, *self.details))


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column's title and unit; one that `is_wide_only` is left out on a phone."""

    title: str
    unit: str = ""
    is_number: bool = True
    is_wide_only: bool = False

    @property
    def label(self) -> str:
        return ", ".join(filter(None, (self.title, self.unit)))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: one cell per column, None if unknown. The first cell is its heading, which `tag` follows."""

    cells: tuple[Cell | None, ...]
    is_marked: bool = False
    tag: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table. The page and report.md show its first MAX_ROWS rows; `file` has all."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    file: str = "summary.json"

    @property
    def shown(self) -> tuple[Row, ...]:
        return self.rows[:MAX_ROWS]

    @property
    def n_omitted(self) -> int:
        return len(self.rows) - len(self.shown)


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph, or the items of a list."""

    items: tuple[str, ...]
    is_list: bool = False
    is_quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A prompt and its answers side by side, each with its heading."""

    prompt: str
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn figure: its files' bytes, its SVG for the page, its caption and its alt text.

    `finding` is the figure's result in a sentence.
    """

    name: str
    title: str
    finding: str
    png: bytes
    svg: bytes
    inline_svg: str
    caption: str
    alt: str
    is_folded: bool = False


Part = Table | Text | Answers | Picture


@dataclass(frozen=True, kw_only=True)
class Section:
    """Parts under a title. A section that `is_folded` supports a decision and leads to none: a click opens it.

    The terminal shows the tables of those that are `is_brief`.
    """

    title: str
    parts: tuple[Part, ...]
    is_folded: bool = False
    is_brief: bool = False

    @property
    def anchor(self) -> str:
        return "-".join("".join(c if c.isalnum() else " " for c in self.title.lower()).split())


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A number with its name, and a detail in small print: interval or source."""

    name: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A report. On the first screen: headline, notes, command, tiles, and the first of the `doubts`; others are folded.

    `commands` are to be typed, each after its purpose. `results` are remarks that are no doubts; `facts` identify the
    run.
    """

    kicker: str
    headline: str
    run_id: str = ""
    notes: tuple[str, ...] = ()
    commands: tuple[tuple[str, str], ...] = ()
    tiles: tuple[Tile, ...] = ()
    doubts: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def brief_tables(self) -> tuple[tuple[str, Table], ...]:
        """The tables that the terminal shows, with the titles of their sections."""
        return tuple(
            (section.title, part)
            for section in self.sections
            if section.is_brief
            for part in section.parts
            if isinstance(part, Table)
        )

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(part for section in self.sections for part in section.parts if isinstance(part, Picture))


def paragraph(text: str, *, is_quiet: bool = False) -> Text:
    return Text(items=(text,), is_quiet=is_quiet)


def text_table(heads: Iterable[str], rows: Iterable[Iterable[str]], numbers: Iterable[str] = ()) -> Table:
    """Make a table of texts; the columns called `numbers` are aligned right."""
    right = set(numbers)
    return Table(
        columns=tuple(Column(title=head, is_number=head in right) for head in heads),
        rows=tuple(Row(cells=tuple(Cell(value=value) for value in row)) for row in rows),
    )


def estimate_cell(interval: HasInterval, detail: str = "", *, prefix: str = "") -> Cell:
    """Return a cell with a value, its interval and another detail."""
    return _cell(*formatting.estimate_parts(interval, prefix=prefix), detail)


def ratio_cell(interval: HasInterval, word: str) -> Cell:
    """Return a cell with a ratio, its interval and its verdict."""
    return _cell(*formatting.ratio_parts(interval), word)


def _cell(value: str, *details: str) -> Cell:
    return Cell(value=value, details=tuple(filter(None, details)))
