"""Figure 10, loss curves: shows whether every configuration learns, and equally well."""

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
from reports import formatting
from reports.figures.drawing import lines, row_chart
from reports.figures.drawing.layout import MARGIN_IN, Chart, Header, Sheet, create_layout, make_header
from reports.figures.drawing.style import (
    ACCENT_TONE,
    BAND,
    DEEP_TONE,
    MUTED,
    OTHER_TONE,
    PAPER,
    shorten_text,
    text_width_in,
)
from reports.read.run import Run
from reports.summary import text
from reports.summary.summary import Summary

_MAX_POINTS = 300
_LABEL_HEIGHT_IN = 0.2
_MAX_NAME_IN = 2.8  # maximum width of the name in a label
_NOTABLE_LOSS_GAP = 0.1  # nats per token above the lowest final loss; the title names a configuration beyond it

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CurveMarker:
    """A marker of matplotlib, filled or hollow, and the character of the same shape for the label."""

    shape: str
    is_hollow: bool
    character: str


MARKERS = tuple(
    CurveMarker(shape=shape, is_hollow=is_hollow, character=character)
    for is_hollow, characters in (
        (False, "\N{BLACK CIRCLE}\N{BLACK SQUARE}\N{BLACK UP-POINTING TRIANGLE}\N{BLACK DIAMOND}"
                "\N{BLACK DOWN-POINTING TRIANGLE}\N{BLACK RIGHT-POINTING TRIANGLE}\N{BLACK LEFT-POINTING TRIANGLE}"),
        (True, "\N{WHITE CIRCLE}\N{WHITE SQUARE}\N{WHITE UP-POINTING TRIANGLE}\N{WHITE DIAMOND}"
               "\N{WHITE DOWN-POINTING TRIANGLE}\N{WHITE RIGHT-POINTING TRIANGLE}\N{WHITE LEFT-POINTING TRIANGLE}"),
    )
    for shape, character in zip(("o", "s", "^", "D", "v", ">", "<"), characters, strict=True)
)  # fmt: skip
_MARKS_PER_CURVE = 8
_TONES, _LINE_STYLES = (OTHER_TONE, MUTED), ("-", "--", "-.")  # neither the baseline nor recommended


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """One configuration: the median over its trials at each step, its last warm-up step, the useful tokens of a worker
    up to the last step, its tone, and its marker, which no other curve has."""

    name: str
    step: Floats
    median: Floats
    warmup: int
    useful_tokens: int
    n_trials: int
    tone: str
    marker: CurveMarker

    @property
    def last_loss(self) -> float:
        return float(self.median[-1])

    @property
    def is_falling(self) -> bool:
        return len(self.median) == 1 or self.last_loss < float(self.median[0])


@dataclass(frozen=True, kw_only=True)
class LossCurvesData:
    header: Header
    curves: tuple[LossCurve, ...]

    @property
    def caption(self) -> str:
        return (
            "Similar curves mean similar learning per step; a curve above the others learns less. "
            "Each curve has its own marker. Labels show the last loss and the useful tokens up to it. The band is the "
            "warm-up."
        )

    @property
    def alt(self) -> str:
        curves = [
            f"{curve.name}: {formatting.number(float(curve.median[0]), 2)} at step {curve.step[0]:.0f}, "
            f"{formatting.number(curve.last_loss, 2)} at step {curve.step[-1]:.0f}"
            for curve in self.curves
        ]
        return "Loss over optimizer steps. " + "; ".join(curves) + "."

    def draw(self, sheet: Sheet) -> Figure:
        height_in = max(2.4, _LABEL_HEIGHT_IN * len(self.curves))
        layout = create_layout(self.header, sheet, height_in + 0.9)
        ((left, width),) = layout.columns(1, left_in=MARGIN_IN + 0.5, gap_in=0.0)
        labels = [_label(curve, sheet) for curve in self.curves]
        room = min(0.45 * width, max(text_width_in(label, 8.5) for label in labels))
        axes = layout.panel(left, 0.0, width - room - 0.1, height_in + 0.7)
        _draw(axes, self.curves, [shorten_text(label, room, 8.5) for label in labels], height_in)
        return layout.figure


