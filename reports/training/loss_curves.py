"""Loss and held-out loss of a training, against useful tokens, hours of steps, and dollars: three panels side by side.

The line is each step's loss, the points are the held-out loss with its 95 % interval over examples.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reports.figures.drawing import style
from reports.figures.drawing.palette import ACCENT_TONE, OTHER_TONE
from reports.training.summary import TrainingReport

MOST_POINTS = 1000
WIDE_IN, NARROW_IN, HEIGHT_IN = 11.0, 3.8, 3.4
Axis = tuple[str, Sequence[float]]


def axes_of(told: TrainingReport) -> list[Axis]:
    """What the loss is drawn against, each with its value after every step; dollars only where a price is known."""
    hours, tokens = told.hours, told.tokens
    unit, words = (1e6, "million useful tokens") if tokens and tokens[-1] >= 1e6 else (1e3, "thousand useful tokens")
    found: list[Axis] = [(words, [count / unit for count in tokens]), ("hours of steps", hours)]
    if told.price is not None:
        per_hour = told.price * told.record.world_size
        found.append(("US dollars for the steps", [hour * per_hour for hour in hours]))
    return found


def draw(told: TrainingReport, *, narrow: bool = False) -> tuple[bytes, bytes] | None:
    """The drawing as PNG and SVG, panels below each other where it is narrow; None where no step was done."""
    if not told.record.steps.step:
        return None
    axes = axes_of(told)
    with style.drawing():
        size = (NARROW_IN, HEIGHT_IN * len(axes)) if narrow else (WIDE_IN, HEIGHT_IN)
        figure = Figure(figsize=size, layout="constrained")
        shape = (len(axes), 1) if narrow else (1, len(axes))
        panels: Any = figure.subplots(*shape, sharey=True, squeeze=False).ravel()
        for panel, (title, values) in zip(panels, axes, strict=True):
            _panel(panel, told, title, values)
        for panel in panels if narrow else panels[:1]:
            panel.set_ylabel("loss, nats per target token")
        panels[0].legend(loc="upper right")
        return style.png(figure), style.svg(figure)


def _panel(panel: Any, told: TrainingReport, title: str, values: Sequence[float]) -> None:
    steps = told.record.steps
    every = -(-len(values) // MOST_POINTS)
    panel.plot(values[::every], steps.loss[::every], color=OTHER_TONE, linewidth=1.2, label="training")
    at = dict(zip(steps.step, values, strict=True)) | {0: 0.0}
    shown = [evaluation for evaluation in told.record.evaluations if evaluation.step in at]
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
    panel.set_xlim(left=-0.02 * values[-1])  # the point before the first step is whole


def _half(loss: float, end: float | None) -> float:
    """From the loss to an end of its interval; nothing where one example allows no interval."""
    return 0.0 if end is None else abs(loss - end)
