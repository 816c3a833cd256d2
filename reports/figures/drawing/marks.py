"""What stands in a panel: named rows, bars and dots with interval and words, lines with a label at their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.figures.drawing import text_size
from reports.figures.drawing.board import Board, Sheet, name_lines, names_width_in, rows_height_in
from reports.figures.drawing.palette import BAND, INK, MUTED, OTHER_TONE, PAPER
from reports.figures.drawing.style import NAME_SIZE

ROW_IN = 0.56
WORDS_SIZE, LEAST_WORDS_SIZE = 8.5, 7.5
WORDS_ABOVE = 0.22  # how far over a mark's middle, in rows, its words begin
_PUBLISHED = {"marker": "D", "linestyle": "none", "markersize": 5.5, "markerfacecolor": PAPER, "markeredgecolor": INK}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One row's value as a bar or a dot, in the panel's unit, with its words; None where there is no value.

    `published` are the same quantity's published values, drawn as hollow diamonds; `words` say them, too. `limit` is a
    ceiling of this row, drawn as an upright line.
    """

    value: float | None
    words: str
    low: float | None = None
    high: float | None = None
    tone: str = OTHER_TONE
    is_hollow: bool = False
    published: tuple[float, ...] = ()
    limit: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One quantity over the figure's rows. `kind` is "bars" or "dots"; dots may stand on a logarithmic axis.

    `at` is a dashed upright line through all rows (no change, a capacity), which the title explains; `limits` are the
    axis's, where panels beside each other share one; `band` is a range behind the marks.
    """

    title: str
    marks: tuple[Mark, ...]
    kind: str = "bars"
    log: bool = False
    at: float | None = None
    limits: tuple[float, float] | None = None
    band: tuple[float, float] | None = None


def draw_panels(
    board: Board,
    names: Sequence[str],
    panels: Sequence[Panel],
    *,
    top_in: float = 0.0,
    aligned_with: Sequence[str] = (),
) -> None:
    """Panels over the same rows, beside each other, on a narrow sheet below each other.

    `aligned_with` are names of other rows of the figure, so that all begin at the same distance from the left.
    """
    sheet = board.sheet
    height_in = rows_height_in(len(names), ROW_IN, sheet)
    left_in = names_width_in([*names, *aligned_with], sheet)
    across = board.columns(1 if sheet.narrow else len(panels), left_in=left_in, gap_in=0.3)
    for number, one in enumerate(panels):
        left, width = across[0] if sheet.narrow else across[number]
        top = top_in + (number * height_in if sheet.narrow else 0.0)
        axes = board.panel(left, top, width, height_in)
        label_rows(axes, names, sheet, shown=number == 0)
        draw_rows(axes, names, one, sheet, width)


def panels_height_in(rows: int, panels: int, sheet: Sheet) -> float:
    """Height of `draw_panels` before it is drawn."""
    return rows_height_in(rows, ROW_IN, sheet) * (panels if sheet.narrow else 1)


def draw_rows(axes: Any, names: Sequence[str], panel: Panel, sheet: Sheet, width_in: float) -> None:
    """A panel's marks, one a row, each with its words above it."""
    if panel.band is not None:
        axes.axvspan(*panel.band, color=BAND, linewidth=0, zorder=0)
    for y, (name, mark) in enumerate(zip(names, panel.marks, strict=True)):
        middle = label_mark(axes, y, mark.words, name, sheet)
        if mark.value is not None and panel.kind == "bars":
            look = {"facecolor": PAPER, "edgecolor": mark.tone, "hatch": "////"} if mark.is_hollow else {}
            axes.barh(middle, mark.value, height=0.36, linewidth=0.8 if look else 0.0, **(look or {"color": mark.tone}))
        whisker(axes, middle, mark.low, mark.high)
        if mark.value is not None and panel.kind == "dots":
            face = PAPER if mark.is_hollow else mark.tone
            axes.plot(mark.value, middle, "o", markersize=7, color=face, markeredgecolor=INK, markeredgewidth=0.8)
        if mark.limit is not None:
            axes.plot([mark.limit] * 2, [middle - 0.2, middle + 0.2], color=INK, linewidth=1.8, zorder=3)
        for value in mark.published:
            axes.plot(value, middle, zorder=4, **_PUBLISHED)
    _limits(axes, panel, _values(panel.marks))
    if panel.at is not None:
        _draw_upright(axes, panel.at, names, panel.marks, sheet, width_in)
    axes.set_title(text_size.shorten(panel.title, width_in, 9.5, bold=True))
    value_axis(axes, log=panel.log)


