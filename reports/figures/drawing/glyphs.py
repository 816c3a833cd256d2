"""Figures of rows: panels beside each other over the same names; bars and dots with interval and words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from reports.figures.drawing import text_size
from reports.figures.drawing.layout import FigureLayout, Head, Sheet, board, name_lines, names_width_in, rows_height_in
from reports.figures.drawing.lines import PUBLISHED_LOOK, value_axis
from reports.figures.drawing.palette import BAND, INK, PAPER
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.figures.drawing.style import NAME_SIZE

ROW_IN = 0.42
WORDS_SIZE, LEAST_WORDS_SIZE = 8.5, 7.5
WORDS_ABOVE = 0.22  # how far over a mark's middle, in rows, its words begin


@dataclass(frozen=True, kw_only=True)
class RowFigure:
    """A figure of named rows, ready to be drawn: groups below each other, all beginning at the same distance from the
    left. A group without rows is left out."""

    over: Head
    groups: tuple[MarkGroup, ...]
    caption: str

    @property
    def alt(self) -> str:
        """Every row of every panel in words."""
        rows = [
            f"{name}: " + ", ".join(f"{panel.title}: {panel.marks[number].words}" for panel in group.panels)
            for group in self.groups
            for number, name in enumerate(group.names)
        ]
        return "; ".join(rows) + "."

    def draw(self, sheet: Sheet) -> Figure:
        shown = [
            MarkGroup(names=group.names, panels=tuple(p for p in group.panels if not (sheet.narrow and p.wide_only)))
            for group in self.groups
            if group.names
        ]
        below = [len(one.panels) if sheet.narrow else 1 for one in shown]
        heights = [
            count * rows_height_in(len(one.names), row_in(sheet), sheet)
            for count, one in zip(below, shown, strict=True)
        ]
        drawing = board(self.over, sheet, sum(heights))
        left_in = names_width_in([name for one in shown for name in one.names], sheet)
        for number, group in enumerate(shown):
            _draw_panels(drawing, group, left_in=left_in, top_in=sum(heights[:number]))
        return drawing.figure


def _draw_panels(drawing: FigureLayout, group: MarkGroup, *, left_in: float, top_in: float) -> None:
    """A group's panels beside each other, on a narrow sheet below each other."""
    sheet = drawing.sheet
    height_in = rows_height_in(len(group.names), row_in(sheet), sheet)
    across = drawing.columns(1 if sheet.narrow else len(group.panels), left_in=left_in, gap_in=0.3)
    for number, one in enumerate(group.panels):
        left, width = across[0] if sheet.narrow else across[number]
        top = top_in + (number * height_in if sheet.narrow else 0.0)
        axes = drawing.panel(left, top, width, height_in)
        label_rows(axes, group.names, sheet, shown=number == 0)
        draw_rows(axes, group.names, one, sheet, width)


def row_in(sheet: Sheet) -> float:
    """Height of a row: its words above its mark."""
    return ROW_IN + (0.08 if sheet.narrow else 0.0)


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
            axes.plot(value, middle, zorder=4, **PUBLISHED_LOOK)
    if panel.log:
        axes.set_xscale("log")
    axes.set_xlim(*(panel.limits or padded(panel, _values(panel.marks))))
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


def shared(panels: Sequence[Panel]) -> tuple[Panel, ...]:
    """The panels with one axis for all, so that lengths and places compare across them."""
    found = [padded(panel, _values(panel.marks)) for panel in panels]
    limits = (min(low for low, _ in found), max(high for _, high in found))
    return tuple(replace(panel, limits=limits) for panel in panels)


def padded(panel: Panel, values: Sequence[float]) -> tuple[float, float]:
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
    background = {
        "facecolor": PAPER,
        "edgecolor": "none",
        "pad": 0.6,
    }  # lines of the panel do not run through the words
    width_in = axes.get_position().width * axes.figure.get_figwidth()
    size = WORDS_SIZE if text_size.width_in(words, WORDS_SIZE) <= width_in else LEAST_WORDS_SIZE
    words = text_size.shorten(words, width_in, size)
    axes.annotate(words, xytext=(0, 1.5), va="bottom", fontsize=size, bbox=background, **place)
    if sheet.narrow:
        shown = text_size.shorten(name, sheet.text_in, NAME_SIZE, bold=True)
        axes.annotate(
            shown, xytext=(0, 13.5), va="bottom", fontsize=NAME_SIZE, fontweight="bold", bbox=background, **place
        )
    return middle


def _middle(y: float, sheet: Sheet) -> float:
    return y + (0.2 if sheet.narrow else 0.1)


def whisker(axes: Any, y: float, low: float | None, high: float | None) -> None:
    """An interval as a line with end caps; nothing where there is none."""
    if low is None or high is None:
        return
    axes.plot([low, high], [y, y], color=INK, linewidth=1.6, solid_capstyle="butt")
    axes.plot([low, high], [y, y], color=INK, linestyle="none", marker="|", markersize=8, markeredgewidth=1.6)
