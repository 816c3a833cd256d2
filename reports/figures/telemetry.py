"""Figure 09, telemetry of a trial: utilization, power, clock and memory over time, with the trial's phases behind them.

The trial is the best configuration's; if a worker is systematically slow, it is that worker's, compared with the means
of a healthy worker.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from bench.records.paths import TELEMETRY_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from reports import formatting
from reports.figures.drawing import lines, row_chart
from reports.figures.drawing.layout import MARGIN_IN, Chart, Header, Sheet, create_layout, make_header
from reports.figures.drawing.style import BAND, DEEP_TONE, GRID, INK, MUTED, OTHER_TONE, text_width_in
from reports.read import telemetry
from reports.read.run import Run
from reports.summary.summary import ConfigurationRow, Summary

TARGET_PERCENT = 80.0
NOTABLE_PERCENT = 3.0  # healthy nodes of the same type differ less
_BINS = 160  # a long trial's samples are averaged to this many points; the band behind shows their range
_LANE_HEIGHT_IN = 1.05
_MAX_GPUS = 4
UTILIZATION, POWER_CAPPED = "gpu_utilization_percent", "gpu_power_capped_percent"
_POWER_BOUND_PERCENT = 50.0  # beyond this share of the measured window at the power limit, power bounds the trial
# Column, title, factor, and the fingerprint key of the maximum: of the GPU if there is one, else of the process.
_GPU_QUANTITIES = (
    (UTILIZATION, "GPU utilization, %", 1.0, None),
    ("gpu_power_watts", "Power, W", 1.0, "gpu_power_limit_watts"),
    ("gpu_sm_clock_mhz", "SM clock, MHz", 1.0, "gpu_max_sm_clock_mhz"),
    ("gpu_memory_used_bytes", "GPU memory used, GB", 1e-9, None),
)
_CPU_QUANTITIES = (
    ("process_cpu_percent", "Processor, % of one core", 1.0, None),
    ("process_rss_bytes", "Resident memory, GB", 1e-9, None),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TelemetryCurve:
    """One GPU's (or the process's) samples in bins: middle of the bin in seconds, mean, smallest, largest."""

    gpu: int | None
    seconds: Floats
    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One quantity over time, and its mean over the measured phase (None without a sample in it).

    `maximum` is the GPU's limit, `target` the value to reach, if any. If this worker is slow, `healthy_mean` is the
    mean of the same configuration on a healthy worker.
    """

    title: str
    curves: tuple[TelemetryCurve, ...]
    measured_mean: float | None
    maximum: float | None = None
    target: float | None = None
    healthy_mean: float | None = None

    @property
    def reference_lines(self) -> tuple[float, ...]:
        """Values to draw a horizontal line at."""
        return tuple(value for value in (self.maximum, self.target) if value is not None)

    @property
    def heading(self) -> str:
        """The title with mean and maximum."""
        mean = "" if self.measured_mean is None else f": mean {formatting.number(self.measured_mean)}"
        maximum = "" if self.maximum is None or not mean else f" of {formatting.number(self.maximum)}"
        healthy = (
            ""
            if self.healthy_mean is None or not mean
            else f" (a healthy worker: {formatting.number(self.healthy_mean)})"
        )
        return f"{self.title}{mean}{maximum}{healthy}"


