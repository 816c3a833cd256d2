"""Figure 08, memory: the peak of each configuration, measured and predicted, against the GPU's memory; and figure 13,
speed and memory: useful tokens per second against peak memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from matplotlib.figure import Figure

from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import lines, row_chart
from reports.figures.drawing.layout import (
    MARGIN_IN,
    Chart,
    Header,
    Mark,
    MarkGroup,
    Panel,
    Sheet,
    create_layout,
    make_header,
)
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ACCENT_TONE, INK, PAPER, PUBLISHED, shorten_text
from reports.read import measurements, reference_results
from reports.read.run import Run
from reports.statistics.types import Estimate
from reports.summary.summary import ConfigurationRow, Summary

PREDICTED_PEAK = "predicted_peak_vram_bytes"


def gather(summary: Summary, run: Run) -> RowFigure | None:
    predicted = predictions(run, summary)
    rows = [
        row
        for row in summary.rows
        if row.peak_vram_bytes is not None
        or (row.measured is None and (row.label in predicted or TrialStatus.OUT_OF_MEMORY in row.ends))
    ][: row_chart.MAX_DRAWN + 4]
    if not any(row.peak_vram_bytes is not None for row in rows):
        return None
    capacity = capacity_bytes(run)
    published = reference_results.matching_results(run)
    published_by_label = reference_results.training_by_label(run, published)
    marks = [_mark(row, predicted.get(row.label), published_by_label.get(row.label), capacity) for row in rows]
    has_published = any(mark.published for mark in marks)
    dashed = "" if capacity is None else f" (dashed: {formatting.number(capacity / 1e9)})"
    panel = Panel(
        title=f"Peak GPU memory, GB{dashed}",
        marks=tuple(marks),
        reference=None if capacity is None else capacity / 1e9,
    )
    bars = (
        "Bars are measured peaks; short vertical lines are the predictions made before the trial."
        if any(row.label in predicted for row in rows)
        else "Bars are measured peaks; there is no prediction."
    )
    ran_out = any(row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends for row in rows)
    hatched = " Hatched bars ran out of memory in every trial; their need is unknown." if ran_out else ""
    return RowFigure(
        header=make_header(
            summary,
            _title(rows, capacity, predicted),
            "largest peak of any worker, as counted by the allocator",
            f"{PUBLISHED} {published.source}" if published is not None and has_published else "",
        ),
        groups=(MarkGroup(names=tuple(row.label for row in rows), panels=(panel,)),),
        caption=bars if capacity is None else f"{bars} The dashed line is the GPU's memory.{hatched}",
    )


def predictions(run: Run, summary: Summary) -> dict[str, float]:
    """Map each configuration to its predicted peak in bytes, including those without a successful trial."""
    failed_labels = {row.label for row in summary.rows if row.measured is None}
    table = run.measurements
    matching = table[
        (table["name"] == PREDICTED_PEAK) & table["configuration"].isin(failed_labels) & table["value"].notna()
    ]
    from_failures = {
        str(label): float(value) for label, value in zip(matching["configuration"], matching["value"], strict=True)
    }
    return from_failures | {
        measured.configuration: measured.value
        for measured in measurements.select(run, PREDICTED_PEAK)
        if measured.value is not None and measured.value > 0
    }


def capacity_bytes(run: Run) -> int | None:
    """Return the memory of the run's smallest GPU."""
    sizes = (result.fingerprint.get("gpu_memory_bytes") for result in run.results)
    return min((int(size) for size in sizes if size), default=None)


def _format_error(predicted: float, measured: int | None) -> str:
    """Format a prediction's error, `, +2 %` if it was too high; empty if nothing was measured."""
    if not measured:
        return ""
    percent = round(100 * (predicted / measured - 1))
    return f", {percent:+} %" if percent else ", 0 %"


def _mark(
    row: ConfigurationRow,
    predicted: float | None,
    published_training: reference_results.PublishedTraining | None,
    capacity: int | None,
) -> Mark:
    shown_bytes = measured = row.peak_vram_bytes
    text = formatting.gigabytes(measured)
    if measured is None and TrialStatus.OUT_OF_MEMORY in row.ends:
        shown_bytes = capacity
        text = (
            "out of memory"
            if capacity is None
            else f"out of memory: it needs more than {formatting.gigabytes(capacity)}"
        )
    elif measured is None:
        text = "did not run"
    elif row.ends.get(TrialStatus.OUT_OF_MEMORY):
        text += f", out of memory in {row.ends[TrialStatus.OUT_OF_MEMORY]} of {formatting.count(row.planned, 'trial')}"
    if predicted is not None:
        text += f"  | {formatting.gigabytes(round(predicted))} predicted{_format_error(predicted, measured)}"
    published_bytes = None if published_training is None else published_training.peak_vram_bytes
    if published_bytes is not None:
        text += f"  {PUBLISHED} {formatting.gigabytes(round(published_bytes))} published"
    return Mark(
        value=None if shown_bytes is None else shown_bytes / 1e9,
        text=text,
        tone=row_chart.row_tone(row),
        is_hollow=measured is None,
        limit=None if predicted is None else predicted / 1e9,
        published=() if published_bytes is None else (published_bytes / 1e9,),
    )