def _draw_upright(
    axes: Any, at: float, names: Sequence[str], marks: Sequence[Mark], sheet: Sheet, width_in: float
) -> None:
    """A dashed line through all rows, left out where a row's words stand. Call with final limits."""
    x_in = float(axes.transAxes.inverted().transform(axes.transData.transform((at, 0.0)))[0]) * width_in
    for y, (name, mark) in enumerate(zip(names, marks, strict=True)):
        words_in = text_size.width_in(mark.words, WORDS_SIZE)
        if sheet.narrow:
            words_in = max(words_in, text_size.width_in(name, NAME_SIZE, bold=True))
        top = _middle(y, sheet) - WORDS_ABOVE if words_in > x_in - 0.05 else y - 0.5
        axes.plot([at, at], [top, y + 0.5], color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)


def _limits(axes: Any, panel: Panel, values: list[float]) -> None:
    if panel.log:
        axes.set_xscale("log")
    axes.set_xlim(*(panel.limits or around(panel, values)))


def shared(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """The panels with one axis for all, so that lengths and places compare across them."""
    found = [around(panel, _values(panel.marks)) for panel in panels]
    limits = (min(low for low, _ in found), max(high for _, high in found))
    return tuple(replace(panel, limits=limits) for panel in panels)


def around(panel: Panel, values: Sequence[float]) -> tuple[float, float]:
    """Limits with some room around `values`; bars begin at zero."""
    known = [*values, *([] if panel.at is None else [panel.at])]
    if panel.kind == "bars":
        return 0.0, max(known, default=0.0) * 1.06 or 1.0
    if not known:
        return (0.5, 2.0) if panel.log else (0.0, 1.0)
    low, high = min(known), max(known)
    if panel.log:
        room = max(high / low, 1.2) ** 0.08
        return low / room, high * room
    room = (high - low or abs(high) or 1.0) * 0.08
    return low - room, high + room


def _values(marks: Sequence[Mark]) -> list[float]:
    found = [value for mark in marks for value in (mark.value, mark.low, mark.high, mark.limit, *mark.published)]
    return [value for value in found if value is not None]


def value_axis(axes: Any, ticks: int = 5, *, integer: bool = False, log: bool = False) -> None:
    """A horizontal axis of few, plainly written values."""
    _plain(axes.xaxis, ticks, integer=integer, log=log)


def height_axis(axes: Any, ticks: int = 5, *, log: bool = False) -> None:
    """An upright axis of few, plainly written values, small and muted."""
    _plain(axes.yaxis, ticks, integer=False, log=log)
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=MUTED)


