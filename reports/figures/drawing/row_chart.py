"""Figures of rows: panels side by side over the same names; which configurations are rows, and the marks of values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports import formatting
from reports.figures.drawing.layout import (
    AXIS_IN,
    MARGIN_IN,
    TITLE_IN,
    WIDTH_IN,
    Header,
    Mark,
    MarkGroup,
    Panel,
    create_layout,
)
from reports.figures.drawing.style import (
    BAND,
    BASELINE_TONE,
    INK,
    NAME_SIZE,
    OTHER_TONE,
    PAPER,
    PUBLISHED,
    shorten_text,
    text_width_in,
    wrap_text,
)
from reports.formatting import HasInterval
from reports.read.measurements import MeasuredValue
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary

MAX_DRAWN = 14  # configurations in one figure: the full suite with its baseline


def drawn_rows(summary: Summary) -> tuple[ConfigurationRow, ...]:
    """Return the measured configurations to draw, in the plan's order: all, or the baseline and the fastest."""
    measured = summary.measured_rows
    if len(measured) <= MAX_DRAWN:
        return measured
    fastest = sorted(measured, key=lambda row: (not row.is_baseline, -row.useful_rate))[:MAX_DRAWN]
    chosen = {row.label for row in fastest}
    return tuple(row for row in measured if row.label in chosen)


def row_tone(row: ConfigurationRow) -> str:
    return BASELINE_TONE if row.is_baseline else OTHER_TONE


def header_facts(summary: Summary) -> tuple[str, ...]:
    """Return n, the selection of rows ("" for all), and the basis of the intervals."""
    rows = drawn_rows(summary)
    workers = [row.measured.n_workers for row in rows if row.measured]
    steps = formatting.number_range(row.measured.n_steps for row in rows if row.measured)
    unit = "worker" if max(workers) == 1 else "workers"
    counts = f"n = {formatting.number_range(workers)} {unit}, {steps} steps per configuration"
    return counts, describe_subset(summary), describe_intervals(rows)


def describe_subset(summary: Summary) -> str:
    """Describe which of the measured configurations are drawn; empty if all are."""
    n_drawn, n_measured = len(drawn_rows(summary)), len(summary.measured_rows)
    return f"{n_drawn} of {n_measured} configurations: the baseline and the fastest" if n_drawn < n_measured else ""


def describe_intervals(rows: Sequence[ConfigurationRow]) -> str:
    """Describe the samples of these rows' 95 % intervals: workers, processes or steps."""
    kinds = {row.measured.elapsed_samples_per_sec.over for row in rows if row.measured is not None} - {None}
    names = {"workers": "workers", "processes": "processes", "steps": "the steps of one process"}
    units = [name for unit, name in names.items() if unit in kinds]
    return f"95 % intervals over {' or '.join(units)}" if units else "one step each: no intervals"


def interval_mark(interval: HasInterval, text: str, **fields: Any) -> Mark:
    """Make a mark of a value with its interval; `fields` are further fields of Mark."""
    return Mark(value=interval.value, text=text, low=interval.low, high=interval.high, **fields)


def estimate_mark(row: ConfigurationRow, name: str, *, published: tuple[float, ...] = ()) -> Mark:
    """Make a bar of the estimate called `name`."""
    if row.measured is None:
        return Mark(value=None, text=formatting.UNKNOWN)
    estimate = getattr(row.measured, name)
    text = formatting.estimate(estimate) + published_text(*published)
    return interval_mark(estimate, text, tone=row_tone(row), published=published)


def published_text(*values: float, unit: str = "") -> str:
    """Return published values as the end of a mark's text; empty without any."""
    known = ", ".join(f"{value:g} {unit}".strip() for value in values)
    return f"  {PUBLISHED} {known} published" if known else ""


def measured_mark(
    measured: MeasuredValue | None,
    unit: str,
    *,
    suffix: str = "",
    tone: str = OTHER_TONE,
    published: float | None = None,
    limit: float | None = None,
) -> Mark:
    """Make a mark of a measurement in `unit`; `published` is in the same unit."""
    if measured is None or measured.value is None:
        return Mark(value=None, text="not done" if measured is None else f"none: {measured.note or 'not known'}")
    known = () if published is None else (published,)
    text = formatting.estimate(measured, f" {unit}") + suffix + published_text(*known, unit=unit)
    return interval_mark(measured, text, tone=tone, published=known, limit=limit)


ROW_HEIGHT_IN = 0.42
MAX_NAME_IN = 1.75  # maximum width of the rows' names
MARK_OFFSET_ROWS = 0.1  # from a row's middle down to its mark
TEXT_SIZE, MIN_TEXT_SIZE = 8.5, 7.5
TEXT_OFFSET_ROWS = 0.22  # from a mark's center up to its text


@dataclass(frozen=True, kw_only=True)
class RowFigure:
    """A figure of named rows, ready to be drawn: left-aligned groups, one below the other. A group without rows is left
    out."""

    header: Header
    groups: tuple[MarkGroup, ...]
    caption: str

    @property
    def alt(self) -> str:
        """Text with every row of every panel."""
        rows = [
            f"{name}: " + ", ".join(f"{panel.title}: {panel.marks[number].text}" for panel in group.panels)
            for group in self.groups
            for number, name in enumerate(group.names)
        ]
        return "; ".join(rows) + "."

    def draw(self) -> Figure:
        shown = [group for group in self.groups if group.names]
        heights = [TITLE_IN + AXIS_IN + len(group.names) * ROW_HEIGHT_IN for group in shown]
        layout = create_layout(self.header, sum(heights))
        names = [name_lines(name) for group in shown for name in group.names]
        left_in = MARGIN_IN + 0.12 + max(text_width_in(line, NAME_SIZE) for lines in names for line in lines)
        for number, group in enumerate(shown):
            columns = layout.panels(
                len(group.panels), left_in, sum(heights[:number]), heights[number], sharex=group.has_one_axis
            )
            for axes, panel in zip(columns, group.panels, strict=True):
                label_rows(axes, group.names, shown=axes is columns[0])
                draw_rows(axes, panel)
            for axes, panel in zip(columns, group.panels, strict=True):
                format_x_axis(axes, log=panel.log)
        return layout.figure