def _title(rows: list[ConfigurationRow], capacity: int | None, predicted: dict[str, float]) -> str:
    largest = max((row for row in rows if row.peak_vram_bytes), key=lambda row: row.peak_vram_bytes or 0)
    used = largest.peak_vram_bytes or 0
    share = f", {formatting.number(100 * used / capacity, 0)} % of the GPU's memory" if capacity else ""
    title = f"{largest.label} needs the most memory of those that fit: {formatting.gigabytes(used)}{share}"
    if not (n_out_of_memory := sum(row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends for row in rows)):
        title = title.replace(" of those that fit", "")
    else:
        title += f"; {formatting.count(n_out_of_memory, 'configuration')} ran out of memory"
    errors_percent = [
        100 * abs(predicted[row.label] / row.peak_vram_bytes - 1)
        for row in rows
        if row.peak_vram_bytes and row.label in predicted
    ]
    return f"{title}; predictions are within {max(1, math.ceil(max(errors_percent)))} %" if errors_percent else title


MEMORY = Chart(
    name="08_memory",
    title="Memory",
    needs="a training trial on a GPU, the only device whose memory peaks are counted",
    gather=gather,
)


_BODY_IN = 3.6
_MAX_LABEL_IN = {1: 1.2, 4: 4.5}  # maximum total width of the names in a label, by their number
_OVERLAP_FRACTION = 0.03  # marks closer than this share of an axis overlap


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """One configuration: peak memory in GB, useful tokens per second with interval, and how many trials succeeded.

    If none did, `rate` is 0 and `memory_gb` the prediction, else the GPU's memory.
    """

    name: str
    memory_gb: float
    rate: float
    low: float | None
    high: float | None
    succeeded: int
    planned: int
    is_reliable: bool
    tone: str

    @property
    def label(self) -> str:
        return (
            self.name if self.succeeded == self.planned else f"{self.name}, {self.succeeded} of {self.planned} trials"
        )


@dataclass(frozen=True, kw_only=True)
class SpeedMemoryData:
    header: Header
    points: tuple[ScatterPoint, ...]
    limit_gb: float | None

    @property
    def caption(self) -> str:
        limit = " The dashed line is the GPU's memory." if self.limit_gb is not None else ""
        return (
            "Upper left is best: fast, and far from the limit. Filled marks succeeded in every trial, hollow ones in "
            f"some, crosses at the bottom in none; these are at their predicted memory or at the limit.{limit}"
        )

    @property
    def alt(self) -> str:
        return "; ".join(
            f"{point.label}: {formatting.number(point.rate)} useful tokens per second, "
            f"{formatting.number(point.memory_gb)} GB"
            for point in self.points
        )

    def draw(self, sheet: Sheet) -> Figure:
        layout = create_layout(self.header, sheet, _BODY_IN + 0.2)
        ((left, width),) = layout.columns(1, left_in=MARGIN_IN + 0.55, gap_in=0.0)
        axes = layout.panel(left, 0.0, width, _BODY_IN)
        _draw_scatter(axes, self, sheet)
        return layout.figure


def gather_scatter(summary: Summary, run: Run) -> SpeedMemoryData | None:
    capacity = capacity_bytes(run)
    drawn_labels = {row.label for row in row_chart.drawn_rows(summary)}
    predicted = predictions(run, summary)
    limit_gb = None if capacity is None else capacity / 1e9
    points = []
    for row in summary.rows:
        if row.label in drawn_labels and row.measured is not None and row.peak_vram_bytes is not None:
            points.append(_point(row, row.peak_vram_bytes / 1e9, row.measured.elapsed_useful_tokens_per_sec))
        elif row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends and limit_gb is not None:
            predicted_bytes = predicted.get(row.label)
            points.append(_point(row, limit_gb if predicted_bytes is None else predicted_bytes / 1e9, None))
    points = points[: row_chart.MAX_DRAWN + 4]
    if not any(point.rate for point in points):
        return None
    return SpeedMemoryData(
        header=make_header(summary, _scatter_title(points), *row_chart.header_facts(summary)),
        points=tuple(points),
        limit_gb=limit_gb,
    )


