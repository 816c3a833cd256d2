"""Layout of a figure: its sheet, its header, and panels placed in inches.

Every figure is drawn on a wide sheet (files, desktop) and on a narrow one (the page on a phone), where its panels are
stacked instead of shrunk. Sizes are fixed beforehand, so matplotlib need not compute a layout: that took half of a
report's drawing time.

A chart gathers a little plain data from a run, if any; the data can draw and describe itself. So tests can check a
figure's numbers without drawing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.figure import Figure

from reports.document import Picture
from reports.figures.drawing import style
from reports.figures.drawing.style import (
    FACT_SIZE,
    MUTED,
    NAME_SIZE,
    OTHER_TONE,
    TITLE_SIZE,
    WARNING,
    shorten_text,
    text_width_in,
    wrap_text,
)
from reports.read.loaded_run import Run
from reports.read.reference_results import PublishedResults
from reports.summary.summary import Summary


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One row's value, drawn as a bar or a dot in the panel's unit, with its text; `value` is None if unknown.

    `published` are published values of the same quantity, drawn as hollow diamonds; `text` contains them too.
    `limit` is a limit of this row, drawn as a vertical line; `points` are single values behind the one shown.
    """

    value: float | None
    text: str
    low: float | None = None
    high: float | None = None
    tone: str = OTHER_TONE
    is_hollow: bool = False
    published: tuple[float, ...] = ()
    limit: float | None = None
    points: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity over the figure's rows. `kind` is "bars", "dots" or "points"; dots may be `log`arithmic.

    `reference` is a dashed vertical line through all rows (no change, a capacity), which the title explains. `limits`
    are the limits of an axis that several panels share. `band` is a range behind the marks.
    """

    title: str
    marks: tuple[Mark, ...]
    kind: str = "bars"
    log: bool = False
    reference: float | None = None
    limits: tuple[float, float] | None = None
    band: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class MarkGroup:
    """Panels over the same named rows."""

    names: tuple[str, ...]
    panels: tuple[Panel, ...]


MARGIN_IN = 0.14
RIGHT_IN = 0.26  # room right of panels for half of a wide tick label
TITLE_IN = 0.36  # height of a panel's title
AXIS_IN = 0.34  # height of its tick labels
MAX_NAME_IN = 1.75  # maximum width of the rows' names
_SEPARATOR = "  \N{MIDDLE DOT}  "


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A sheet to draw a figure on; width in inches."""

    is_narrow: bool
    width_in: float

    @property
    def text_width_in(self) -> float:
        """Width between the margins."""
        return self.width_in - 2 * MARGIN_IN


WIDE = Sheet(is_narrow=False, width_in=11.0)
NARROW = Sheet(is_narrow=True, width_in=3.8)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The text above a figure (title, facts) and, if the profile needs one, a note below it."""

    title: str
    facts: tuple[str, ...]
    note: str | None


@dataclass(frozen=True, kw_only=True)
class FigureLayout:
    """A figure whose panels are placed in inches from the body's top left corner."""

    figure: Figure
    sheet: Sheet
    height_in: float
    body_top_in: float

    def panel(self, left_in: float, top_in: float, width_in: float, height_in: float) -> Any:
        """Add axes of this outer size, which includes the title above and the tick labels below."""
        width, height = self.sheet.width_in, self.height_in
        bottom_in = height - self.body_top_in - top_in - height_in + AXIS_IN
        return self.figure.add_axes(
            (left_in / width, bottom_in / height, width_in / width, (height_in - TITLE_IN - AXIS_IN) / height)
        )

    def columns(self, count: int, *, left_in: float, gap_in: float) -> list[tuple[float, float]]:
        """Return left edge and width, in inches, of `count` equal columns between `left_in` and the right margin."""
        width = (self.sheet.width_in - RIGHT_IN - left_in - gap_in * (count - 1)) / count
        return [(left_in + number * (width + gap_in), width) for number in range(count)]


