"""Figure of loss and held-out loss of a training in two panels: against useful tokens, and against hours and dollars.

The line is each step's loss. The points are the held-out loss with its 95 % interval over examples. Dollars are
proportional to hours, so they are a second axis of the same panel.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from reports.figures.drawing import style
from reports.figures.drawing.style import ACCENT_TONE, OTHER_TONE
from reports.training.summary import TrainingReport

MAX_POINTS = 1000
WIDE_IN, NARROW_IN, HEIGHT_IN = 11.0, 3.8, 3.4
Axis = tuple[str, Sequence[float]]


def x_axes(training: TrainingReport) -> list[Axis]:
    """Return titles of the panels' x axes with their values after every step."""
    hours, tokens = training.hours, training.tokens
    unit, title = (1e6, "million useful tokens") if tokens and tokens[-1] >= 1e6 else (1e3, "thousand useful tokens")
    return [(title, [count / unit for count in tokens]), ("hours of steps", hours)]


def draw(training: TrainingReport, *, narrow: bool = False) -> tuple[bytes, bytes] | None:
    """Draw the figure as PNG and SVG; `narrow` stacks the panels. None if no step was done."""
    if not training.record.steps.step:
        return None
    axes = x_axes(training)
    with style.figure_style():
        size = (NARROW_IN, HEIGHT_IN * len(axes)) if narrow else (WIDE_IN, HEIGHT_IN)
        figure = Figure(figsize=size, layout="constrained")
        shape = (len(axes), 1) if narrow else (1, len(axes))
        panels: Any = figure.subplots(*shape, sharey=True, squeeze=False).ravel()
        for panel, (title, values) in zip(panels, axes, strict=True):
            _panel(panel, training, title, values)
        for panel in panels if narrow else panels[:1]:
            panel.set_ylabel("loss, nats per target token")
        if training.price is not None:
            per_hour = training.price * training.record.world_size
            if per_hour > 0:
                dollars = panels[-1].secondary_xaxis("top", functions=(lambda x: x * per_hour, lambda x: x / per_hour))
                dollars.set_xlabel("US dollars for the steps")
        panels[0].legend(loc="upper right")
        return style.to_png(figure), style.to_svg(figure)


def _panel(panel: Any, training: TrainingReport, title: str, values: Sequence[float]) -> None:
    steps = training.record.steps
    stride = -(-len(values) // MAX_POINTS)
    panel.plot(values[::stride], steps.loss[::stride], color=OTHER_TONE, linewidth=1.2, label="training")
    position = dict(zip(steps.step, values, strict=True)) | {0: 0.0}
    evaluations = [evaluation for evaluation in training.record.evaluations if evaluation.step in position]
    if evaluations:
        panel.errorbar(
            [position[evaluation.step] for evaluation in evaluations],
            [evaluation.loss for evaluation in evaluations],
            yerr=[
                [_half(evaluation.loss, evaluation.low) for evaluation in evaluations],
                [_half(evaluation.loss, evaluation.high) for evaluation in evaluations],
            ],
            color=ACCENT_TONE,
            marker="o",
            markersize=4,
            linewidth=1.4,
            capsize=3,
            label="held out, 95 %",
        )
    panel.set_xlabel(title)
    panel.set_xlim(left=-0.02 * values[-1])  # shows the whole point at 0


def _half(loss: float, end: float | None) -> float:
    """Return the distance from the loss to an end of its interval; 0 without an interval."""
    return 0.0 if end is None else abs(loss - end)
