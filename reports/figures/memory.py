"""Figure 08, memory: the peak of each configuration, measured and predicted, against the GPU's memory."""

import math
from statistics import median

from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import Chart, Mark, make_header, one_panel
from reports.figures.drawing.row_chart import RowFigure
from reports.read import reference_results
from reports.read.loaded_run import Run
from reports.summary.rows import ConfigurationRow
from reports.summary.summary import Summary

PREDICTED_PEAK = "predicted_peak_vram_bytes"


def gather(summary: Summary, run: Run) -> RowFigure | None:
    predicted = _predictions(run)
    rows = [
        row
        for row in summary.rows
        if row.peak_vram_bytes is not None
        or (row.measured is None and (row.label in predicted or TrialStatus.OUT_OF_MEMORY in row.ends))
    ][: row_chart.MAX_DRAWN + 4]
    if not any(row.peak_vram_bytes is not None for row in rows):
        return None
    capacity = _capacity_bytes(run)
    published = reference_results.matching_results(run)
    repeated = reference_results.training_by_label(run, published)
    published_peaks = {label: training.get("peak_vram_bytes") for label, training in repeated.items()}
    marks = [
        (row.label, _mark(row, predicted.get(row.label), published_peaks.get(row.label), capacity)) for row in rows
    ]
    dashed = "" if capacity is None else f" (dashed: {formatting.number(capacity / 1e9)})"
    reference = None if capacity is None else capacity / 1e9
    return RowFigure(
        header=make_header(
            summary,
            _title(rows, capacity, predicted),
            "largest peak of any worker, as counted by the allocator",
            published=published if any(mark.published for _, mark in marks) else None,
        ),
        groups=(one_panel(f"Peak GPU memory, GB{dashed}", marks, reference=reference),),
        caption=(
            "Bars are measured peaks, short vertical lines the predictions made before the trial, the dashed line is "
            "the GPU's memory. Hatched bars ran out of memory in every trial."
        ),
    )


def _predictions(run: Run) -> dict[str, float]:
    """Map each configuration to its predicted peak in bytes, including those without a successful trial."""
    values: dict[str, list[float]] = {}
    for result in run.results:
        for measurement in result.measurements:
            if measurement.name == PREDICTED_PEAK and measurement.value:
                values.setdefault(run.label_of[result.trial_id], []).append(measurement.value)
    return {label: median(predictions) for label, predictions in values.items()}


def _capacity_bytes(run: Run) -> int | None:
    """Return the memory of the run's smallest GPU."""
    sizes = (result.fingerprint.get("gpu_memory_bytes") for result in run.results)
    return min((int(size) for size in sizes if size), default=None)


def _mark(
    row: ConfigurationRow,
    predicted: float | None,
    published_bytes: float | None,
    capacity: int | None,
) -> Mark:
    shown_bytes = measured = row.peak_vram_bytes
    text = formatting.gigabytes(measured)
    if measured is None and TrialStatus.OUT_OF_MEMORY in row.ends:
        shown_bytes = capacity
        text = f"out of memory: it needs more than {formatting.gigabytes(capacity)}"
    elif measured is None:
        text = "did not run"
    elif row.ends.get(TrialStatus.OUT_OF_MEMORY):
        text += f", out of memory in {row.ends[TrialStatus.OUT_OF_MEMORY]} of {formatting.count(row.planned, 'trial')}"
    if predicted is not None:
        error = f", {round(100 * (predicted / measured - 1)):+} %" if measured else ""
        text += f"  | {formatting.gigabytes(round(predicted))} predicted{error}"
    if published_bytes is not None:
        text += row_chart.published_text(published_bytes / 1e9, unit="GB")
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
    title = f"{largest.label} needs the most memory: {formatting.gigabytes(used)}{share}"
    if n_out_of_memory := sum(row.measured is None and TrialStatus.OUT_OF_MEMORY in row.ends for row in rows):
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