def create_layout(header: Header, sheet: Sheet, body_in: float) -> FigureLayout:
    """Create a figure with its header and a body of height `body_in`."""
    title_lines = wrap_text(header.title, sheet.text_width_in, TITLE_SIZE, bold=True)
    facts = _wrap_facts(header.facts, sheet.text_width_in)
    note = wrap_text(header.note or "", sheet.text_width_in, FACT_SIZE, bold=True)
    facts_in = 0.14 + 0.235 * len(title_lines) + 0.03
    body_top_in = facts_in + 0.175 * len(facts) + 0.12
    height_in = body_top_in + body_in + 0.08 + (0.19 * len(note) + 0.06 if note else 0.0)
    figure = Figure(figsize=(sheet.width_in, height_in))
    left = MARGIN_IN / sheet.width_in

    def write(lines: list[str], from_top_in: float, **options: Any) -> None:
        figure.text(left, 1.0 - from_top_in / height_in, "\n".join(lines), va="top", **options)

    write(title_lines, 0.14, fontsize=TITLE_SIZE, fontweight="bold", linespacing=1.3)
    write(facts, facts_in, fontsize=FACT_SIZE, color=MUTED, linespacing=1.35)
    write(note, body_top_in + body_in + 0.06, fontsize=FACT_SIZE, fontweight="bold", color=WARNING, linespacing=1.35)
    return FigureLayout(figure=figure, sheet=sheet, height_in=height_in, body_top_in=body_top_in)


def rows_height_in(count: int, row_height_in: float, sheet: Sheet) -> float:
    """Return the outer height of a panel of `count` rows; on a narrow sheet a row's name has its own line."""
    return TITLE_IN + AXIS_IN + count * (row_height_in + (0.24 if sheet.is_narrow else 0.0))


def names_width_in(names: Sequence[str], sheet: Sheet) -> float:
    """Return the width of the column of names, from the sheet's edge; only the margin if names are above the rows."""
    if sheet.is_narrow:
        return MARGIN_IN
    longest = max(text_width_in(line, NAME_SIZE) for name in names for line in name_lines(name))
    return MARGIN_IN + 0.12 + longest


def name_lines(label: str) -> list[str]:
    """Wrap a name to at most two lines; a longer one is cut and marked with an ellipsis."""
    lines = wrap_text(label, MAX_NAME_IN, NAME_SIZE)
    return lines if len(lines) <= 2 else [lines[0], shorten_text(f"{lines[1]} {lines[2]}", MAX_NAME_IN, NAME_SIZE)]


def _wrap_facts(facts: Sequence[str], limit_in: float) -> list[str]:
    """Wrap facts to lines, broken between facts if possible, so that names stay whole."""
    lines: list[str] = []
    for fact in facts:
        longer = f"{lines[-1]}{_SEPARATOR}{fact}" if lines else fact
        if lines and text_width_in(longer, FACT_SIZE) <= limit_in:
            lines[-1] = longer
        else:
            lines += wrap_text(fact, limit_in, FACT_SIZE)
    return lines


class Drawing(Protocol):
    """A figure's data, which can draw and describe itself. `caption` explains how to read it; `alt` is its text
    alternative."""

    @property
    def header(self) -> Header: ...
    @property
    def caption(self) -> str: ...
    @property
    def alt(self) -> str: ...
    def draw(self, sheet: Sheet) -> Figure: ...


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure. `gather` returns its drawing, or None if the run has no data for it.

    `needs` then names the missing data, and `command` the command that measures it, if a single one does. A figure
    with `is_folded` supports a decision rather than leading to it: the page shows its title, and a click opens it.
    """

    name: str
    title: str
    needs: str
    gather: Callable[[Summary, Run], Drawing | None]
    command: str = ""
    is_folded: bool = False


def draw_picture(name: str, title: str, drawing: Drawing, *, is_folded: bool = False) -> Picture:
    """Draw a figure on both sheets."""
    with style.figure_style():
        figure = drawing.draw(WIDE)
        png, wide_svg = style.to_png(figure), style.to_svg(figure, f"w{name}")
        narrow_svg = style.to_svg(drawing.draw(NARROW), f"n{name}")
    return Picture(
        name=name,
        title=title,
        finding=drawing.header.title,
        png=png,
        svg=wide_svg,
        wide_svg=style.inline_svg(wide_svg),
        narrow_svg=style.inline_svg(narrow_svg),
        caption=drawing.caption,
        alt=drawing.alt,
        is_folded=is_folded,
    )


def make_header(
    summary: Summary, title: str, *facts: str, published: PublishedResults | None = None, remark: str = ""
) -> Header:
    """Make a header with device, profile and run, then `facts` (n, intervals, prices), and the published source."""
    common = (summary.hosts.device, f"profile {summary.record.profile}", f"run {summary.record.run_id}")
    source = [] if published is None else [f"{style.PUBLISHED} {published.source}{remark}"]
    return Header(title=title, facts=(*common, *filter(None, facts), *source), note=summary.profile_note)