def _point(row: ConfigurationRow, gb: float, rate: Estimate | None) -> ScatterPoint:
    return ScatterPoint(
        name=row.label,
        memory_gb=gb,
        rate=0.0 if rate is None else rate.value,
        low=None if rate is None else rate.low,
        high=None if rate is None else rate.high,
        succeeded=row.succeeded,
        planned=row.planned,
        is_reliable=row.is_reliable,
        tone=row_chart.row_tone(row),
    )


def _scatter_title(points: list[ScatterPoint]) -> str:
    fastest = max(points, key=lambda point: point.rate)
    reliable = max(
        (point for point in points if point.rate and point.is_reliable), key=lambda point: point.rate, default=None
    )
    faster_note = f"{fastest.name} is faster, but succeeded only in {fastest.succeeded} of {fastest.planned} trials"
    if reliable is None:
        trials = f"{fastest.succeeded} of {fastest.planned}"
        return f"No configuration succeeded in every trial; the fastest, {fastest.name}, succeeded in {trials}"
    rate, gb = formatting.number(reliable.rate), formatting.number(reliable.memory_gb)
    title = f"{reliable.name} is the fastest without a failed trial: {rate} useful tokens per second in {gb} GB"
    return title if reliable is fastest else f"{title}; {faster_note}"


def _draw_scatter(axes: Any, data: SpeedMemoryData, sheet: Sheet) -> None:
    max_rate = max(point.high or point.rate for point in data.points)
    max_memory = max([point.memory_gb for point in data.points] + ([] if data.limit_gb is None else [data.limit_gb]))
    axes.set_xlim(0.0, max_memory * 1.08)
    axes.set_ylim(-0.04 * max_rate, max_rate * 1.1)
    obstacles = []
    if data.limit_gb is not None:
        axes.axvline(data.limit_gb, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        obstacles = [[(data.limit_gb, 0.0), (data.limit_gb, max_rate)]]
    for point in data.points:
        if point.low is not None and point.high is not None:
            obstacles.append([(point.memory_gb, point.low), (point.memory_gb, point.high)])
        lines.draw_vertical_interval(axes, point.memory_gb, point.low, point.high)
        if not point.rate:
            axes.plot(point.memory_gb, 0.0, "x", markersize=7, color=ACCENT_TONE, markeredgewidth=2.0, clip_on=False)
            continue
        face = point.tone if point.succeeded == point.planned else PAPER
        axes.plot(point.memory_gb, point.rate, "o", markersize=8, color=face, markeredgecolor=INK, markeredgewidth=0.9)
    axes.set_title(
        "Useful tokens per second and worker, by peak GPU memory in GB"
        if not sheet.is_narrow
        else "Useful tokens/s by GB"
    )
    lines.format_x_axis(axes)
    lines.format_y_axis(axes)
    lines.label_points(axes, _labels(data.points, max_memory, max_rate, 1 if sheet.is_narrow else 4), obstacles)


def _labels(
    points: tuple[ScatterPoint, ...], max_memory: float, max_rate: float, max_names: int
) -> list[tuple[float, float, str]]:
    """Return x, y and text of the labels; overlapping marks share one, which lists at most `max_names`."""
    groups: list[list[ScatterPoint]] = []
    for point in points:
        close_groups = (
            group
            for group in groups
            if abs(group[0].memory_gb - point.memory_gb) < _OVERLAP_FRACTION * max_memory
            and abs(group[0].rate - point.rate) < _OVERLAP_FRACTION * max_rate
            and bool(group[0].rate) == bool(point.rate)
        )
        group = next(close_groups, None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return [
        (
            group[0].memory_gb,
            group[0].rate,
            formatting.first_n(_names(group, _MAX_LABEL_IN[max_names] / min(len(group), max_names)), max_names),
        )
        for group in groups
    ]


def _names(group: Sequence[ScatterPoint], limit_in: float) -> list[str]:
    shortened = [replace(point, name=shorten_text(point.name, limit_in, lines.LABEL_SIZE)) for point in group]
    return [point.label if point.rate else point.name for point in shortened]


SPEED_AND_MEMORY = Chart(
    name="13_speed_and_memory",
    title="Speed and memory",
    needs="a training trial on a GPU, the only device whose memory peaks are counted",
    gather=gather_scatter,
)
