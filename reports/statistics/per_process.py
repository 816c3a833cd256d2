"""Statistics of one process's steps: median and its standard error, outliers, drift.

All computations use the logarithm of the step time, so a step that is 1 % slower counts as much as one that is 1 %
faster. Consecutive steps are similar (same clock, same temperature), so n steps are equivalent to fewer independent
ones; the number follows from their lag-1 autocorrelation. That is computed on ranks, so that a single slow step does
not hide it, corrected for the bias of short series (Marriott and Pope 1954), and increased by half its standard error:
too small a value makes intervals too narrow, too large a one only makes them wide. Pure numpy; arrays of processes have
shape (processes, steps).

In simulation (tests/unit/reports/statistics/test_per_process.py) the interval over one process's steps contains that
process's own median in 94 to 97 % of runs for 20 to 100 steps with autocorrelation 0 to 0.6, outliers and drift; in 92
to 94 % at 0.8.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.records import student
from bench.records.result import TrialResult
from reports.statistics.types import Process

Floats = NDArray[np.float64]

RESAMPLES = 200  # enough for a standard error; percentiles would need ten times as many
CONFIDENCE = 0.95
AMOUNTS = ("samples", "tokens", "useful_tokens")
OUTLIER_SDS, OUTLIER_SHARE = 5.0, 0.02  # more than 5 standard deviations and at least 2 %
DRIFT_SES, DRIFT_SHARE = 3.5, 0.02  # more than 3.5 standard errors and at least 2 % from first to last step
DRIFT_MIN_STEPS = 10
LEVELS_SDS, LEVELS_SHARE = 5.0, 0.01  # two clock levels: more than 5 standard deviations and at least 1 % apart
# Resolutions in seconds that a timer's steps can show: decimal ones, and the 1/64 s of some systems.
TIMER_STEPS = (1.0, 0.1, 0.015625, 0.01, 0.001, 0.0001)
_TIMER_ACCURACY = 1e-10  # share of the resolution
_MAX_AUTOCORRELATION = 0.9
_SD_OF_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_SE_OF_MEDIAN = math.sqrt(math.pi / 2.0)  # a normal sample's standard error of the median over that of the mean


@dataclass(frozen=True, kw_only=True)
class ProcessSteps:
    """One process's measured steps of one configuration: four arrays of shape (n_steps,), n_steps >= 1.

    `process` identifies it (a trial's id); `worker` is where it ran, `device` the name of its GPU. Two processes may
    share a worker.
    """

    process: str
    worker: str
    device: str = ""
    step_time_sec: Floats
    samples: Floats
    tokens: Floats
    useful_tokens: Floats

    @classmethod
    def from_result(cls, result: TrialResult) -> Self:
        """Return the measured steps of an accepted result."""
        arrays = {name: np.array(getattr(result.steps, name), dtype=np.float64) for name in ("step_time_sec", *AMOUNTS)}
        device = str(result.fingerprint.get("gpu_name") or "")
        return cls(process=result.trial_id, worker=result.worker or "unknown", device=device, **arrays)

    def __post_init__(self) -> None:
        shapes = {self.step_time_sec.shape, *(getattr(self, amount).shape for amount in AMOUNTS)}
        if len(shapes) != 1 or self.step_time_sec.ndim != 1 or not self.step_time_sec.size:
            raise ValueError(f"process {self.process}: expected at least one step, and arrays of equal length")
        if not 0.0 < self.step_time_sec.min() <= self.step_time_sec.max() < math.inf:
            raise ValueError(f"process {self.process}: step times must be finite and above 0 s")
        if not all(getattr(self, amount).sum() > 0 for amount in AMOUNTS):
            raise ValueError(f"process {self.process}: its steps hold no sample or no useful token")


def describe(processes: Sequence[ProcessSteps]) -> list[Process]:
    """Describe every process, in the given order; processes of equal length are computed together."""
    by_length: dict[int, list[int]] = {}
    for index, process in enumerate(processes):
        by_length.setdefault(len(process.step_time_sec), []).append(index)
    described: dict[int, Process] = {}
    for length, indices in by_length.items():
        times = np.stack([processes[index].step_time_sec for index in indices])
        columns, medians = _describe_rows(np.log(times), length), np.median(times, axis=1)
        rounding = _timer_error(times) / medians
        errors = times.std(axis=1, ddof=1 if length > 1 else 0) / times.mean(axis=1) / np.sqrt(columns["effective"])
        errors = np.hypot(errors, rounding / math.sqrt(length))
        elapsed = times.sum(axis=1)
        group = [processes[index] for index in indices]
        sums = {amount: np.stack([getattr(process, amount) for process in group]).sum(axis=1) for amount in AMOUNTS}
        by_median = {amount: sums[amount] / length / medians for amount in AMOUNTS}
        for row, index in enumerate(indices):
            process = processes[index]
            described[index] = Process(
                process=process.process,
                worker=process.worker,
                device=process.device,
                steps=process.step_time_sec,
                amounts={amount: getattr(process, amount) for amount in AMOUNTS},
                step_time_sec=float(medians[row]),
                samples_per_sec=float(by_median["samples"][row]),
                tokens_per_sec=float(by_median["tokens"][row]),
                useful_tokens_per_sec=float(by_median["useful_tokens"][row]),
                elapsed_samples_per_sec=float(sums["samples"][row] / elapsed[row]),
                elapsed_useful_tokens_per_sec=float(sums["useful_tokens"][row] / elapsed[row]),
                elapsed_error=float(errors[row]),
                noise_percent=100.0 * math.expm1(float(columns["sd"][row])),
                standard_error=math.hypot(float(columns["se"][row]), float(rounding[row])),
                timer_error=float(rounding[row]),
                autocorrelation=float(columns["rho"][row]),
                effective_steps=float(columns["effective"][row]),
                outliers=int(columns["outliers"][row]),
                drift_percent=100.0 * math.expm1(float(columns["drift"][row])) if length >= DRIFT_MIN_STEPS else None,
                levels_percent=100.0 * math.expm1(levels) if (levels := float(columns["levels"][row])) else None,
                drifts=bool(columns["drifts"][row]),
            )
    return [described[index] for index in range(len(processes))]


def half_width(process: Process) -> float | None:
    """Return half the 95 % interval of the logarithm of the median step time, over the steps; None for a single step.

    The standard error is the larger of a block bootstrap's and the plain bootstrap's scaled by the autocorrelation:
    with blocks only, 77 to 91 % of simulated intervals held the true value (20 to 100 steps, autocorrelation 0.3 to
    0.6). Student's t over the effective number of steps corrects for their small number.
    """
    if process.n_steps < 2:
        return None
    steps, block = np.log(process.steps), _block_length(process.autocorrelation, process.n_steps)
    error = math.sqrt(process.n_steps / process.effective_steps) * _bootstrap_se(steps, 1)
    if block > 1:
        error = max(error, _bootstrap_se(steps, block))
    half = error * student.quantile(CONFIDENCE, process.degrees_of_freedom)
    return math.hypot(half, process.timer_error * math.sqrt(3.0))  # the largest rounding error


def _timer_error(times: Floats) -> Floats:
    """Return the standard deviation in seconds of each row's rounding, if all its steps are multiples of a TIMER_STEP.

    A timer of 10 ms gives equal steps, whose noise would seem to be 0. Steps of a fine timer are multiples of none.
    """
    errors = np.zeros(len(times))
    for resolution in TIMER_STEPS:
        parts = times / resolution
        is_multiple = (np.abs(parts - np.round(parts)) < _TIMER_ACCURACY).all(axis=1)
        errors[is_multiple & (errors == 0.0)] = resolution / math.sqrt(12.0)
    return errors


def _describe_rows(steps: Floats, length: int) -> dict[str, Floats]:
    """Compute the columns of `Process` for rows of logarithms of step times."""
    median = np.median(steps, axis=1)
    deviations = np.abs(steps - median[:, None])
    sd = _SD_OF_MAD * np.median(deviations, axis=1)
    outliers = (deviations > np.maximum(OUTLIER_SDS * sd, OUTLIER_SHARE)[:, None]).sum(axis=1)
    ranks = np.argsort(np.argsort(steps, axis=1, kind="stable"), axis=1, kind="stable").astype(np.float64)
    ranks[np.ptp(steps, axis=1) == 0] = 0.0  # equal steps have no meaningful ranks
    rho = _unbiased(_lag1(ranks), length)
    rho = np.clip(rho + 0.5 / math.sqrt(length), 0.0, _MAX_AUTOCORRELATION) if length > 4 else np.zeros(len(steps))
    effective = np.clip(length * (1.0 - rho) / (1.0 + rho), min(3.0, length), length)
    drift, error = _drift(steps, median, sd)
    return {
        "sd": sd,
        "rho": rho,
        "effective": effective,
        "se": _SE_OF_MEDIAN * sd / np.sqrt(effective),
        "outliers": outliers.astype(np.float64),
        "levels": _level_distance(steps, median, sd),
        "drift": drift,
        "drifts": (np.abs(drift) > np.maximum(DRIFT_SES * error, DRIFT_SHARE)).astype(np.float64),
    }


def _level_distance(steps: Floats, median: Floats, sd: Floats) -> Floats:
    """Return the distance of the two levels between which each row jumps; 0 if it does not jump.

    Each row is split in two where the residual variance is smallest; each part has at least a fifth of the steps. The
    parts of a single cluster, however skewed, are less than LEVELS_SDS of their own standard deviations apart.
    """
    length = steps.shape[1]
    fifth = -(-length // 5)
    if length < DRIFT_MIN_STEPS:
        return np.zeros(len(steps))
    limit = np.maximum(5.0 * sd, OUTLIER_SHARE)[:, None]
    ordered = np.sort(np.clip(steps - median[:, None], -limit, limit), axis=1)
    sums, squares = np.cumsum(ordered, axis=1), np.cumsum(ordered * ordered, axis=1)
    split_sizes = np.arange(fifth, length - fifth + 1)
    low, high = (
        sums[:, split_sizes - 1] / split_sizes,
        (sums[:, -1:] - sums[:, split_sizes - 1]) / (length - split_sizes),
    )
    residual_squares = squares[:, -1:] - split_sizes * low**2 - (length - split_sizes) * high**2
    best = residual_squares.argmin(axis=1)
    rows = np.arange(len(steps))
    gaps = high[rows, best] - low[rows, best]
    sds = np.sqrt(np.maximum(residual_squares[rows, best], 0.0) / (length - 2))
    distances = np.zeros(len(steps))
    for row in np.flatnonzero(gaps > np.maximum(LEVELS_SDS * sds, LEVELS_SHARE)):
        # Outliers were clipped to find the levels; their distance is computed from the unclipped steps.
        unclipped, split = np.sort(steps[row]), split_sizes[best[row]]
        distances[row] = np.median(unclipped[split:]) - np.median(unclipped[:split])
    return distances


def _lag1(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=1, keepdims=True)
    squares = (centred * centred).sum(axis=1)
    autocorrelation: Floats = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / np.where(squares > 0, squares, 1.0)
    return autocorrelation


def _unbiased(rho: Floats, length: int) -> Floats:
    """Correct the bias of a short series' lag-1 autocorrelation, which is too low by about (1 + 4 rho) / n."""
    return (length * rho + 1.0) / (length - 4.0) if length > 4 else np.zeros_like(rho)


def _drift(steps: Floats, median: Floats, sd: Floats) -> tuple[Floats, Floats]:
    """Return the change from first to last step along a least-squares line, and its standard error; clips outliers."""
    length = steps.shape[1]
    if length < DRIFT_MIN_STEPS:
        return np.zeros(len(steps)), np.full(len(steps), np.inf)
    limit = np.maximum(3.0 * sd, 1e-9)[:, None]
    clipped = np.clip(steps - median[:, None], -limit, limit)
    position = np.linspace(-0.5, 0.5, length)
    slope = clipped @ position / (position @ position)
    residuals = clipped - clipped.mean(axis=1, keepdims=True) - slope[:, None] * position
    rho = np.clip(_unbiased(_lag1(residuals), length), 0.0, _MAX_AUTOCORRELATION)
    spread = np.sqrt((residuals * residuals).sum(axis=1) / (length - 2))
    return slope, spread / math.sqrt(position @ position) * np.sqrt((1.0 + rho) / (1.0 - rho))


def _block_length(rho: float, count: int) -> int:
    """Return the optimal block length for an AR(1) series (Carlstein 1986), at most a fifth of the steps."""
    best = math.pow(math.sqrt(6.0) * rho / (1.0 - rho * rho), 2.0 / 3.0) * math.pow(count, 1.0 / 3.0)
    return max(1, min(math.ceil(best), count // 5))


def _bootstrap_se(steps: Floats, block: int) -> float:
    drawn = steps[_bootstrap_indices(len(steps), block)]
    drawn.sort(axis=1)  # np.median selects row by row and took five times as long
    middle = drawn[:, (len(steps) - 1) // 2] + drawn[:, len(steps) // 2]
    return float(middle.std(ddof=1)) / 2.0


@functools.lru_cache(maxsize=64)
def _bootstrap_indices(length: int, block: int) -> NDArray[np.int64]:
    """Draw the indices of a circular block bootstrap, shape (RESAMPLES, length), with a fixed seed."""
    chooser = np.random.default_rng((length, block))
    starts = chooser.integers(0, length, (RESAMPLES, -(-length // block), 1))
    drawn: NDArray[np.int64] = ((starts + np.arange(block)) % length).reshape(RESAMPLES, -1)[:, :length]
    return drawn


ENERGY = "joules_per_1000_useful_tokens"
POWER = "gpu_power_watts"
WINDOW = "measure"


def joules_per_1000_useful_tokens(result: TrialResult, process: Process) -> float | None:
    """Return the GPU's energy for 1,000 useful tokens at elapsed throughput; None if its power was not sampled.

    A result of several ranks has the mean power of their GPUs. The host's energy is not included.
    """
    watts = next(
        (
            measurement.value
            for measurement in result.measurements
            if measurement.name == POWER and measurement.context.get("window") == WINDOW
        ),
        None,
    )
    return None if watts is None or watts <= 0 else 1000.0 * watts / process.elapsed_useful_tokens_per_sec
