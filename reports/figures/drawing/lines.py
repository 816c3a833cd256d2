"""Axes with few ticks, and parts of line plots: intervals, published values, labels at the lines' ends."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from reports.figures.drawing.style import INK, MUTED, PAPER, text_width_in

PUBLISHED_STYLE = {
    "marker": "D",
    "linestyle": "none",
    "markersize": 5.5,
    "markerfacecolor": PAPER,
    "markeredgecolor": INK,
}


def format_x_axis(axes: Any, ticks: int = 5, *, integer: bool = False, log: bool = False) -> None:
    """Set few, plainly formatted ticks on the horizontal axis."""
    _format_axis(axes.xaxis, ticks, integer=integer, log=log)


def format_y_axis(axes: Any, ticks: int = 5, *, log: bool = False) -> None:
    """Set few, plainly formatted ticks on the vertical axis, small and muted."""
    _format_axis(axes.yaxis, ticks, integer=False, log=log)
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=MUTED)


def _format_axis(axis: Any, ticks: int, *, integer: bool, log: bool) -> None:
    if log:
        low, high = axis.get_view_interval()
        span = high / low
        subs = (1.0,) if span > 1000 else (1.0, 3.0) if span > 40 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(base=10, subs=subs) if span > 4 else MaxNLocator(nbins=ticks))
        axis.set_minor_formatter(NullFormatter())
    else:
        axis.set_major_locator(MaxNLocator(nbins=ticks, integer=integer))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def draw_vertical_interval(axes: Any, x: float, low: float | None, high: float | None) -> None:
    """Draw an interval, if there is one, as a vertical line."""
    if low is not None and high is not None:
        axes.plot([x, x], [low, high], color=INK, linewidth=1.2, solid_capstyle="butt", zorder=2)


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


LABEL_SIZE = 8.0
_HEIGHT_PT = 9.0
_CLEARANCE_PT = 2.0  # free space around the text
_MIN_LEADER_PT = 12.0  # a nearer label needs no leader line
_DISTANCES_PT = (8.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0)
_DEGREES = (-20, 20, 160, 200, -60, 60, 120, 240)  # from the point to the label's nearest corner
_MARKER_PT = 5.0


def label_points(
    axes: Any, points: Sequence[tuple[float, float, str]], lines: Sequence[Sequence[tuple[float, float]]]
) -> None:
    """Draw a label next to each point (x, y, text), in data coordinates, clear of `lines`. Call with final limits."""
    occupied = _sample_lines(axes, [*lines, *([(x, y)] for x, y, _ in points)])
    markers = _points_pt(axes, [vertex for line in lines for vertex in line])
    for x, y, text in points:
        point = _points_pt(axes, [(x, y)])[0]
        width = text_width_in(text, LABEL_SIZE) * 72
        center = min(
            _candidate_centers(axes, point, width),
            key=lambda center: (
                _count_covered(occupied, center, width),
                _count_crossed_markers(markers, point, center),
            ),
        )
        occupied = np.vstack([occupied, _box_points(center, width)])
        offset = center - point
        is_near = abs(offset[0]) - width / 2 < _MIN_LEADER_PT and abs(offset[1]) - _HEIGHT_PT / 2 < _MIN_LEADER_PT
        leader = None if is_near else {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            text,
            (x, y),
            xytext=tuple(offset),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=LABEL_SIZE,
            color=MUTED,
            arrowprops=leader,
        )


def _candidate_centers(axes: Any, point: np.ndarray, width: float) -> list[np.ndarray]:
    """Return possible label centers around a point within the panel, the nearest first; if none fits, clipped ones."""
    frame = axes.get_window_extent()
    corners = _to_points(axes, np.array([[frame.x0, frame.y0], [frame.x1, frame.y1]]))
    half_size = np.array([width, _HEIGHT_PT]) / 2
    centers = []
    for distance, degrees in itertools.product(_DISTANCES_PT, _DEGREES):
        direction = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))])
        centers.append(point + direction * distance + np.sign(direction) * half_size)
    clipped = [np.clip(center, corners[0] + half_size, corners[1] - half_size) for center in centers]
    return [
        center for center, clipped_center in zip(centers, clipped, strict=True) if (center == clipped_center).all()
    ] or clipped


def _count_covered(occupied: np.ndarray, center: np.ndarray, width: float) -> int:
    reach = np.array([width, _HEIGHT_PT]) / 2 + _CLEARANCE_PT
    return int((np.abs(occupied - center) < reach).all(axis=1).sum())


def _count_crossed_markers(markers: np.ndarray, point: np.ndarray, center: np.ndarray) -> int:
    """Count the markers that a leader line would cross, except those close to the point."""
    leader = point + (center - point) * np.linspace(0.0, 1.0, 60)[:, None]
    others = markers[np.hypot(*(markers - point).T) > 2 * _MARKER_PT]
    return int((np.hypot(*(others[:, None] - leader).transpose(2, 0, 1)).min(axis=1) < _MARKER_PT).sum())


def _box_points(center: np.ndarray, width: float) -> np.ndarray:
    x, y = np.meshgrid(np.linspace(-0.5, 0.5, 20) * width, np.array([-0.5, 0.0, 0.5]) * _HEIGHT_PT)
    return center + np.stack([x.ravel(), y.ravel()], axis=1)


def _sample_lines(axes: Any, lines: Sequence[Sequence[tuple[float, float]]]) -> np.ndarray:
    """Sample the lines at points about one typographic point apart."""
    samples = []
    for line in lines:
        points = _points_pt(axes, line)
        samples.append(points[:1])
        for start, end in itertools.pairwise(points):
            count = int(np.hypot(*(end - start))) + 1
            samples.append(start + (end - start) * np.linspace(0.0, 1.0, count + 1)[1:, None])
    return np.vstack(samples)


def _points_pt(axes: Any, points: Sequence[tuple[float, float]]) -> np.ndarray:
    return _to_points(axes, axes.transData.transform(np.asarray(points, dtype=float)))


def _to_points(axes: Any, pixels: np.ndarray) -> np.ndarray:
    return np.asarray(pixels * 72.0 / axes.figure.dpi)
