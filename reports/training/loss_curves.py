"""Figures of a training: losses against useful tokens, hours and dollars; speed and power over time.

The line is each step's loss. The points are the held-out loss with its 95 % interval over examples. Dollars are
proportional to hours, so they are a second axis of the same panel.

Over time, vertical lines mark checkpoints, restarts and preemptions (restarts after a worker was told to stop). The
power is the leading worker's in the last attempt: earlier attempts leave no telemetry.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bench.records.paths import TELEMETRY_FILE, TRIALS_FOLDER
from bench.records.status import TrialStatus
from bench.records.training import Restart
from reports.figures.drawing import style
from reports.figures.drawing.style import ACCENT_TONE, BASELINE_TONE, DEEP_TONE, OTHER_TONE
from reports.read import telemetry
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
    marker = "o" if len(values) == 1 else None  # a line of one point is invisible
    panel.plot(
        *(values[::stride], steps.loss[::stride]), color=OTHER_TONE, linewidth=1.2, marker=marker, label="training"
    )
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


PANEL_IN = 2.4
MARKS = {"checkpoint": (BASELINE_TONE, "-"), "restart": (ACCENT_TONE, "--"), "preemption": (ACCENT_TONE, ":")}
Points = tuple[Sequence[float], Sequence[float]]


def speed(training: TrainingReport) -> Points:
    """Return (hours of steps, useful tokens per second of all workers), averaged over groups of steps.

    There are at most MAX_POINTS points.
    """
    steps = training.record.steps
    group = max(1, -(-len(steps.step) // MAX_POINTS))
    tokens, seconds = [0, *accumulate(steps.tokens)], [0.0, *accumulate(steps.step_time_sec)]
    edges = [*range(0, len(steps.step), group), len(steps.step)]
    rates = [
        (seconds[last] / 3600.0, (tokens[last] - tokens[first]) / (seconds[last] - seconds[first]))
        for first, last in pairwise(edges)
        if seconds[last] > seconds[first]
    ]
    return [hours for hours, _ in rates], [rate for _, rate in rates]


def power(training: TrainingReport) -> Points | None:
    """Return (hours since the last attempt began, watts of the leading worker's GPUs); None without samples."""
    frame = telemetry.read(training.folder / TRIALS_FOLDER / training.run.planned[0].trial_id / TELEMETRY_FILE)
    if frame is None:
        return None
    watts = frame.dropna(subset=["gpu_power_watts"]).groupby("elapsed_sec")["gpu_power_watts"].sum()
    if watts.empty:
        return None
    thinned = watts.iloc[:: max(1, -(-len(watts) // MAX_POINTS))]
    return list(np.asarray(thinned.index, dtype=float) / 3600.0), list(map(float, thinned))


def event_hours(training: TrainingReport) -> dict[str, list[float]]:
    """Return the hours of steps of checkpoints, and those from which restarts and preemptions resumed."""
    hours_at = dict(zip(training.record.steps.step, training.hours, strict=True)) | {0: 0.0}
    restarts = [restart for restart in training.record.restarts if restart.from_step in hours_at]
    return {
        "checkpoint": [hours_at[step] for step in training.record.checkpoints if step in hours_at],
        "restart": [hours_at[restart.from_step] for restart in restarts if not _was_preempted(restart)],
        "preemption": [hours_at[restart.from_step] for restart in restarts if _was_preempted(restart)],
    }


def _was_preempted(restart: Restart) -> bool:
    """Return whether the previous attempt was told to stop, rather than reaching its own limit."""
    code = restart.reason_code
    return code is not None and code.status is TrialStatus.PREEMPTED and code.is_transient


def draw_course(training: TrainingReport, *, narrow: bool = False) -> tuple[bytes, bytes] | None:
    """Draw the figure as PNG and SVG; None if no step was done."""
    rates, watts, marks = speed(training), power(training), event_hours(training)
    if not rates[0]:
        return None
    panels = 1 if watts is None else 2
    with style.figure_style():
        size = (NARROW_IN if narrow else WIDE_IN, PANEL_IN * panels)
        figure = Figure(figsize=size, layout="constrained")
        axes: Any = figure.subplots(panels, 1, squeeze=False)[:, 0]
        for name, hours in marks.items():
            tone, line_style = MARKS[name]
            for number, hour in enumerate(hours[-MAX_POINTS:]):
                axes[0].axvline(hour, color=tone, linewidth=1.0, linestyle=line_style, label=None if number else name)
        has_few_points = len(rates[0]) < 50
        axes[0].plot(
            *rates, color=OTHER_TONE, linewidth=1.2, marker="o" if has_few_points else None, markersize=3, label="speed"
        )
        axes[0].set(ylabel="useful tokens/s", xlabel="hours of steps")
        axes[0].legend(loc="lower right", ncols=4 if not narrow else 2)
        if watts is not None:
            axes[1].plot(*watts, color=DEEP_TONE, linewidth=1.0)
            axes[1].set(ylabel="watts, leading worker", xlabel="hours since the last attempt began")
        for panel in axes:
            panel.set_xlim(left=0)
            panel.set_ylim(bottom=0)
        return style.to_png(figure), style.to_svg(figure)
