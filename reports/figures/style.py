"""What all figures share: colours, sizes, header and footer, and how a figure becomes a file.

Every figure is drawn on a wide sheet (files, desktop) and on a narrow one (the page on a phone), where its panels stand
below each other instead of shrinking. Only two tones carry meaning, the baseline's grey and the others' blue; they
differ in lightness, so they hold in grey print and for colour-blind readers, and labels stand beside the marks.

Text in SVG stays text: it can be searched and scales with the page. Matplotlib measures it in DejaVu Sans, which is
wider than the fonts browsers choose, so what fits here fits there.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reports import text
from reports.figures import measure
from reports.load import Run
from reports.summary import Row, Summary

INK = "#1c2128"
MUTED = "#57606a"
GRID = "#d8dee4"
PAPER = "#ffffff"
BASELINE_TONE = "#bcc5ce"
OTHER_TONE = "#5a9fd4"
BAND = "#dde6ee"
WARNING = "#9a4a00"

# On the page the colours become the page's own, so that dark mode reaches into the figures.
PAGE_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    BASELINE_TONE: "var(--baseline-tone)",
    OTHER_TONE: "var(--other-tone)",
    BAND: "var(--band)",
    WARNING: "var(--warning)",
}
PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")  # one per worker, while there are few enough to tell apart
MAX_DRAWN = 12  # configurations in one figure; more rows than that are a table's work
PNG_DPI = 160
_NAME_SIZE = 9.0  # font sizes in points
_TITLE_SIZE = 12.0
_FACT_SIZE = 8.5
_RC = {
    "font.family": measure.FAMILY,
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a name may hold a dollar sign
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed: looking for room above costs a tenth of the drawing time, and there is room
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.0,
    "ytick.color": GRID,
    "ytick.labelcolor": INK,
    "ytick.labelsize": _NAME_SIZE,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "qlora-fleet",  # the same run gives the same bytes
}


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What a figure is drawn on; width in inches."""

    narrow: bool
    width_in: float

    @property
    def text_in(self) -> float:
        """Width between the margins."""
        return self.width_in - 2 * _MARGIN_IN


WIDE = Sheet(narrow=False, width_in=11.0)
NARROW = Sheet(narrow=True, width_in=3.8)
_MARGIN_IN = 0.14
_NAME_IN = 1.75  # the widest a configuration's name may make its column
_HEAD_IN = 0.36  # a panel's title
_AXIS_IN = 0.34  # its tick labels


@dataclass(frozen=True, kw_only=True)
class Board:
    """A figure whose panels are placed in inches from the body's top left corner.

    Sizes are known beforehand, so matplotlib need not search for a layout: that took half of a report's drawing time.
    """

    figure: Figure
    sheet: Sheet
    height_in: float
    body_top_in: float

    def panel(self, left_in: float, top_in: float, width_in: float, height_in: float) -> Any:
        """Axes of this outer size; room for a title above and tick labels below is taken out of it."""
        width, height = self.sheet.width_in, self.height_in
        bottom_in = height - self.body_top_in - top_in - height_in + _AXIS_IN
        return self.figure.add_axes(
            (left_in / width, bottom_in / height, width_in / width, (height_in - _HEAD_IN - _AXIS_IN) / height)
        )

    def columns(self, count: int, *, left_in: float, gap_in: float) -> list[tuple[float, float]]:
        """Left edge and width, in inches, of `count` equal columns between `left_in` and the right margin."""
        width = (self.sheet.width_in - _MARGIN_IN - left_in - gap_in * (count - 1)) / count
        return [(left_in + number * (width + gap_in), width) for number in range(count)]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure: how it is drawn, its caption (what to see, one sentence) and its text for those who cannot see it."""

    name: str
    title: str
    draw: Callable[[Summary, Run, Sheet], Figure]
    caption: Callable[[Summary], str]
    alt: Callable[[Summary], str]


def drawn_rows(summary: Summary) -> tuple[Row, ...]:
    """The measured configurations a figure shows, in the plan's order: all, or the baseline and the fastest."""
    rows = summary.measured_rows
    if len(rows) <= MAX_DRAWN:
        return rows
    fastest = sorted(rows, key=lambda row: (not row.is_baseline, -_speed(row)))[:MAX_DRAWN]
    return tuple(row for row in rows if row in fastest)


def tone(row: Row) -> str:
    return BASELINE_TONE if row.is_baseline else OTHER_TONE


def board(summary: Summary, sheet: Sheet, title: str, body_in: float) -> Board:
    """A figure with title, what was measured and how, and the profile's note; its body is `body_in` high."""
    lines = measure.wrap(title, sheet.text_in, _TITLE_SIZE, bold=True)
    facts = measure.wrap(_facts(summary), sheet.text_in, _FACT_SIZE)
    note = measure.wrap(summary.profile_note or "", sheet.text_in, _FACT_SIZE, bold=True)
    facts_in = 0.14 + 0.235 * len(lines) + 0.03
    body_top_in = facts_in + 0.175 * len(facts) + 0.12
    height_in = body_top_in + body_in + 0.08 + (0.19 * len(note) + 0.06 if note else 0.0)
    figure = Figure(figsize=(sheet.width_in, height_in))
    left = _MARGIN_IN / sheet.width_in

    def write(words: list[str], from_top_in: float, **look: Any) -> None:
        figure.text(left, 1.0 - from_top_in / height_in, "\n".join(words), va="top", **look)

    write(lines, 0.14, fontsize=_TITLE_SIZE, fontweight="bold", linespacing=1.3)
    write(facts, facts_in, fontsize=_FACT_SIZE, color=MUTED, linespacing=1.35)
    write(note, body_top_in + body_in + 0.06, fontsize=_FACT_SIZE, fontweight="bold", color=WARNING, linespacing=1.35)
    return Board(figure=figure, sheet=sheet, height_in=height_in, body_top_in=body_top_in)


