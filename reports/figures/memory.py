"""08 memory: the most each configuration held, measured and predicted, against what the GPU has."""

import math

from bench.records.result import TrialStatus
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.chart import Chart, head
from reports.figures.drawing.glyphs import RowFigure
from reports.figures.drawing.palette import PUBLISHED
from reports.figures.drawing.panel import Mark, MarkGroup, Panel
from reports.read import queries, reference_results
from reports.read.run import Run
from reports.summary.summary import ConfigurationRow, Summary

PREDICTED = "predicted_peak_vram_bytes"


def gather(summary: Summary, run: Run) -> RowFigure | None:
    predicted = predictions(run, summary)
    drawn = [
        row
        for row in summary.rows
        if row.peak_vram_bytes is not None
        or (row.measured is None and (row.label in predicted or TrialStatus.OUT_OF_MEMORY in row.ends))
    ][: row_chart.MAX_DRAWN + 4]
    if not any(row.peak_vram_bytes is not None for row in drawn):
        return None
    capacity = capacity_bytes(run)
    beside = reference_results.matching_results(run)
    like = reference_results.training_by_label(run, beside)
    found = [_mark(row, predicted.get(row.label), like.get(row.label), capacity) for row in drawn]
    has_published = any(mark.published for mark in found)
    dashed = "" if capacity is None else f" (dashed: {formatting.number(capacity / 1e9)})"
    panel = Panel(
        title=f"Peak GPU memory, GB{dashed}",
        marks=tuple(found),
        at=None if capacity is None else capacity / 1e9,
    )
    bars = (
        "Bars are measured peaks; short upright lines are the predictions made before the trial."
        if any(row.label in predicted for row in drawn)
        else "Bars are the measured peaks; there is no prediction."
    )
    ran_out = any(row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends for row in drawn)
    hatched = " Hatched ran out of memory in every trial: how much it needs is not known." if ran_out else ""
    return RowFigure(
        over=head(
            summary,
            _title(drawn, capacity, predicted),
            "largest peak of any worker, as the allocator counts it",
            f"{PUBLISHED} {beside.source}" if beside is not None and has_published else "",
        ),
        groups=(MarkGroup(names=tuple(row.label for row in drawn), panels=(panel,)),),
        caption=bars if capacity is None else f"{bars} The dashed line is what the GPU has.{hatched}",
    )


def predictions(run: Run, summary: Summary) -> dict[str, float]:
    """Configuration to the peak in bytes that was predicted before its trials, also where none of them succeeded."""
    lost = {row.label for row in summary.rows if row.measured is None}
    table = run.measurements
    mine = table[(table["name"] == PREDICTED) & table["configuration"].isin(lost) & table["value"].notna()]
    of_failures = {str(label): float(value) for label, value in zip(mine["configuration"], mine["value"], strict=True)}
    return of_failures | {
        one.configuration: one.value
        for one in queries.select(run, PREDICTED)
        if one.value is not None and one.value > 0
    }


def capacity_bytes(run: Run) -> int | None:
    """The memory of the smallest GPU of the run."""
    sizes = (result.fingerprint.get("gpu_memory_bytes") for result in run.results)
    return min((int(size) for size in sizes if size), default=None)


def _off(predicted: float, measured: int | None) -> str:
    """ ", +2 %" where a prediction was above what was measured; nothing where nothing was."""
    if not measured:
        return ""
    percent = round(100 * (predicted / measured - 1))
    return f", {percent:+} %" if percent else ", 0 %"


def _mark(
    row: ConfigurationRow,
    predicted: float | None,
    like: reference_results.PublishedTraining | None,
    capacity: int | None,
) -> Mark:
    at_least = measured = row.peak_vram_bytes
    words = formatting.gigabytes(measured)
    if measured is None and TrialStatus.OUT_OF_MEMORY in row.ends:
        at_least = capacity
        words = (
            "out of memory"
            if capacity is None
            else f"out of memory: it needs more than {formatting.gigabytes(capacity)}"
        )
    elif measured is None:
        words = "did not run"
    elif row.ends.get(TrialStatus.OUT_OF_MEMORY):
        words += f", out of memory in {row.ends[TrialStatus.OUT_OF_MEMORY]} of {formatting.count(row.planned, 'trial')}"
    if predicted is not None:
        words += f"  | {formatting.gigabytes(round(predicted))} predicted{_off(predicted, measured)}"
    reference = None if like is None else like.peak_vram_bytes
    if reference is not None:
        words += f"  {PUBLISHED} {formatting.gigabytes(round(reference))} published"
    return Mark(
        value=None if at_least is None else at_least / 1e9,
        words=words,
        tone=row_chart.tone(row),
        is_hollow=measured is None,
        limit=None if predicted is None else predicted / 1e9,
        published=() if reference is None else (reference / 1e9,),
    )


def _title(drawn: list[ConfigurationRow], capacity: int | None, predicted: dict[str, float]) -> str:
    largest = max((row for row in drawn if row.peak_vram_bytes), key=lambda row: row.peak_vram_bytes or 0)
    used = largest.peak_vram_bytes or 0
    share = f", {formatting.number(100 * used / capacity, 0)} % of the GPU's memory" if capacity else ""
    title = f"{largest.label} needs most of what fits: {formatting.gigabytes(used)}{share}"
    if not (ended := sum(row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends for row in drawn)):
        title = title.replace(" of what fits", "")
    else:
        title += f"; {formatting.count(ended, 'configuration')} ran out of memory"
    off = [
        100 * abs(predicted[row.label] / row.peak_vram_bytes - 1)
        for row in drawn
        if row.peak_vram_bytes and row.label in predicted
    ]
    return f"{title}; predictions are within {max(1, math.ceil(max(off)))} %" if off else title


MEMORY = Chart(
    name="08_memory",
    title="Memory",
    needs="a training trial on a GPU: peaks of GPU memory are counted there alone",
    gather=gather,
)