@dataclass(frozen=True, kw_only=True)
class TelemetryData:
    """`phases` are (name, from, to) in seconds."""

    header: Header
    trial: str
    lanes: tuple[Lane, ...]
    phases: tuple[tuple[str, float, float], ...]
    is_gpu: bool

    @property
    def caption(self) -> str:
        maximum_note = " and this GPU's maximum" if any(lane.maximum is not None for lane in self.lanes) else ""
        explanation = (
            f"; in a dip the GPU waited. Dashed: the target of {TARGET_PERCENT:.0f} %{maximum_note}."
            if self.is_gpu
            else "."
        )
        return (
            "Bands are the trial's phases, named above. Means are over the measured phase, where curves should be "
            f"flat{explanation}"
        )

    @property
    def alt(self) -> str:
        phases = ", ".join(
            f"{name} {formatting.number(start)} to {formatting.number(to)} s" for name, start, to in self.phases
        )
        means = ", ".join(lane.heading for lane in self.lanes if lane.measured_mean is not None)
        return f"Trial {self.trial} over time. Phases: {phases}. Means of the measured phase: {means or 'unknown'}."

    def draw(self, sheet: Sheet) -> Figure:
        lane_in = _LANE_HEIGHT_IN + (0.1 if sheet.is_narrow else 0.0)
        top_in = 0.22
        layout = create_layout(self.header, sheet, top_in + (lane_in + 0.42) * len(self.lanes) + 0.38)
        left_in = MARGIN_IN + 0.55
        ((left, width),) = layout.columns(1, left_in=left_in, gap_in=0.0)
        width -= 0.55 if any(len(lane.curves) > 1 for lane in self.lanes) else 0.05
        end = max(to for _, _, to in self.phases)
        begin = min(start for _, start, _ in self.phases)
        for number, lane in enumerate(self.lanes):
            height = lane_in + 0.42 + 0.28
            axes = layout.panel(left, top_in + number * (lane_in + 0.42), width, height)
            _draw_lane(axes, lane, self, lane_in)
            axes.set_xlim(begin, end)
            axes.tick_params(axis="x", labelbottom=number == len(self.lanes) - 1)
            if number == 0:
                _name_phases(axes, self, width, end - begin)
        axes.set_xlabel("seconds since the start of the trial's process", labelpad=2)
        return layout.figure


def gather(summary: Summary, run: Run) -> TelemetryData | None:
    slow_worker = find_slow_worker(summary)
    for result in _candidates(summary, run, None if slow_worker is None else slow_worker[0]):
        frame = _read_telemetry(run, result)
        if frame is None:
            continue
        is_gpu = bool(frame["gpu_utilization_percent"].notna().any())
        lanes = tuple(_lanes(result, frame, is_gpu=is_gpu))
        if lanes:
            title = _title(result, lanes, is_gpu=is_gpu)
            if slow_worker is not None and result.worker == slow_worker[0]:
                means = {lane.title: lane.measured_mean for lane in _healthy_lanes(summary, run, result)}
                lanes = tuple(replace(lane, healthy_mean=means.get(lane.title)) for lane in lanes)
                percent = formatting.number(slow_worker[1], 0)
                title = f"{slow_worker[0]} is {percent} % slower than the median worker. {title}"
            return TelemetryData(
                header=make_header(summary, title, *_facts(result, frame)),
                trial=result.trial_id,
                lanes=lanes,
                phases=_phases(frame),
                is_gpu=is_gpu,
            )
    return None


def _deviations(row: ConfigurationRow) -> dict[str, float]:
    """Map each worker to the percent by which its step took longer than the median one; empty without two workers."""
    medians = {} if row.measured is None else row.measured.worker_medians
    if len(medians) < 2:
        return {}
    median = statistics.median(medians.values())
    return {worker: 100.0 * (time / median - 1.0) for worker, time in medians.items()}


