"""10 loss curves: does every configuration learn, and alike?"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from bench.records.result import End
from reports import text
from reports.figures.drawing import lines, rows, text_size
from reports.figures.drawing.board import Head, Sheet, board
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.palette import BAND, DEEP_TONE, MUTED, OTHER_TONE
from reports.read.run import Run
from reports.summary.summary import Summary

_PANEL_IN = 1.85
_MOST_POINTS = 300

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One configuration: the median over its trials at each step, the range they span, and its last warm-up step."""

    name: str
    step: Floats
    median: Floats
    low: Floats
    high: Floats
    warmup: int
    n_trials: int


@dataclass(frozen=True, kw_only=True)
class Data:
    over: Head
    curves: tuple[Curve, ...]

    @property
    def caption(self) -> str:
        return "Configurations whose curves fall alike learn alike; one whose curve stays above the others learns less."

    @property
    def alt(self) -> str:
        curves = [
            f"{curve.name}: {text.number(float(curve.median[0]), 2)} at step {curve.step[0]:.0f}, "
            f"{text.number(float(curve.median[-1]), 2)} at step {curve.step[-1]:.0f}"
            for curve in self.curves
        ]
        return "Loss over optimizer steps. " + "; ".join(curves) + "."

    def draw(self, sheet: Sheet) -> Figure:
        columns = min(2 if sheet.narrow else 4, len(self.curves))
        drawing = board(self.over, sheet, _PANEL_IN * math.ceil(len(self.curves) / columns))
        places = drawing.columns(columns, left_in=0.62, gap_in=0.22)
        first = None
        for number, curve in enumerate(self.curves):
            left, width = places[number % columns]
            axes = drawing.panel(left, _PANEL_IN * (number // columns), width, _PANEL_IN - 0.16)
            if first is not None:
                axes.sharey(first)
            first = first or axes
            _draw_curve(axes, curve, leftmost=number % columns == 0)
            axes.set_title(text_size.shorten(curve.name, width, 9.5, bold=True))
        return drawing.figure


def gather(summary: Summary, run: Run) -> Data | None:
    drawn = [row.label for row in rows.drawn(summary)]
    steps = run.steps
    mine = steps[(steps["status"] == End.SUCCEEDED.value) & steps["loss"].notna() & steps["configuration"].isin(drawn)]
    if mine.empty:
        return None
    curves = []
    for label in drawn:
        own = mine[mine["configuration"] == label]
        if own.empty:
            continue
        at = own.groupby("step")["loss"].agg(["median", "min", "max"])
        every = -(-len(at) // _MOST_POINTS)
        at = at.iloc[::every]
        warm = own.loc[own["phase"] == "warmup", "step"]
        curves.append(
            Curve(
                name=label,
                step=at.index.to_numpy(float),
                median=at["median"].to_numpy(float),
                low=at["min"].to_numpy(float),
                high=at["max"].to_numpy(float),
                warmup=0 if warm.empty else int(warm.max()),
                n_trials=int(own["trial_id"].nunique()),
            )
        )
    trials = sorted({curve.n_trials for curve in curves})
    n = str(trials[0]) if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
    over = f"median over n = {n} trials of a configuration, with their range" if trials[-1] > 1 else "n = 1 trial each"
    which = rows.subset(summary)
    title = _title(curves, "configuration drawn" if which else "configuration")
    return Data(over=head(summary, title, over, which, "nats per token"), curves=tuple(curves))


def _title(curves: list[Curve], each: str) -> str:
    rising = [curve.name for curve in curves if len(curve.median) > 1 and curve.median[-1] >= curve.median[0]]
    if rising:
        return f"The loss did not fall in {text.some(rising, 3)}"
    if all(len(curve.median) == 1 for curve in curves):
        return "The loss of a single step: nothing to follow yet"
    return f"The loss falls in every {each}" if len(curves) > 1 else f"The loss falls in {curves[0].name}"


def _draw_curve(axes: Any, curve: Curve, *, leftmost: bool) -> None:
    if curve.warmup:
        axes.axvspan(0.5, curve.warmup + 0.5, color=BAND, linewidth=0, zorder=0)
    if curve.n_trials > 1:
        axes.fill_between(curve.step, curve.low, curve.high, color=OTHER_TONE, alpha=0.4, linewidth=0)
    axes.plot(curve.step, curve.median, color=DEEP_TONE, linewidth=1.6, marker="o" if len(curve.step) == 1 else None)
    lines.value_axis(axes, integer=True)
    axes.set_xlabel("step (band: warm-up)", labelpad=2)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=MUTED, labelleft=leftmost)
    if leftmost:
        axes.set_ylabel("loss, nats per token")


LOSS_CURVES = Chart(
    name="10_loss_curves",
    title="Loss curves",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
)
