"""Figure 10, loss: of each configuration of a benchmark over its steps, or of a training over its time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from bench.records.status import TrialStatus
from bench.records.training import Evaluation
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import MARGIN_IN, RIGHT_IN, Chart, Header, create_layout, make_header
from reports.figures.drawing.style import (
    ACCENT_TONE,
    BAND,
    DEEP_TONE,
    MUTED,
    OTHER_TONE,
    shorten_text,
    text_width_in,
)
from reports.read.loaded_run import Run
from reports.summary.summary import PROFILE_NOTES, Summary
from reports.training import sentences
from reports.training.training_facts import TrainingReport

_MAX_POINTS = 300
_LABEL_HEIGHT_IN, _LABEL_SIZE = 0.2, 8.5
_NAME_IN = 1.9  # maximum width of the name in a label
_FEW_POINTS = 3  # a line through fewer held-out losses would suggest a course that was not measured
_MARKERS, _LINE_STYLES = "os^Dv><P", ("-", "--", "-.", ":")  # no two curves have the same pair
_MARKS_PER_CURVE = 8
_UNITS = ((2 * 3600.0, 3600.0, "hours"), (120.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """A curve: losses at positions `x`, the useful tokens up to the last, and its tone.

    `held_out` are positions and evaluations of a training.
    """

    name: str
    x: Floats
    loss: Floats
    useful_tokens: int
    tone: str
    held_out: tuple[tuple[float, Evaluation], ...] = ()

    @property
    def last_loss(self) -> float:
        return float(self.loss[-1])

    @property
    def is_falling(self) -> bool:
        return len(self.loss) == 1 or self.last_loss < float(self.loss[0])


@dataclass(frozen=True, kw_only=True)
class LossFigure:
    """Curves over `x_title`; the band ends at `warmup`."""

    header: Header
    curves: tuple[LossCurve, ...]
    x_title: str
    caption: str
    warmup: float = 0.0

    @property
    def alt(self) -> str:
        curves = [
            f"{curve.name}: {formatting.number(float(curve.loss[0]), 2)} at {formatting.number(float(curve.x[0]))}, "
            f"{formatting.number(curve.last_loss, 2)} at {formatting.number(float(curve.x[-1]))}"
            for curve in self.curves
        ]
        return f"Loss over {self.x_title}. " + "; ".join(curves) + "."

    def draw(self) -> Figure:
        height_in = max(2.4, _LABEL_HEIGHT_IN * (len(self.curves) + 1))
        layout = create_layout(self.header, height_in + 0.9)
        room = max(text_width_in(_label(curve), _LABEL_SIZE) for curve in self.curves) + 0.7
        (axes,) = layout.panels(1, MARGIN_IN + 0.5, 0.0, height_in + 0.7, RIGHT_IN + room)
        _draw(axes, self)
        return layout.figure


def gather(summary: Summary, run: Run) -> LossFigure | None:
    tones = {row.label: row_chart.row_tone(row) for row in row_chart.drawn_rows(summary)}
    steps = run.steps
    usable = steps[
        (steps["status"] == TrialStatus.SUCCEEDED.value)
        & steps["loss"].notna()
        & steps["configuration"].isin(list(tones))
    ]
    if usable.empty:
        return None
    rows_by_label = {str(label): rows for label, rows in usable.groupby("configuration", observed=True)}
    best = summary.recommended_label
    drawn = [label for label in tones if label in rows_by_label]
    curves = sorted(
        (_curve(label, rows_by_label[label], DEEP_TONE if label == best else tones[label]) for label in drawn),
        key=lambda curve: -curve.last_loss,  # as the curves end, so that the legend has their order
    )
    trials = [int(rows_by_label[label]["trial_id"].nunique()) for label in drawn]
    medians = f"medians over n = {formatting.number_range(trials)} trials of a configuration"
    subset_note = row_chart.describe_subset(summary)
    title = _title(curves, "configuration drawn" if subset_note else "configuration")
    n_text = medians if max(trials) > 1 else "n = 1 trial each"
    return LossFigure(
        header=make_header(summary, title, n_text, subset_note, "nats per token"),
        curves=tuple(curves),
        x_title="optimizer step",
        warmup=float(usable.loc[usable["phase"] == "warmup", "step"].max()) + 0.5
        if (usable["phase"] == "warmup").any()
        else 0.0,
        caption=(
            "Similar curves mean similar learning per step; a curve above the others learns less. "
            "Each curve has its own marker; next to its name are its last loss and the useful tokens up to it. The "
            "band is the warm-up."
        ),
    )


def gather_training(training: TrainingReport) -> LossFigure | None:
    """Gather the loss of each step over the time of the steps, and held-out losses; None if no step was done."""
    record, total = training.record, training.steps_sec
    if not record.steps.step:
        return None
    scale, unit = next((scale, unit) for least, scale, unit in _UNITS if total >= least)
    at = [seconds / scale for seconds in training.seconds]
    position = dict(zip(record.steps.step, at, strict=True)) | {0: 0.0}
    stride = -(-len(at) // _MAX_POINTS)
    curve = LossCurve(
        name="training",
        x=np.array(at[::stride]),
        loss=np.array(record.steps.loss[::stride]),
        useful_tokens=sum(record.steps.tokens),
        tone=OTHER_TONE,
        held_out=tuple((position[each.step], each) for each in record.evaluations if each.step in position),
    )
    caption = "The line is the loss of each step, in nats per target token."
    if curve.held_out:
        caption += " Orange points are the loss of held-out examples with its 95 % interval over examples."
    facts = [training.device, f"profile {training.run.profile}", f"run {training.run.run_id}"]
    if training.price is not None:
        facts.append(f"{formatting.dollars(training.price * record.world_size)} an hour of all workers")
    header = Header(
        title=sentences.loss_and_cost(training) or sentences.outcome(training),
        facts=tuple(facts),
        note=PROFILE_NOTES.get(training.run.profile),
    )
    return LossFigure(header=header, curves=(curve,), x_title=f"{unit} of steps", caption=caption)


def _curve(label: str, rows: pd.DataFrame, tone: str) -> LossCurve:
    """Return the median over the configuration's trials at each step."""
    medians = rows.groupby("step")["loss"].median()
    # Thinned from the end: the last step's loss is in the label.
    medians = medians.iloc[:: -math.ceil(len(medians) / _MAX_POINTS)].iloc[::-1]
    return LossCurve(
        name=label,
        x=medians.index.to_numpy(float),
        loss=medians.to_numpy(float),
        useful_tokens=int(rows.groupby("trial_id", observed=True)["useful_tokens"].sum().median()),
        tone=tone,
    )


