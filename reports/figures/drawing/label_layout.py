"""Labels beside points, where no line of the panel runs through them.

Not covered: a panel so full that there is no such place; the label then stands where it covers least.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reports.figures.drawing import text_size
from reports.figures.drawing.palette import MUTED

SIZE = 8.0
_HEIGHT_PT = 9.0
_APART_PT = 2.0  # what stays free around the words
_LEADER_FROM_PT = 12.0  # nearer than this, it is plain what a label belongs to
_DISTANCES_PT = (8.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0)
_DEGREES = (-20, 20, 160, 200, -60, 60, 120, 240)  # from the point to the label's nearest corner
_MARKER_PT = 5.0


def label_points(
    axes: Any, points: Sequence[tuple[float, float, str]], lines: Sequence[Sequence[tuple[float, float]]]
) -> None:
    """Words beside each point (x, y, words), in data coordinates, clear of `lines`. Call with final limits."""
    taken = _along(axes, [*lines, *([(x, y)] for x, y, _ in points)])
    markers = _points_pt(axes, [place for line in lines for place in line])
    for x, y, words in points:
        at = _points_pt(axes, [(x, y)])[0]
        width = text_size.width_in(words, SIZE) * 72
        middle = min(
            _places(axes, at, width), key=lambda place: (_covered(taken, place, width), _passed(markers, at, place))
        )
        taken = np.vstack([taken, _box(middle, width)])
        away = middle - at
        near = abs(away[0]) - width / 2 < _LEADER_FROM_PT and abs(away[1]) - _HEIGHT_PT / 2 < _LEADER_FROM_PT
        leader = None if near else {"arrowstyle": "-", "color": MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            words,
            (x, y),
            xytext=tuple(away),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SIZE,
            color=MUTED,
            arrowprops=leader,
        )


def _places(axes: Any, at: np.ndarray, width: float) -> list[np.ndarray]:
    """Middles of a label around a point, the nearest first, within the panel; drawn into it where none is."""
    frame = axes.get_window_extent()
    corners = _to_points(axes, np.array([[frame.x0, frame.y0], [frame.x1, frame.y1]]))
    half = np.array([width, _HEIGHT_PT]) / 2
    around = []
    for distance, degrees in itertools.product(_DISTANCES_PT, _DEGREES):
        way = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees))])
        around.append(at + way * distance + np.sign(way) * half)
    within = [np.clip(middle, corners[0] + half, corners[1] - half) for middle in around]
    return [one for one, drawn in zip(around, within, strict=True) if (one == drawn).all()] or within


def _covered(taken: np.ndarray, middle: np.ndarray, width: float) -> int:
    room = np.array([width, _HEIGHT_PT]) / 2 + _APART_PT
    return int((np.abs(taken - middle) < room).all(axis=1).sum())


def _passed(markers: np.ndarray, at: np.ndarray, middle: np.ndarray) -> int:
    """Markers that a leader would run through, and so seem to belong to; the point's own neighbourhood is left out."""
    leader = at + (middle - at) * np.linspace(0.0, 1.0, 60)[:, None]
    others = markers[np.hypot(*(markers - at).T) > 2 * _MARKER_PT]
    return int((np.hypot(*(others[:, None] - leader).transpose(2, 0, 1)).min(axis=1) < _MARKER_PT).sum())


def _box(middle: np.ndarray, width: float) -> np.ndarray:
    across, up = np.meshgrid(np.linspace(-0.5, 0.5, 20) * width, np.array([-0.5, 0.0, 0.5]) * _HEIGHT_PT)
    return middle + np.stack([across.ravel(), up.ravel()], axis=1)


def _along(axes: Any, lines: Sequence[Sequence[tuple[float, float]]]) -> np.ndarray:
    """Points of the lines about one typographic point apart."""
    found = []
    for line in lines:
        places = _points_pt(axes, line)
        found.append(places[:1])
        for start, end in itertools.pairwise(places):
            count = int(np.hypot(*(end - start))) + 1
            found.append(start + (end - start) * np.linspace(0.0, 1.0, count + 1)[1:, None])
    return np.vstack(found)


def _points_pt(axes: Any, places: Sequence[tuple[float, float]]) -> np.ndarray:
    return _to_points(axes, axes.transData.transform(np.asarray(places, dtype=float)))


def _to_points(axes: Any, pixels: np.ndarray) -> np.ndarray:
    return np.asarray(pixels * 72.0 / axes.figure.dpi)
