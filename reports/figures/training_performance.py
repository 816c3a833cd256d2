"""02 training performance: every measured step's time, what share of the tokens was padding, and the loss falling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import ScaledTranslation

from bench.result import End
from reports import text
from reports.figures import measure, style
from reports.figures.style import Chart, Sheet
from reports.load import Run
from reports.summary import Row, Summary

_ROW_IN = 0.72
_LOSS_IN = 1.95
_LEGEND_IN = 0.3
_LANES = 0.5  # height of a row that its workers' lanes share, in row units


def draw(summary: Summary, run: Run, sheet: Sheet) -> Figure:
    rows = style.drawn_rows(summary)
    rows_in = style.rows_height_in(len(rows), _ROW_IN, sheet)
    legend_in = _LEGEND_IN + (0.2 if sheet.narrow else 0.0)
    columns = min(2 if sheet.narrow else 4, len(rows))
    losses_top_in = (2 if sheet.narrow else 1) * rows_in + legend_in
    title = f"Training performance: every measured step of {text.count(len(rows), 'configuration')}"
    board = style.board(summary, sheet, title, losses_top_in + _LOSS_IN * math.ceil(len(rows) / columns))
    steps = run.steps[run.steps["status"] == End.SUCCEEDED.value]
    names_in = style.names_width_in(rows, sheet)
    places = board.columns(1 if sheet.narrow else 2, left_in=names_in, gap_in=0.35)

    left = board.panel(places[0][0], 0.0, places[0][1], rows_in)
    style.label_rows(left, rows, sheet)
    _step_times(left, rows, steps[steps["phase"] == "measure"], sheet)

    right = board.panel(places[-1][0], rows_in + legend_in if sheet.narrow else 0.0, places[-1][1], rows_in)
    style.label_rows(right, rows, sheet, names=False)
    _tokens(right, rows, sheet)

    first = None
    for number, row in enumerate(rows):
        at, width = board.columns(columns, left_in=0.62, gap_in=0.22)[number % columns]
        axes = board.panel(at, losses_top_in + _LOSS_IN * (number // columns), width, _LOSS_IN - 0.2)
        if first is not None:
            axes.sharey(first)
        first = first or axes
        axes.set_title(f"Loss: {measure.shorten(row.label, width - 0.55, 9.5, bold=True)}")
        _loss(axes, row, steps, leftmost=number % columns == 0)
    return board.figure


def caption(summary: Summary) -> str:
    falling = [
        f"{row.label} {text.number(row.first_loss, 2)} to {text.number(row.last_loss, 2)}"
        for row in style.drawn_rows(summary)
        if row.first_loss is not None and row.last_loss is not None
    ]
    loss = f" The loss went from first to last measured step: {', '.join(falling)}." if 0 < len(falling) <= 4 else ""
    return (
        "Each mark is one step of one worker; the line is the median, the band its 95 % interval; "
        f"hatched is padding.{loss}"
    )


def alt(summary: Summary) -> str:
    told = [
        f"{row.label}: median step {text.estimate(row.measured.step_time_sec, ' s')}, "
        f"{text.number(row.measured.padding_percent, 0)} % of token positions padding, "
        f"loss {text.number(row.first_loss, 2)} at first and {text.number(row.last_loss, 2)} at last"
        for row in style.drawn_rows(summary)
        if row.measured is not None
    ]
    return "Step times, tokens per second and loss curves. " + "; ".join(told) + "."


TRAINING_PERFORMANCE = Chart(
    name="02_training_performance", title="Training performance", draw=draw, caption=caption, alt=alt
)


def _step_times(axes: Any, rows: tuple[Row, ...], steps: pd.DataFrame, sheet: Sheet) -> None:
    workers = sorted(steps["worker"].unique())
    few = len(workers) <= len(style.MARKERS)
    lane = _LANES / max(1, len(workers))
    top_of, tone_of = {}, {}
    for y, row in enumerate(rows):
        if row.measured is None:
            continue
        median = row.measured.step_time_sec
        words = f"median {text.estimate(median, ' s')}, n = {median.n}"
        top = style.label_bar(axes, y, words, row, sheet) - 0.2
        bottom = top + _LANES
        if median.low is not None and median.high is not None:
            axes.fill_betweenx([top, bottom], median.low, median.high, color=style.BAND, linewidth=0, zorder=1)
        axes.plot([median.value] * 2, [top, bottom], color=style.INK, linewidth=1.4, zorder=2)
        top_of[row.label], tone_of[row.label] = top, style.tone(row)
    drawn = steps[steps["configuration"].isin(top_of)]
    for number, worker in enumerate(workers):  # one collection per worker: a line per row and worker took far longer
        mine = drawn[drawn["worker"] == worker]
        axes.scatter(
            mine["step_time_sec"],
            mine["configuration"].map(top_of) + lane * (number + 0.5),
            marker=style.MARKERS[number] if few else "o",
            s=18,
            c=mine["configuration"].map(tone_of).tolist(),
            edgecolors=style.INK,
            linewidths=0.45,
            alpha=0.8,
            zorder=3,
        )
    axes.set_title("Time of every measured step, seconds")
    style.value_axis(axes, 4 if sheet.narrow else 7)
    if few and len(workers) > 1:
        _worker_legend(axes, workers, sheet)


def _worker_legend(axes: Any, workers: list[str], sheet: Sheet) -> None:
    marks = [
        Line2D(
            [],
            [],
            linestyle="none",
            marker=style.MARKERS[number],
            markersize=4.2,
            markerfacecolor=style.PAPER,
            markeredgecolor=style.INK,
            label=measure.shorten(worker, 1.3 if sheet.narrow else 0.95, 8.0),
        )
        for number, worker in enumerate(workers)
    ]
    axes.legend(
        handles=marks,
        ncols=2 if sheet.narrow else 4,
        loc="upper left",
        bbox_to_anchor=(0.0, 0.0),
        # Below the tick labels by a fixed distance: a share of the panel's height would grow with its rows.
        bbox_transform=axes.transAxes + ScaledTranslation(0.0, -20 / 72, axes.figure.dpi_scale_trans),
        borderaxespad=0.0,
        handletextpad=0.2,
        columnspacing=1.2,
    )


def _tokens(axes: Any, rows: tuple[Row, ...], sheet: Sheet) -> None:
    longest = 0.0
    for y, row in enumerate(rows):
        if row.measured is None:
            continue
        useful, total = row.measured.useful_tokens_per_sec, row.measured.tokens_per_sec
        padding = total.value - useful.value
        words = (
            f"{text.number(useful.value)} useful + {text.number(padding)} padding "
            f"({text.number(row.measured.padding_percent, 0)} %)"
        )
        middle = style.label_bar(axes, y, words, row, sheet)
        axes.barh(middle, useful.value, height=0.36, color=style.tone(row), linewidth=0)
        axes.barh(
            middle,
            padding,
            left=useful.value,
            height=0.36,
            facecolor=style.PAPER,
            edgecolor=style.MUTED,
            hatch="////",
            linewidth=0.8,
        )
        style.whisker(axes, middle, useful.low, useful.high)
        longest = max(longest, total.value, useful.high or 0.0)
    axes.set_xlim(0.0, longest * 1.06 or 1.0)
    axes.set_title("Tokens per second and worker" if sheet.narrow else "Tokens per second, per worker")
    style.value_axis(axes)


def _loss(axes: Any, row: Row, steps: pd.DataFrame, *, leftmost: bool) -> None:
    """Loss over optimizer steps: a thin line per worker, their median thick, warm-up on a band."""
    mine = steps[(steps["configuration"] == row.label) & steps["loss"].notna()]
    warmup = mine.loc[mine["phase"] == "warmup", "step"]
    if not warmup.empty:
        axes.axvspan(0.5, float(warmup.max()) + 0.5, color=style.BAND, linewidth=0, zorder=0)
    # One line with gaps where a trial ends: a line per worker would be drawn one by one.
    ends = mine["trial_id"] != mine["trial_id"].shift(-1)
    axes.plot(
        np.insert(mine["step"].to_numpy(float), np.flatnonzero(ends) + 1, np.nan),
        np.insert(mine["loss"].to_numpy(), np.flatnonzero(ends) + 1, np.nan),
        color=style.MUTED,
        linewidth=0.7,
        alpha=0.55,
    )
    middle = mine.groupby("step")["loss"].median()
    axes.plot(middle.index, middle, color=style.INK, linewidth=1.6, marker="o" if len(middle) == 1 else None)
    style.value_axis(axes, integer=True)
    axes.set_xlabel("step (band: warm-up)", labelpad=2)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.tick_params(axis="y", labelsize=8.0, labelcolor=style.MUTED, labelleft=leftmost)
    if leftmost:
        axes.set_ylabel("loss, nats per token")
