"""Axes with few ticks, and parts of line plots: published values, labels at the lines' ends."""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.figures.drawing.style import INK, PAPER

PUBLISHED_STYLE = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 5.5,
    "markerfacecolor": PAPER,
    "markeredgecolor": INK,
}


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


def label_ends(axes: Any, points: Sequence[tuple[float, float, str, str]], height_in: float) -> None:
    """Draw labels right of points (x, y, text, colour), moved apart to avoid overlaps, and not below the axis.

    Call with final limits.
    """
    if not points:
        return
    transform = axes.transData + axes.transAxes.inverted()
    heights = [float(transform.transform((x, y))[1]) for x, y, _, _ in points]
    gap = 0.15 / height_in
    positions = spread_apart(heights, gap)
    lowest = 0.0
    for number in sorted(range(len(positions)), key=lambda index: positions[index]):
        positions[number] = max(positions[number], lowest)
        lowest = positions[number] + gap
    for (x, y, text, colour), position in zip(points, positions, strict=True):
        shift = (position - float(transform.transform((x, y))[1])) * height_in * 72
        axes.annotate(
            text, (x, y), xytext=(6, shift), textcoords="offset points", va="center", fontsize=8.5, color=colour
        )


def spread_apart(positions: Sequence[float], gap: float) -> list[float]:
    """Move `positions` as little as needed so that neighbours are at least `gap` apart; their order is kept."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    groups: list[tuple[float, list[int]]] = []  # (middle, members), members `gap` apart around the middle
    for index in order:
        groups.append((positions[index], [index]))
        while len(groups) > 1:
            (below, lower), (above, upper) = groups[-2], groups[-1]
            if above - below >= gap * (len(lower) + len(upper)) / 2:
                break
            total = len(lower) + len(upper)
            groups[-2:] = [((below * len(lower) + above * len(upper)) / total, lower + upper)]
    moved = [0.0] * len(positions)
    for middle, members in groups:
        for rank, index in enumerate(members):
            moved[index] = middle + (rank - (len(members) - 1) / 2) * gap
    return moved
