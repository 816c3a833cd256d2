"""Loss and held-out loss of a training, against useful tokens, hours of steps, and dollars: three panels side by side.

The line is each step's loss, the points are the held-out loss with its 95 % interval over examples.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reports.figures.drawing import style
from reports.figures.drawing.palette import ACCENT_TONE, OTHER_TONE
from reports.training.told import Told

MOST_POINTS = 1000
WIDTH_IN, HEIGHT_IN, PANEL_IN = 0.8, 3.4, 3.4
Axis = tuple[str, Sequence[float]]


def axes_of(told: Told) -> list[Axis]:
    """What the loss is drawn against, each with its value after every step; dollars only where a price is known."""
    hours = told.hours
    found: list[Axis] = [("useful tokens", told.tokens), ("hours of steps", hours)]
    if told.price is not None:
        per_hour = told.price * told.record.world_size
        found.append(("US dollars for the steps", [hour * per_hour for hour in hours]))
    return found


def draw(told: Told) -> tuple[bytes, bytes] | None:
    """The drawing as PNG and SVG; None where no step was done."""
    if not told.record.steps.step:
        return None
    axes = axes_of(told)
    with style.drawing():
        figure = Figure(figsize=(WIDTH_IN + PANEL_IN * len(axes), HEIGHT_IN), layout="constrained")
        panels: Any = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
        for panel, (title, values) in zip(panels, axes, strict=True):
            _panel(panel, told, title, values)
        panels[0].set_ylabel("loss, nats per target token")
        panels[0].legend(loc="upper right")
        return style.png(figure), style.svg(figure)


def _panel(panel: Any, told: Told, title: str, values: Sequence[float]) -> None:
    steps = told.record.steps
    every = -(-len(values) // MOST_POINTS)
    panel.plot(values[::every], steps.loss[::every], color=OTHER_TONE, linewidth=1.2, label="training")
    at = dict(zip(steps.step, values, strict=True)) | {0: 0.0}
    shown = [one for one in told.record.evaluations if one.step in at]
    if shown:
        panel.errorbar(
            [at[one.step] for one in shown],
            [one.loss for one in shown],
            yerr=[[_half(one.loss, one.low) for one in shown], [_half(one.loss, one.high) for one in shown]],
            color=ACCENT_TONE,
            marker="o",
            markersize=4,
            linewidth=1.4,
            capsize=3,
            label="held out, 95 %",
        )
    panel.set_xlabel(title)
    panel.set_xlim(left=0)


def _half(loss: float, end: float | None) -> float:
    """From the loss to an end of its interval; nothing where one example allows no interval."""
    return 0.0 if end is None else abs(loss - end)