def _median_deviations(deviations_of_rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each worker's median deviation, in the order of their names."""
    workers = sorted(
        {worker for row_deviations in deviations_of_rows for worker in row_deviations}, key=formatting.natural_key
    )
    return {
        worker: statistics.median(
            [row_deviations[worker] for row_deviations in deviations_of_rows if worker in row_deviations]
        )
        for worker in workers
    }


def find_slow_worker(summary: Summary) -> tuple[str, float] | None:
    """Return the systematically slow worker, if any, and the percent that its steps take longer (median)."""
    medians = _median_deviations(
        [row_deviations for row in row_chart.drawn_rows(summary) if (row_deviations := _deviations(row))]
    )
    slowest = max(medians, key=lambda worker: medians[worker], default=None)
    return None if slowest is None or medians[slowest] < NOTABLE_PERCENT else (slowest, medians[slowest])


def _read_telemetry(run: Run, result: TrialResult) -> pd.DataFrame | None:
    return telemetry.read(run.folder / TRIALS_FOLDER / result.trial_id / TELEMETRY_FILE)


def _candidates(summary: Summary, run: Run, slow_worker: str | None) -> list[TrialResult]:
    """Sort the trials to draw: the slow worker's first, then those of the fastest training configurations."""
    speed = {row.label: row.useful_rate for row in summary.measured_rows}
    succeeded = [result for result in run.results if result.status is TrialStatus.SUCCEEDED]
    return sorted(
        succeeded, key=lambda result: (result.worker != slow_worker, -speed.get(run.label_of[result.trial_id], 0.0))
    )


def _healthy_lanes(summary: Summary, run: Run, slow_result: TrialResult) -> tuple[Lane, ...]:
    """Return the lanes of the same configuration on the worker nearest to the median that has telemetry."""
    label = run.label_of[slow_result.trial_id]
    deviations = next((_deviations(row) for row in summary.rows if row.label == label), {})
    for worker in sorted(set(deviations) - {slow_result.worker}, key=lambda name: abs(deviations[name])):
        results = (
            result for result in run.results if result.worker == worker and run.label_of[result.trial_id] == label
        )
        result = next((name for name in results if name.status is TrialStatus.SUCCEEDED), None)
        frame = None if result is None else _read_telemetry(run, result)
        if result is not None and frame is not None:
            return tuple(_lanes(result, frame, is_gpu=bool(frame["gpu_utilization_percent"].notna().any())))
    return ()


def _lanes(result: TrialResult, frame: pd.DataFrame, *, is_gpu: bool) -> Iterator[Lane]:
    for column, title, factor, key in _GPU_QUANTITIES if is_gpu else _CPU_QUANTITIES:
        lane = _lane(frame, column, title, factor, by_gpu=is_gpu)
        maximum = None if key is None else result.fingerprint.get(key)
        if lane is not None:
            target = TARGET_PERCENT if column == UTILIZATION else None
            yield replace(lane, maximum=None if maximum is None else float(maximum), target=target)


def _lane(frame: pd.DataFrame, column: str, title: str, factor: float, *, by_gpu: bool) -> Lane | None:
    samples = frame[frame[column].notna()]
    if samples.empty:
        return None
    groups = (
        [(int(float(str(gpu))), gpu_samples) for gpu, gpu_samples in samples.groupby("gpu")]
        if by_gpu
        else [(None, samples)]
    )
    curves = tuple(
        _curve(gpu, gpu_samples["elapsed_sec"].to_numpy(float), gpu_samples[column].to_numpy(float) * factor)
        for gpu, gpu_samples in groups
    )[:_MAX_GPUS]
    window = samples[samples["phase"] == "measure"]
    return Lane(
        title=title, curves=curves, measured_mean=None if window.empty else float(window[column].mean()) * factor
    )


def _curve(gpu: int | None, seconds: Floats, values: Floats) -> TelemetryCurve:
    pieces = np.array_split(np.arange(len(values)), min(_BINS, len(values)))
    return TelemetryCurve(
        gpu=gpu,
        seconds=np.array([seconds[piece].mean() for piece in pieces]),
        mean=np.array([values[piece].mean() for piece in pieces]),
        low=np.array([values[piece].min() for piece in pieces]),
        high=np.array([values[piece].max() for piece in pieces]),
    )


def _phases(frame: pd.DataFrame) -> tuple[tuple[str, float, float], ...]:
    """Return the phases as spans; each ends where the next begins."""
    change = frame["phase"].ne(frame["phase"].shift())
    starts = frame[change]
    edges = [*starts["elapsed_sec"].tolist(), float(frame["elapsed_sec"].iloc[-1])]
    spans = zip(starts["phase"], pairwise(edges), strict=True)
    return tuple((str(name), float(start), float(to)) for name, (start, to) in spans)[:40]


def _facts(result: TrialResult, frame: pd.DataFrame) -> tuple[str, ...]:
    samples = frame["elapsed_sec"].nunique()
    seconds = float(frame["elapsed_sec"].iloc[-1] - frame["elapsed_sec"].iloc[0])
    return (
        f"n = {samples:,} samples in {formatting.number(seconds)} s",
        f"trial {result.trial_id}",
        f"worker {result.worker}",
    )


def _title(result: TrialResult, lanes: tuple[Lane, ...], *, is_gpu: bool) -> str:
    first = lanes[0]
    name = result.trial.name
    if first.measured_mean is None:
        return f"Telemetry of {name}"
    if not is_gpu:
        cores = formatting.number(first.measured_mean / 100.0, 1)
        return f"{name} used {cores} processor cores while it was measured; there was no GPU"
    comparison = "above" if first.measured_mean >= TARGET_PERCENT else "below"
    utilization = formatting.number(first.measured_mean, 0)
    target = f"{comparison} the target of {TARGET_PERCENT:.0f} %"
    title = f"The GPU was {utilization} % utilized while {name} was measured, {target}"
    capped_percent = next(
        (measurement.value for measurement in result.measurements if measurement.name == POWER_CAPPED), None
    )
    if capped_percent is None or capped_percent < _POWER_BOUND_PERCENT:
        return title
    return f"{title}; its power limit lowered the clock {formatting.number(capped_percent, 0)} % of that time"


def _draw_lane(axes: Any, lane: Lane, data: TelemetryData, lane_in: float) -> None:
    for number, (_, start, to) in enumerate(data.phases):
        if number % 2:
            axes.axvspan(start, to, color=BAND, alpha=0.55, linewidth=0, zorder=0)
    tones = (DEEP_TONE, OTHER_TONE, MUTED, INK)
    ends = []
    for curve, tone in zip(lane.curves, tones, strict=False):
        axes.fill_between(curve.seconds, curve.low, curve.high, color=OTHER_TONE, alpha=0.35, linewidth=0, zorder=1)
        axes.plot(curve.seconds, curve.mean, color=tone, linewidth=1.2, zorder=2)
        if len(lane.curves) > 1:
            ends.append((float(curve.seconds[-1]), float(curve.mean[-1]), f"GPU {curve.gpu}", tone))
    highest_sample = max(float(curve.high.max()) for curve in lane.curves)
    highest = max(highest_sample, *lane.reference_lines, 0.0, 100.0 if lane.target is not None else 0.0)
    axes.set_ylim(0.0, 1.12 * highest or 1.0)
    for value in lane.reference_lines:
        axes.axhline(value, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), zorder=3)
    axes.set_title(lane.heading)
    axes.grid(visible=False, axis="x")
    lines.format_y_axis(axes, 3)
    lines.label_ends(axes, ends, lane_in)


def _name_phases(axes: Any, data: TelemetryData, width_in: float, seconds: float) -> None:
    """Draw the phases' names above the first lane, except of phases too short for their name."""
    for name, start, to in data.phases:
        room = (to - start) / max(seconds, 1e-9) * width_in
        if text_width_in(name, 8.0) < room:
            axes.annotate(
                name,
                ((start + to) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 20),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=8,
                color=MUTED,
            )
        axes.axvline(start, color=GRID, linewidth=0.8, zorder=0)


TELEMETRY = Chart(
    name="09_telemetry",
    title="Telemetry of a trial",
    needs="telemetry.csv of a successful trial, which inv collect fetches",
    is_folded=True,
    gather=gather,
)