def gather(summary: Summary, run: Run) -> LossCurvesData | None:
    tones = {row.label: row_chart.row_tone(row) for row in row_chart.drawn_rows(summary)}
    steps = run.steps
    usable = steps[
        (steps["status"] == TrialStatus.SUCCEEDED.value)
        & steps["loss"].notna()
        & steps["configuration"].isin(list(tones))
    ]
    if usable.empty:
        return None
    rows_by_label = {
        str(label): rows_of_label for label, rows_of_label in usable.groupby("configuration", observed=True)
    }
    best = text.recommended_label(summary)
    drawn = [label for label in tones if label in rows_by_label]
    curves = tuple(
        _curve(label, rows_by_label[label], DEEP_TONE if label == best else tones[label], MARKERS[number])
        for number, label in enumerate(drawn)
    )
    trials = [curve.n_trials for curve in curves]
    has_repeats = max(trials) > 1
    n_text = (
        f"medians over n = {formatting.number_range(trials)} trials of a configuration"
        if has_repeats
        else "n = 1 trial each"
    )
    subset_note = row_chart.describe_subset(summary)
    title = _title(curves, "configuration drawn" if subset_note else "configuration")
    return LossCurvesData(header=make_header(summary, title, n_text, subset_note, "nats per token"), curves=curves)


def _curve(label: str, rows: pd.DataFrame, tone: str, marker: CurveMarker) -> LossCurve:
    medians = rows.groupby("step")["loss"].median()
    medians = medians.iloc[:: -math.ceil(len(medians) / _MAX_POINTS)].iloc[
        ::-1
    ]  # keeps the last step, whose loss is in the label
    warmup_steps = rows.loc[rows["phase"] == "warmup", "step"]
    return LossCurve(
        name=label,
        step=medians.index.to_numpy(float),
        median=medians.to_numpy(float),
        warmup=0 if warmup_steps.empty else int(warmup_steps.max()),
        useful_tokens=int(rows.groupby("trial_id", observed=True)["useful_tokens"].sum().median()),
        n_trials=int(rows["trial_id"].nunique()),
        tone=tone,
        marker=marker,
    )


def _title(curves: Sequence[LossCurve], noun: str) -> str:
    rising = [curve.name for curve in curves if not curve.is_falling]
    if rising:
        return f"The loss did not fall in {formatting.first_n(rising, 3)}"
    if all(len(curve.median) == 1 for curve in curves):
        return "The loss of a single step: no trend yet"
    if len(curves) == 1:
        return f"The loss falls in {curves[0].name}, to {formatting.number(curves[0].last_loss, 2)}"
    low, high = min(curve.last_loss for curve in curves), max(curves, key=lambda curve: curve.last_loss)
    ends = f"to between {formatting.number(low, 2)} and {formatting.number(high.last_loss, 2)}"
    title = f"The loss falls in every {noun}, {ends}"
    return f"{title}; {high.name} learns least" if high.last_loss > low + _NOTABLE_LOSS_GAP else title


def _label(curve: LossCurve, sheet: Sheet) -> str:
    name = f"{curve.marker.character} {shorten_text(curve.name, _MAX_NAME_IN, 8.5)}"
    if sheet.is_narrow:
        return name
    return (
        f"{name}: {formatting.number(curve.last_loss, 2)}, {formatting.number(curve.useful_tokens / 1000, 0)} k tokens"
    )


def _draw(axes: Any, curves: Sequence[LossCurve], labels: Sequence[str], height_in: float) -> None:
    warmup = max(curve.warmup for curve in curves)
    if warmup:
        axes.axvspan(0.5, warmup + 0.5, color=BAND, linewidth=0, zorder=0)
    for number, curve in enumerate(curves):
        tone = curve.tone if curve.tone != OTHER_TONE else _TONES[number % len(_TONES)]
        tone = tone if curve.is_falling else ACCENT_TONE
        bold = tone in (DEEP_TONE, ACCENT_TONE)
        stride = max(1, len(curve.step) // _MARKS_PER_CURVE)
        axes.plot(
            curve.step,
            curve.median,
            color=tone,
            linewidth=2.0 if bold else 1.0,
            linestyle="-" if bold or curve.tone != OTHER_TONE else _LINE_STYLES[number % len(_LINE_STYLES)],
            marker=curve.marker.shape,
            markerfacecolor=PAPER if curve.marker.is_hollow else tone,
            markersize=4.5,
            markevery=(number % stride, stride),  # shifted, so that markers of close curves do not hide each other
            zorder=3 if bold else 2,
        )
    axes.set_title("Loss by optimizer step")
    axes.set_xlabel("step", labelpad=2)
    axes.set_xlim(0.5, max(1.5, *(float(curve.step[-1]) for curve in curves)))
    lines.format_x_axis(axes, integer=True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=MUTED)
    ends = [
        (float(curve.step[-1]), curve.last_loss, label, ACCENT_TONE if not curve.is_falling else MUTED)
        for curve, label in zip(curves, labels, strict=True)
    ]
    lines.label_ends(axes, ends, height_in)


LOSS_CURVES = Chart(
    name="10_loss_curves",
    title="Loss curves",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
    is_folded=True,
)
