"""Axes with few, plainly written values, and what stands on lines: intervals, published values, labels at their end."""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.figures.drawing.palette import INK, MUTED, PAPER

PUBLISHED_LOOK = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 5.5,
    "markerfacecolor": PAPER,
    "markeredgecolor": INK,
}


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


def upright(axes: Any, x: float, low: float | None, high: float | None) -> None:
    """An interval as an upright line; nothing where there is none."""
    if low is not None and high is not None:
        axes.plot([x, x], [low, high], color=INK, linewidth=1.2, solid_capstyle="butt", zorder=2)


def end_labels(axes: Any, at: Sequence[tuple[float, float, str, str]], height_in: float) -> None:
    """Labels right of points (x, y, words, colour), moved apart where they would overlap and none below the axis. Call
    with final limits."""
    if not at:
        return
    transform = axes.transData + axes.transAxes.inverted()
    heights = [float(transform.transform((x, y))[1]) for x, y, _, _ in at]
    gap = 0.15 / height_in
    places = spread(heights, gap)
    lowest = 0.0
    for number in sorted(range(len(places)), key=lambda one: places[one]):
        places[number] = max(places[number], lowest)
        lowest = places[number] + gap
    for (x, y, words, colour), place in zip(at, places, strict=True):
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
