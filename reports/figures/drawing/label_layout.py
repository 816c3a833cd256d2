"""Labels next to points, placed so that no line of the panel crosses them.

In a panel too full for that, a label is placed where it covers least.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reports.figures.drawing import text_size
from reports.figures.drawing.style import MUTED

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
        width = text_size.width_in(text, LABEL_SIZE) * 72
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
