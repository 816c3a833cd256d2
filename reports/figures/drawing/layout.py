"""Layout of a figure: its header, and panels placed in inches.

Sizes are fixed beforehand, so matplotlib need not compute a layout: that took half of a report's drawing time.

A chart gathers a little plain data from a run, if any; the data can draw and describe itself. So tests can check a
figure's numbers without drawing.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from matplotlib.figure import Figure

from reports.document import Picture
from reports.figures.drawing import style
from reports.figures.drawing.style import (
    FACT_SIZE,
    MUTED,
    OTHER_TONE,
    TITLE_SIZE,
    WARNING,
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

    `reference` is a dashed vertical line through all rows (no change, a capacity), which the title explains. `band`
    is a range behind the marks.
    """

    title: str
    marks: tuple[Mark, ...]
    kind: str = "bars"
    log: bool = False
    reference: float | None = None
    band: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class MarkGroup:
    """Panels over the same named rows. With `has_one_axis` their values can be compared by eye."""

    names: tuple[str, ...]
    panels: tuple[Panel, ...]
    has_one_axis: bool = False


def one_panel(title: str, rows: Iterable[tuple[str, Mark]], **fields: Any) -> MarkGroup:
    """Return a group of one panel from the rows' names and marks; `fields` are further fields of Panel."""
    rows = tuple(rows)
    panel = Panel(title=title, marks=tuple(mark for _, mark in rows), **fields)
    return MarkGroup(names=tuple(name for name, _ in rows), panels=(panel,))


WIDTH_IN = 11.0
MARGIN_IN = 0.14
RIGHT_IN = 0.26  # room right of panels for half of a wide tick label
TITLE_IN = 0.36  # height of a panel's title
AXIS_IN = 0.34  # height of its tick labels
TEXT_WIDTH_IN = WIDTH_IN - 2 * MARGIN_IN
_GAP_IN = 0.3  # between panels
_SEPARATOR = "  \N{MIDDLE DOT}  "


@dataclass(frozen=True, kw_only=True)
class Header:
    """The text above a figure (title, facts) and, if the profile needs one, a note below it."""

    title: str
    facts: tuple[str, ...]
    note: str | None


@dataclass(frozen=True, kw_only=True)
class FigureLayout:
    """A figure with its header; panels are placed in inches from the body's top left corner."""

    figure: Figure
    height_in: float
    body_top_in: float

    def panels(
        self, count: int, left_in: float, top_in: float, height_in: float, right_in: float = RIGHT_IN, **options: Any
    ) -> Any:
        """Add axes side by side; their height includes the title above and the tick labels below."""
        width_in = (WIDTH_IN - right_in - left_in - _GAP_IN * (count - 1)) / count
        top_in += self.body_top_in
        grid = self.figure.add_gridspec(
            1,
            count,
            left=left_in / WIDTH_IN,
            right=1.0 - right_in / WIDTH_IN,
            top=1.0 - (top_in + TITLE_IN) / self.height_in,
            bottom=1.0 - (top_in + height_in - AXIS_IN) / self.height_in,
            wspace=_GAP_IN / width_in,
        )
        return grid.subplots(squeeze=False, **options)[0]


def create_layout(header: Header, body_in: float) -> FigureLayout:
    """Create a figure with its header and a body of height `body_in`."""
    title_lines = wrap_text(header.title, TEXT_WIDTH_IN, TITLE_SIZE, bold=True)
    facts = _wrap_facts(header.facts, TEXT_WIDTH_IN)
    note = wrap_text(header.note or "", TEXT_WIDTH_IN, FACT_SIZE, bold=True)
    facts_in = 0.14 + 0.235 * len(title_lines) + 0.03
    body_top_in = facts_in + 0.175 * len(facts) + 0.12
    height_in = body_top_in + body_in + 0.08 + (0.19 * len(note) + 0.06 if note else 0.0)
    figure = Figure(figsize=(WIDTH_IN, height_in))

    def write(lines: list[str], from_top_in: float, **options: Any) -> None:
        figure.text(MARGIN_IN / WIDTH_IN, 1.0 - from_top_in / height_in, "\n".join(lines), va="top", **options)

    write(title_lines, 0.14, fontsize=TITLE_SIZE, fontweight="bold", linespacing=1.3)
    write(facts, facts_in, fontsize=FACT_SIZE, color=MUTED, linespacing=1.35)
    write(note, body_top_in + body_in + 0.06, fontsize=FACT_SIZE, fontweight="bold", color=WARNING, linespacing=1.35)
    return FigureLayout(figure=figure, height_in=height_in, body_top_in=body_top_in)


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
    def draw(self) -> Figure: ...


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
    """Draw a figure."""
    with style.figure_style():
        figure = drawing.draw()
        png, svg = style.to_png(figure), style.to_svg(figure, name)
    return Picture(
        name=name,
        title=title,
        finding=drawing.header.title,
        png=png,
        svg=svg,
        inline_svg=style.inline_svg(svg),
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