def name_lines(label: str) -> list[str]:
    """Wrap a name to at most two lines; a longer one is cut and marked with an ellipsis."""
    lines = wrap_text(label, MAX_NAME_IN, NAME_SIZE)
    return lines if len(lines) <= 2 else [lines[0], shorten_text(f"{lines[1]} {lines[2]}", MAX_NAME_IN, NAME_SIZE)]


def draw_rows(axes: Any, panel: Panel) -> None:
    """Draw a panel's marks, one per row, each with its text above it."""
    axes.margins(x=0.07)
    if panel.log:
        axes.set_xscale("log")
    if panel.band is not None:
        axes.axvspan(*panel.band, color=BAND, linewidth=0, zorder=0)
    for row, mark in enumerate(panel.marks):
        mark_y = row + MARK_OFFSET_ROWS
        label_mark(axes, mark_y, mark.text)
        if mark.value is not None and panel.kind == "bars":
            style = {"facecolor": PAPER, "edgecolor": mark.tone, "hatch": "////"} if mark.is_hollow else {}
            axes.barh(
                mark_y, mark.value, height=0.36, linewidth=0.8 if style else 0.0, **(style or {"color": mark.tone})
            )
        if panel.kind == "points":
            _draw_points(axes, mark_y, mark)
        else:
            _draw_interval(axes, mark_y, mark)
        if mark.value is not None and panel.kind == "dots":
            face = PAPER if mark.is_hollow else mark.tone
            axes.plot(mark.value, mark_y, "o", markersize=7, color=face, markeredgecolor=INK, markeredgewidth=0.8)
        if mark.limit is not None:
            axes.plot([mark.limit] * 2, [mark_y - 0.2, mark_y + 0.2], color=INK, linewidth=1.8, zorder=3)
        for value in mark.published:
            look = {"markersize": 5.5, "markerfacecolor": PAPER, "markeredgecolor": INK, "zorder": 4}
            axes.plot(value, mark_y, "D", **look)
    if panel.reference is not None:  # behind the texts, whose background hides it
        axes.axvline(panel.reference, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    axes.set_title(shorten_text(panel.title, panel_width_in(axes), 9.5, bold=True))


def _draw_points(axes: Any, y: float, mark: Mark) -> None:
    """Draw the points, spread over the row in their order so that equal ones do not hide each other, and the interval
    of the value behind them."""
    edges = [y - 0.18, y + 0.18]
    if mark.low is not None and mark.high is not None:
        axes.fill_betweenx(edges, mark.low, mark.high, color=BAND, linewidth=0, zorder=1)
    axes.plot([mark.value] * 2, edges, color=INK, linewidth=1.4, zorder=2)
    count = len(mark.points)
    heights = [edges[0] + 0.36 * (index + 0.5) / count for index in range(count)]
    style = {"edgecolors": INK, "linewidths": 0.3, "alpha": 0.85}
    axes.scatter(mark.points, heights, s=14, color=mark.tone, zorder=3, **style)


def label_rows(axes: Any, names: Sequence[str], *, shown: bool = True) -> None:
    """Set up one row per name, row `i` at y = i, the first on top; if `shown`, with the names on the left."""
    axes.set_yticks(range(len(names)), ["\n".join(name_lines(name)) if shown else "" for name in names])
    axes.set_ylim(len(names) - 0.42, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def label_mark(axes: Any, mark_y: float, text: str) -> None:
    """Draw text above a row's mark, from the panel's left edge, so that it fits however long the bar is.

    Text wider than the panel is drawn smaller, then cut.
    """
    width_in = panel_width_in(axes)
    size = TEXT_SIZE if text_width_in(text, TEXT_SIZE) <= width_in else MIN_TEXT_SIZE
    axes.annotate(
        shorten_text(text, width_in, size),
        xy=(0.0, mark_y - TEXT_OFFSET_ROWS),
        xycoords=("axes fraction", "data"),
        xytext=(0, 1.5),
        textcoords="offset points",
        va="bottom",
        fontsize=size,
        # An opaque background, so that the panel's lines do not cross the text.
        bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.6},
    )


def panel_width_in(axes: Any) -> float:
    return float(axes.get_position().width * WIDTH_IN)


def _draw_interval(axes: Any, y: float, mark: Mark) -> None:
    if mark.low is not None and mark.high is not None:
        middle, half = (mark.low + mark.high) / 2.0, (mark.high - mark.low) / 2.0
        axes.errorbar(middle, y, xerr=half, fmt="none", color=INK, elinewidth=1.6, capsize=4, capthick=1.6)


def format_x_axis(axes: Any, ticks: int = 5, *, integer: bool = False, log: bool = False) -> None:
    """Set few, plainly formatted ticks on the horizontal axis."""
    axis = axes.xaxis
    if log:
        low, high = axis.get_view_interval()
        span = high / low
        subs = (1.0,) if span > 1000 else (1.0, 3.0) if span > 40 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=10, subs=subs) if span > 4 else MaxNLocator(nbins=ticks))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=ticks, integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