def _title(curves: Sequence[LossCurve], noun: str) -> str:
    rising = [curve.name for curve in curves if not curve.is_falling]
    if rising:
        return f"The loss did not fall in {formatting.first_n(rising, 3)}"
    low, high = (formatting.number(end(curve.last_loss for curve in curves), 2) for end in (min, max))
    verb = "ends" if all(len(curve.loss) == 1 for curve in curves) else "falls"  # a single step shows no trend
    return f"The loss {verb} in every {noun}, at {low if low == high else f'{low} to {high}'}"


def _label(curve: LossCurve) -> str:
    name, tokens = shorten_text(curve.name, _NAME_IN, _LABEL_SIZE), curve.useful_tokens
    amount = f"{tokens:,}" if tokens < 10_000 else f"{formatting.number(tokens / 1000, 0)} k"
    return f"{name}: {formatting.number(curve.last_loss, 2)}, {amount} tokens"


def _draw(axes: Any, figure: LossFigure) -> None:
    """Draw the curves, named at the right. One that does not fall stands out."""
    if figure.warmup:
        axes.axvspan(0.5, figure.warmup, color=BAND, linewidth=0, zorder=0)
    for number, curve in enumerate(figure.curves):
        tone = curve.tone if curve.is_falling or curve.held_out else ACCENT_TONE
        stride = max(1, len(curve.x) // _MARKS_PER_CURVE)
        axes.plot(
            curve.x,
            curve.loss,
            label=_label(curve),
            color=tone,
            linewidth=2.0 if tone in (DEEP_TONE, ACCENT_TONE) else 1.0,
            linestyle=_LINE_STYLES[number // len(_MARKERS) % len(_LINE_STYLES)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4.5,
            markevery=(number % stride, stride),  # shifted, so that markers of close curves do not hide each other
        )
        _draw_held_out(axes, curve)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=_LABEL_SIZE, borderaxespad=0.0, labelcolor=MUTED)
    axes.set_title(f"Loss by {figure.x_title}")
    axes.set_xlabel(figure.x_title, labelpad=2)
    row_chart.format_x_axis(axes, integer=figure.x_title.endswith("step"))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=MUTED)


def _draw_held_out(axes: Any, curve: LossCurve) -> None:
    if not curve.held_out:
        return
    losses = [evaluation.loss for _, evaluation in curve.held_out]
    ends = [
        [abs(each.loss - end) if (end := getattr(each, name)) is not None else 0.0 for _, each in curve.held_out]
        for name in ("low", "high")
    ]
    line = "-" if len(losses) >= _FEW_POINTS else "none"
    look = {"color": ACCENT_TONE, "marker": "o", "markersize": 5, "linewidth": 1.4, "capsize": 3, "zorder": 4}
    axes.errorbar([x for x, _ in curve.held_out], losses, yerr=ends, linestyle=line, clip_on=False, **look)


LOSS = Chart(
    name="10_loss_curves",
    title="Loss curves",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
    is_folded=True,
)