def rows_height_in(count: int, row_in: float, sheet: Sheet) -> float:
    """Outer height of a panel of `count` rows; on a narrow sheet a row's name has a line of its own."""
    return _HEAD_IN + _AXIS_IN + count * (row_in + (0.24 if sheet.narrow else 0.0))


def names_width_in(rows: tuple[Row, ...], sheet: Sheet) -> float:
    """Width of the column that holds the rows' names, from the sheet's edge; a mere margin where names stand above."""
    if sheet.narrow:
        return _MARGIN_IN
    longest = max(measure.width_in(line, _NAME_SIZE) for row in rows for line in _lines(row.label))
    return _MARGIN_IN + 0.12 + longest


def value_axis(axes: Any, ticks: int = 5, *, integer: bool = False) -> None:
    """A horizontal axis of few, plainly written values."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=ticks, integer=integer))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def label_rows(axes: Any, rows: tuple[Row, ...], sheet: Sheet, *, names: bool = True) -> None:
    """Room for one row per configuration, row `i` at y = i, first on top; with their names down the left side."""
    shown = names and not sheet.narrow
    axes.set_yticks(range(len(rows)), ["\n".join(_lines(row.label)) if shown else "" for row in rows])
    axes.set_ylim(len(rows) - 0.42, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def label_bar(axes: Any, y: float, words: str, row: Row, sheet: Sheet) -> float:
    """Words above a row's mark, from the panel's left edge: they cannot run out of it however long the bar is.

    On a narrow sheet the row's name stands above them. Returns the y at which the mark has its middle.
    """
    middle = y + (0.2 if sheet.narrow else 0.1)
    place = {"xy": (0.0, middle - 0.22), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    axes.annotate(words, xytext=(0, 1.5), va="bottom", fontsize=8.5, **place)
    if sheet.narrow:
        name = measure.shorten(row.label, sheet.text_in, _NAME_SIZE, bold=True)
        axes.annotate(name, xytext=(0, 13.5), va="bottom", fontsize=_NAME_SIZE, fontweight="bold", **place)
    return middle


def whisker(axes: Any, y: float, low: float | None, high: float | None) -> None:
    """An interval as a line with end caps; nothing where there is none."""
    if low is None or high is None:
        return
    axes.plot([low, high], [y, y], color=INK, linewidth=1.6, solid_capstyle="butt")
    axes.plot([low, high], [y, y], color=INK, linestyle="none", marker="|", markersize=8, markeredgewidth=1.6)


def png(figure: Figure) -> bytes:
    return _save(figure, format="png", dpi=PNG_DPI, metadata={"Software": None}, pil_kwargs={"compress_level": 3})


def svg(figure: Figure) -> bytes:
    """A stand-alone SVG, without a date so that the same run gives the same file."""
    drawn = _save(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    return drawn.replace(f"'{measure.FAMILY}'", PAGE_FONT).encode()


def inline_svg(drawn: bytes, prefix: str) -> str:
    """An SVG to stand inside a page: no prolog, ids of its own, and the page's colours and size."""
    body = drawn.decode()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', body)
    body = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\g<1>{prefix}-", body)
    # The drawing has its natural size in points; on the page it fills its column and keeps its proportions.
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    return body


@contextmanager
def drawing() -> Iterator[None]:
    """Our style for as long as a figure is drawn and saved; the process's own settings are left alone."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        # A name in a script that DejaVu lacks is drawn as boxes in the PNG; the SVG and the page show it well.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def _save(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()


def _facts(summary: Summary) -> str:
    rows = drawn_rows(summary)
    workers = sorted({row.measured.n_workers for row in rows if row.measured})
    steps = sorted({row.measured.n_steps for row in rows if row.measured})
    facts = [
        f"n = {_range(workers)} {'worker' if workers[-1] == 1 else 'workers'}, {_range(steps)} steps per configuration",
        "medians with 95 % bootstrap intervals",
        summary.hosts.device,
        f"profile {summary.record.profile}",
        f"run {summary.record.run_id}",
    ]
    if summary.price is not None:
        facts.append(f"{text.number(summary.price.usd_per_gpu_hour, 2)} US$ per GPU hour: {summary.price.source}")
    if len(rows) < len(summary.measured_rows):
        facts.insert(1, f"{len(rows)} of {len(summary.measured_rows)} configurations: the baseline and the fastest")
    return "  ·  ".join(facts)


def _range(values: list[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _lines(label: str) -> list[str]:
    """A name on at most three lines; what does not fit is cut, and marked."""
    lines = measure.wrap(label, _NAME_IN, _NAME_SIZE)
    return lines if len(lines) <= 3 else [*lines[:2], measure.shorten(f"{lines[2]} {lines[3]}", _NAME_IN, _NAME_SIZE)]


def _speed(row: Row) -> float:
    return row.measured.samples_per_sec.value if row.measured is not None else 0.0
