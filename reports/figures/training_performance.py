"""Figure 02, training performance: the time of every measured step."""

from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import lines, row_chart
from reports.figures.drawing.layout import (
    Chart,
    Header,
    Sheet,
    create_layout,
    make_header,
    names_width_in,
    rows_height_in,
)
from reports.figures.drawing.style import BAND, INK, MARKERS, PAPER, shorten_text
from reports.read.run import Run
from reports.summary.summary import ConfigurationRow, Summary

_ROW_HEIGHT_IN = 0.52
_LEGEND_IN = 0.3
_LANES_HEIGHT = 0.42  # part of a row's height for its workers' lanes
_MAX_OFFSET_PERCENT = 60.0  # an interrupted step would compress all others into one line
_MAX_STEPS = 1_500  # marks in one figure; more would overlap and enlarge the page


@dataclass(frozen=True, kw_only=True)
class TrainingPerformanceData:
    """Rows, and their steps: configuration, worker, off_percent of the configuration's step time; thinned evenly."""

    header: Header
    rows: tuple[ConfigurationRow, ...]
    steps: pd.DataFrame

    @property
    def caption(self) -> str:
        return (
            "Each mark is one step of one worker, the line is the configuration's step time; steps far to the right "
            "were disturbed."
        )

    @property
    def alt(self) -> str:
        configurations = [
            f"{row.label}: median step {formatting.estimate(row.measured.step_time_sec, ' s')}"
            for row in self.rows
            if row.measured is not None
        ]
        return "Step times. " + "; ".join(configurations) + "."

    def draw(self, sheet: Sheet) -> Figure:
        names = [row.label for row in self.rows]
        rows_in = rows_height_in(len(names), _ROW_HEIGHT_IN, sheet)
        legend_in = _LEGEND_IN + (0.2 if sheet.is_narrow else 0.0)
        layout = create_layout(self.header, sheet, rows_in + legend_in)
        ((left, width),) = layout.columns(1, left_in=names_width_in(names, sheet), gap_in=0.0)
        axes = layout.panel(left, 0.0, width, rows_in)
        row_chart.label_rows(axes, names, sheet)
        _draw_step_times(axes, self, sheet)
        return layout.figure


def gather(summary: Summary, run: Run) -> TrainingPerformanceData | None:
    rows = row_chart.drawn_rows(summary)
    if not rows:
        return None
    steps = run.steps
    measured = steps[
        (steps["status"] == TrialStatus.SUCCEEDED.value)
        & (steps["phase"] == "measure")
        & steps["configuration"].isin([row.label for row in rows])
    ][["configuration", "worker", "step_time_sec"]]
    step_time_of = {row.label: row.measured.step_time_sec.value for row in rows if row.measured is not None}
    offsets = 100.0 * (measured["step_time_sec"] / measured["configuration"].map(step_time_of).astype(float) - 1.0)
    measured = measured[["configuration", "worker"]].assign(off_percent=offsets)
    stride = -(-len(measured) // _MAX_STEPS)
    thinned = measured.iloc[::stride] if stride > 1 else measured
    thinned_note = f"1 in {stride} of {len(measured):,} steps drawn" if stride > 1 else ""
    title = _title(measured["off_percent"])
    return TrainingPerformanceData(
        header=make_header(summary, title, *row_chart.header_facts(summary), thinned_note),
        rows=rows,
        steps=thinned.astype({"configuration": "object", "worker": "object"}).reset_index(drop=True),
    )


def _title(off_percent: pd.Series) -> str:
    percentile = formatting.number(float(off_percent.abs().quantile(0.9)), 1)
    return f"9 in 10 steps are within {percentile} % of their configuration's step time"


TRAINING_PERFORMANCE = Chart(
    name="02_training_performance",
    title="Training performance",
    needs="a training trial that succeeds",
    command="inv bench --quick",
    gather=gather,
)


def _draw_step_times(axes: Any, data: TrainingPerformanceData, sheet: Sheet) -> None:
    workers = sorted(data.steps["worker"].unique(), key=formatting.natural_key)
    has_markers = len(workers) <= len(MARKERS)
    lane = _LANES_HEIGHT / max(1, len(workers))
    top_of, tone_of = {}, {}
    for y, row in enumerate(data.rows):
        if row.measured is None:
            continue
        median = row.measured.step_time_sec
        text = f"{formatting.estimate(median, ' s')}, n = {median.n}"
        top = row_chart.label_mark(axes, y, text, row.label, sheet) - 0.18
        bottom = top + _LANES_HEIGHT
        if median.low is not None and median.high is not None:
            ends = [100.0 * (end / median.value - 1.0) for end in (median.low, median.high)]
            axes.fill_betweenx([top, bottom], *ends, color=BAND, linewidth=0, zorder=1)
        axes.plot([0.0] * 2, [top - 0.03, bottom + 0.03], color=INK, linewidth=1.4, zorder=2)
        top_of[row.label], tone_of[row.label] = top, row_chart.row_tone(row)
    # A worker's steps are spread over its lane in order, so that equal times do not hide each other.
    groups_of_steps = data.steps.groupby(["configuration", "worker"], sort=False, observed=True)
    within = groups_of_steps.cumcount() / groups_of_steps["worker"].transform("size")
    lanes = data.steps["worker"].map({worker: number for number, worker in enumerate(workers)}) + within
    x = data.steps["off_percent"].clip(upper=_MAX_OFFSET_PERCENT)
    y_of = data.steps["configuration"].map(top_of).astype(float) + lane * lanes
    tones = data.steps["configuration"].map(tone_of)
    # One collection per marker: a line per row and worker took far longer.
    all_steps = pd.Series(data=True, index=data.steps.index)
    groups = [(data.steps["worker"] == worker, mark) for worker, mark in zip(workers, MARKERS, strict=False)]
    for is_shown, marker in groups if has_markers else [(all_steps, "o")]:
        axes.scatter(
            x[is_shown],
            y_of[is_shown],
            marker=marker,
            s=16,
            c=tones[is_shown].tolist(),
            edgecolors=INK,
            linewidths=0.4,
            alpha=0.85,
            zorder=3,
        )
    has_clipped = bool((data.steps["off_percent"] > _MAX_OFFSET_PERCENT).any())
    clipped_note = f" ({_MAX_OFFSET_PERCENT:.0f}: or more)" if has_clipped else ""
    axes.set_title(f"{'Steps' if sheet.is_narrow else 'Every measured step'}, % off the step time{clipped_note}")
    lines.format_x_axis(axes, 4 if sheet.is_narrow else 7)
    if has_markers and len(workers) > 1:
        _worker_legend(axes, workers, sheet)


def _worker_legend(axes: Any, workers: list[str], sheet: Sheet) -> None:
    handles = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=MARKERS[number],
            markersize=4.2,
            markerfacecolor=PAPER,
            markeredgecolor=INK,
            label=shorten_text(worker, 1.3 if sheet.is_narrow else 0.95, 8.0),
        )
        for number, worker in enumerate(workers)
    ]
    axes.legend(
        handles=handles,
        ncols=2 if sheet.is_narrow else 4,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        # A fixed distance below the tick labels; a share of the panel's height would grow with its rows.
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, -20 / 72, axes.figure.dpi_scale_trans),
        borderaxespad=0.0,
        handletextpad=0.2,
        columnspacing=1.2,
    )