def _plain(axis: Any, ticks: int, *, integer: bool, log: bool) -> None:
    if log:
        low, high = axis.get_view_interval()
        span = high / low
        subs = (1.0,) if span > 1000 else (1.0, 3.0) if span > 40 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=10, subs=subs) if span > 4 else MaxNLocator(nbins=ticks))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=ticks, integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def label_rows(axes: Any, names: Sequence[str], sheet: Sheet, *, shown: bool = True) -> None:
    """Room for one row per name, row `i` at y = i, first on top; with their names down the left side."""
    written = shown and not sheet.narrow
    axes.set_yticks(range(len(names)), ["\n".join(name_lines(name)) if written else "" for name in names])
    axes.set_ylim(len(names) - 0.42, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def label_mark(axes: Any, y: float, words: str, name: str, sheet: Sheet) -> float:
    """Words above a row's mark, from the panel's left edge: they cannot run out of it however long the bar is.

    What is wider than the panel is written smaller, and cut where that is not enough. On a narrow sheet the row's name
    stands above them. Returns the y at which the mark has its middle.
    """
    middle = _middle(y, sheet)
    place = {"xy": (0.0, middle - WORDS_ABOVE), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    ground = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}  # lines of the panel do not run through the words
    width_in = axes.get_position().width * axes.figure.get_figwidth()
    size = WORDS_SIZE if text_size.width_in(words, WORDS_SIZE) <= width_in else LEAST_WORDS_SIZE
    words = text_size.shorten(words, width_in, size)
    axes.annotate(words, xytext=(0, 1.5), va="bottom", fontsize=size, bbox=ground, **place)
    if sheet.narrow:
        shown = text_size.shorten(name, sheet.text_in, NAME_SIZE, bold=True)
        axes.annotate(shown, xytext=(0, 13.5), va="bottom", fontsize=NAME_SIZE, fontweight="bold", bbox=ground, **place)
    return middle


def _middle(y: float, sheet: Sheet) -> float:
    return y + (0.2 if sheet.narrow else 0.1)


def whisker(axes: Any, y: float, low: float | None, high: float | None) -> None:
    """An interval as a line with end caps; nothing where there is none."""
    if low is None or high is None:
        return
    axes.plot([low, high], [y, y], color=INK, linewidth=1.6, solid_capstyle="butt")
    axes.plot([low, high], [y, y], color=INK, linestyle="none", marker="|", markersize=8, markeredgewidth=1.6)


def upright(axes: Any, x: float, low: float | None, high: float | None) -> None:
    """An interval as an upright line; nothing where there is none."""
    if low is not None and high is not None:
        axes.plot([x, x], [low, high], color=INK, linewidth=1.2, solid_capstyle="butt", zorder=2)


def diamond(axes: Any, x: float, y: float) -> None:
    """A published value."""
    axes.plot(x, y, zorder=5, **_PUBLISHED)


def end_labels(axes: Any, at: Sequence[tuple[float, float, str, str]], height_in: float) -> None:
    """Labels right of points (x, y, words, colour), moved apart where they would overlap. Call with final limits."""
    if not at:
        return
    transform = axes.transData + axes.transAxes.inverted()
    heights = [float(transform.transform((x, y))[1]) for x, y, _, _ in at]
    gap = 0.15 / height_in
    for (x, y, words, colour), place in zip(at, spread(heights, gap), strict=True):
        shift = (place - float(transform.transform((x, y))[1])) * height_in * 72
        axes.annotate(
            words, (x, y), xytext=(6, shift), textcoords="offset points", va="center", fontsize=8.5, color=colour
        )


def spread(places: Sequence[float], gap: float) -> list[float]:
    """`places`, moved as little as needed so that neighbours are at least `gap` apart; their order is kept."""
    order = sorted(range(len(places)), key=lambda number: places[number])
    groups: list[tuple[float, list[int]]] = []  # (middle, members), members `gap` apart around the middle
    for number in order:
        groups.append((places[number], [number]))
        while len(groups) > 1:
            (below, lower), (above, upper) = groups[-2], groups[-1]
            if above - below >= gap * (len(lower) + len(upper)) / 2:
                break
            total = len(lower) + len(upper)
            groups[-2:] = [((below * len(lower) + above * len(upper)) / total, lower + upper)]
    moved = [0.0] * len(places)
    for middle, members in groups:
        for rank, number in enumerate(members):
            moved[number] = middle + (rank - (len(members) - 1) / 2) * gap
    return moved
