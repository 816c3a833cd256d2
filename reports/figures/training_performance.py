"""02 training performance: every measured step's time, and what share of the tokens was padding."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from bench.records.result import TrialStatus
from reports import formatting
from reports.figures.drawing import glyphs, lines, row_chart, text_size
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.layout import Head, Sheet, board, names_width_in, rows_height_in
from reports.figures.drawing.palette import BAND, INK, MARKERS, MUTED, PAPER
from reports.read.run import Run
from reports.summary.summary import ConfigurationRow, Summary

_ROW_IN = 0.52
_LEGEND_IN = 0.3
_LANES = 0.42  # height of a row that its workers' lanes share, in row units
_FURTHEST_PERCENT = 60.0  # a step that was stopped for a while would squeeze all others into one line
_MOST_STEPS = 1_500  # marks in one figure: more of them hide each other and make the page heavy


@dataclass(frozen=True, kw_only=True)
class TrainingPerformanceData:
    """Rows, and their steps: configuration, worker, off_percent of the configuration's step time; thinned evenly."""

    over: Head
    rows: tuple[ConfigurationRow, ...]
    steps: pd.DataFrame

    @property
    def caption(self) -> str:
        return (
            "Steps: each mark is one step of one worker, the line is the configuration's step time; something "
            "disturbed the steps far to the right. Tokens: hatched is padding, which is computed for nothing."
        )

    @property
    def alt(self) -> str:
        configurations = [
            f"{row.label}: median step {formatting.estimate(row.measured.step_time_sec, ' s')}, "
            f"{formatting.number(row.measured.padding_percent, 0)} % of token positions padding"
            for row in self.rows
            if row.measured is not None
        ]
        return "Step times and tokens per second. " + "; ".join(configurations) + "."

    def draw(self, sheet: Sheet) -> Figure:
        names = [row.label for row in self.rows]
        rows_in = rows_height_in(len(names), _ROW_IN, sheet)
        legend_in = _LEGEND_IN + (0.2 if sheet.narrow else 0.0)
        drawing = board(self.over, sheet, (2 if sheet.narrow else 1) * rows_in + legend_in)
        places = drawing.columns(1 if sheet.narrow else 2, left_in=names_width_in(names, sheet), gap_in=0.35)
        left = drawing.panel(places[0][0], 0.0, places[0][1], rows_in)
        glyphs.label_rows(left, names, sheet)
        _step_times(left, self, sheet)
        right = drawing.panel(places[-1][0], rows_in + legend_in if sheet.narrow else 0.0, places[-1][1], rows_in)
        glyphs.label_rows(right, names, sheet, shown=False)
        _tokens(right, self.rows, sheet)
        return drawing.figure


