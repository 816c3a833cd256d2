"""How a training went over its hours: useful tokens a second, power, and where it stood still or began again.

A line at each checkpoint, at each restart, and at each preemption, which is a restart after a worker was told to stop.
What was paid for twice is in the table of attempts. The power is the leading worker's, of the last attempt alone:
earlier ones have left no telemetry.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bench.records.paths import TELEMETRY_FILE, TRIALS_FOLDER
from bench.records.result import TrialStatus
from bench.records.training import Restart, is_at_its_limit
from reports.figures.drawing import style
from reports.figures.drawing.palette import ACCENT_TONE, BASELINE_TONE, DEEP_TONE, OTHER_TONE
from reports.read import telemetry
from reports.training.loss_curves import MOST_POINTS, NARROW_IN, WIDE_IN
from reports.training.summary import TrainingReport

PANEL_IN = 2.4
MARKS = {"checkpoint": (BASELINE_TONE, "-"), "restart": (ACCENT_TONE, "--"), "preemption": (ACCENT_TONE, ":")}
Points = tuple[Sequence[float], Sequence[float]]


def speed(told: TrainingReport) -> Points:
    """(hours of steps, useful tokens a second of all workers) of stretches of steps, at most `MOST_POINTS`."""
    steps = told.record.steps
    many = max(1, -(-len(steps.step) // MOST_POINTS))
    tokens, seconds = [0, *accumulate(steps.tokens)], [0.0, *accumulate(steps.step_time_sec)]
    edges = [*range(0, len(steps.step), many), len(steps.step)]
    rates = [
        (seconds[last] / 3600.0, (tokens[last] - tokens[first]) / (seconds[last] - seconds[first]))
        for first, last in pairwise(edges)
        if seconds[last] > seconds[first]
    ]
    return [at for at, _ in rates], [rate for _, rate in rates]


def power(told: TrainingReport) -> Points | None:
    """(hours since the last attempt began, watts of the leading worker's GPUs); None where nothing was sampled."""
    frame = telemetry.read(told.folder / TRIALS_FOLDER / told.run.planned[0].trial_id / TELEMETRY_FILE)
    if frame is None:
        return None
    watts = frame.dropna(subset=["gpu_power_watts"]).groupby("elapsed_sec")["gpu_power_watts"].sum()
    if watts.empty:
        return None
    kept = watts.iloc[:: max(1, -(-len(watts) // MOST_POINTS))]
    return list(np.asarray(kept.index, dtype=float) / 3600.0), list(map(float, kept))


def annotated(told: TrainingReport) -> dict[str, list[float]]:
    """Hours of steps at which a checkpoint was written, and from which a restart or a preemption went on."""
    at = dict(zip(told.record.steps.step, told.hours, strict=True)) | {0: 0.0}
    restarts = [restart for restart in told.record.restarts if restart.from_step in at]
    return {
        "checkpoint": [at[checkpoint.step] for checkpoint in told.record.checkpoints if checkpoint.step in at],
        "restart": [at[restart.from_step] for restart in restarts if not _was_preempted(restart)],
        "preemption": [at[restart.from_step] for restart in restarts if _was_preempted(restart)],
    }


def _was_preempted(one: Restart) -> bool:
    """Whether the attempt before ended because it was told to, and not by its own limit."""
    end, _, reason = one.reason.partition(": ")
    return end == TrialStatus.PREEMPTED.value and not is_at_its_limit(reason)


def draw(told: TrainingReport, *, narrow: bool = False) -> tuple[bytes, bytes] | None:
    """The drawing as PNG and SVG; None where no step was done."""
    rates, watts, marks = speed(told), power(told), annotated(told)
    if not rates[0]:
        return None
    panels = 1 if watts is None else 2
    with style.drawing():
        size = (NARROW_IN if narrow else WIDE_IN, PANEL_IN * panels)
        figure = Figure(figsize=size, layout="constrained")
        axes: Any = figure.subplots(panels, 1, squeeze=False)[:, 0]
        for name, hours in marks.items():
            tone, look = MARKS[name]
            for number, hour in enumerate(hours[-MOST_POINTS:]):
                axes[0].axvline(hour, color=tone, linewidth=1.0, linestyle=look, label=None if number else name)
        few = len(rates[0]) < 50
        axes[0].plot(*rates, color=OTHER_TONE, linewidth=1.2, marker="o" if few else None, markersize=3, label="speed")
        axes[0].set(ylabel="useful tokens/s", xlabel="hours of steps")
        axes[0].legend(loc="lower right", ncols=4 if not narrow else 2)
        if watts is not None:
            axes[1].plot(*watts, color=DEEP_TONE, linewidth=1.0)
            axes[1].set(ylabel="watts, leading worker", xlabel="hours since the last attempt began")
        for panel in axes:
            panel.set_xlim(left=0)
            panel.set_ylim(bottom=0)
        return style.png(figure), style.svg(figure)