def gather(summary: Summary, run: Run) -> TrainingPerformanceData | None:
    drawn = row_chart.drawn(summary)
    if not drawn:
        return None
    steps = run.steps
    mine = steps[
        (steps["status"] == TrialStatus.SUCCEEDED.value)
        & (steps["phase"] == "measure")
        & steps["configuration"].isin([row.label for row in drawn])
    ][["configuration", "worker", "step_time_sec"]]
    middle = {row.label: row.measured.step_time_sec.value for row in drawn if row.measured is not None}
    off = 100.0 * (mine["step_time_sec"] / mine["configuration"].map(middle).astype(float) - 1.0)
    mine = mine[["configuration", "worker"]].assign(off_percent=off)
    every = -(-len(mine) // _MOST_STEPS)
    shown = mine.iloc[::every] if every > 1 else mine
    thinned = f"1 in {every} of {len(mine):,} steps drawn" if every > 1 else ""
    title = _title(drawn, mine["off_percent"])
    return TrainingPerformanceData(
        over=head(summary, title, *row_chart.facts(summary), thinned),
        rows=drawn,
        steps=shown.astype({"configuration": "object", "worker": "object"}).reset_index(drop=True),
    )


def _title(drawn: tuple[ConfigurationRow, ...], off_percent: pd.Series) -> str:
    shares = {row.label: row.measured.padding_percent for row in drawn if row.measured is not None}
    least, most = min(shares, key=lambda label: shares[label]), max(shares, key=lambda label: shares[label])
    low, high = formatting.number(shares[least], 0), formatting.number(shares[most], 0)
    spent = f"{high} % of the tokens computed"
    if low != high:
        spent = f"{high} % of the tokens that {most} computes, {low} % of {least}'s"
    near = formatting.number(float(off_percent.abs().quantile(0.9)), 1)
    return f"Padding takes {spent}; 9 in 10 steps are within {near} % of their configuration's step time"


TRAINING_PERFORMANCE = Chart(
    name="02_training_performance",
    title="Training performance",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
)


def _step_times(axes: Any, data: TrainingPerformanceData, sheet: Sheet) -> None:
    workers = sorted(data.steps["worker"].unique(), key=formatting.natural_key)
    few = len(workers) <= len(MARKERS)
    lane = _LANES / max(1, len(workers))
    top_of, tone_of = {}, {}
    for y, row in enumerate(data.rows):
        if row.measured is None:
            continue
        median = row.measured.step_time_sec
        words = f"{formatting.estimate(median, ' s')}, n = {median.n}"
        top = glyphs.label_mark(axes, y, words, row.label, sheet) - 0.18
        bottom = top + _LANES
        if median.low is not None and median.high is not None:
            ends = [100.0 * (end / median.value - 1.0) for end in (median.low, median.high)]
            axes.fill_betweenx([top, bottom], *ends, color=BAND, linewidth=0, zorder=1)
        axes.plot([0.0] * 2, [top - 0.03, bottom + 0.03], color=INK, linewidth=1.4, zorder=2)
        top_of[row.label], tone_of[row.label] = top, row_chart.tone(row)
    # One worker's lane is shared by its steps one after another, so that equal times do not hide each other.
    same = data.steps.groupby(["configuration", "worker"], sort=False, observed=True)
    within = same.cumcount() / same["worker"].transform("size")
    lanes = data.steps["worker"].map({worker: number for number, worker in enumerate(workers)}) + within
    x = data.steps["off_percent"].clip(upper=_FURTHEST_PERCENT)
    y_of = data.steps["configuration"].map(top_of).astype(float) + lane * lanes
    tones = data.steps["configuration"].map(tone_of)
    # As few collections as there are markers: a line per row and worker took far longer.
    everyone = pd.Series(data=True, index=data.steps.index)
    groups = [(data.steps["worker"] == worker, mark) for worker, mark in zip(workers, MARKERS, strict=False)]
    for mine, marker in groups if few else [(everyone, "o")]:
        axes.scatter(
            x[mine],
            y_of[mine],
            marker=marker,
            s=16,
            c=tones[mine].tolist(),
            edgecolors=INK,
            linewidths=0.4,
            alpha=0.85,
            zorder=3,
        )
    beyond = bool((data.steps["off_percent"] > _FURTHEST_PERCENT).any())
    edge = f" ({_FURTHEST_PERCENT:.0f}: or more)" if beyond else ""
    axes.set_title(f"{'Steps' if sheet.narrow else 'Every measured step'}, % off the step time{edge}")
    lines.value_axis(axes, 4 if sheet.narrow else 7)
    if few and len(workers) > 1:
        _worker_legend(axes, workers, sheet)


def _worker_legend(axes: Any, workers: list[str], sheet: Sheet) -> None:
    shown = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=MARKERS[number],
            markersize=4.2,
            markerfacecolor=PAPER,
            markeredgecolor=INK,
            label=text_size.shorten(worker, 1.3 if sheet.narrow else 0.95, 8.0),
        )
        for number, worker in enumerate(workers)
    ]
    axes.legend(
        handles=shown,
        ncols=2 if sheet.narrow else 4,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        # Below the tick labels by a fixed distance: a share of the panel's height would grow with its rows.
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, -20 / 72, axes.figure.dpi_scale_trans),
        borderaxespad=0.0,
        handletextpad=0.2,
        columnspacing=1.2,
    )


def _tokens(axes: Any, drawn: tuple[ConfigurationRow, ...], sheet: Sheet) -> None:
    longest = 0.0
    for y, row in enumerate(drawn):
        if row.measured is None:
            continue
        useful, total = row.measured.useful_tokens_per_sec, row.measured.tokens_per_sec
        padding = total.value - useful.value
        words = (
            f"{formatting.number(useful.value)} useful + {formatting.number(padding)} padding "
            f"({formatting.number(row.measured.padding_percent, 0)} %)"
        )
        middle = glyphs.label_mark(axes, y, words, row.label, sheet)
        axes.barh(middle, useful.value, height=0.36, color=row_chart.tone(row), linewidth=0)
        look = {"facecolor": PAPER, "edgecolor": MUTED, "hatch": "////", "linewidth": 0.8}
        axes.barh(middle, padding, left=useful.value, height=0.36, **look)
        glyphs.whisker(axes, middle, useful.low, useful.high)
        longest = max(longest, total.value, useful.high or 0.0)
    axes.set_xlim(0.0, longest * 1.06 or 1.0)
    axes.set_title("Tokens per second and worker" if sheet.narrow else "Tokens per second, per worker")
    lines.value_axis(axes)
