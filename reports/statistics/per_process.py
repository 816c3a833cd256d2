"""Statistics of one process's steps: median and its standard error.

All computations use the logarithm of the step time, so a step that is 1 % slower counts as much as one that is 1 %
faster. Consecutive steps are similar (same clock, same temperature), so n steps are equivalent to fewer independent
ones; the number follows from their lag-1 autocorrelation. That is computed on ranks, so that a single slow step does
not hide it, corrected for the bias of short series (Marriott and Pope 1954), and increased by half its standard error:
too small a value makes intervals too narrow, too large a one only makes them wide. Pure numpy; arrays of processes have
shape (processes, steps).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.records.result import TrialResult
from reports.statistics.types import Process

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
AMOUNTS = ("samples", "tokens", "useful_tokens")
_MAX_AUTOCORRELATION = 0.9
_SD_OF_MAD = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_SE_OF_MEDIAN = math.sqrt(math.pi / 2.0)  # a normal sample's standard error of the median over that of the mean


@dataclass(frozen=True, kw_only=True)
class ProcessSteps:
    """One process's measured steps of one configuration: four arrays of shape (n_steps,), n_steps >= 1.

    `process` identifies it (a trial's id); `worker` is where it ran, `device` the name of its GPU. Two processes may
    share a worker. `at_sec` is when they began by the worker's clock, which no other worker shares.
    """

    process: str
    worker: str
    device: str = ""
    at_sec: float = 0.0
    step_time_sec: Floats
    samples: Floats
    tokens: Floats
    useful_tokens: Floats

    @classmethod
    def from_result(cls, result: TrialResult) -> Self:
        """Return the measured steps of an accepted result."""
        arrays = {name: np.array(getattr(result.steps, name), dtype=np.float64) for name in ("step_time_sec", *AMOUNTS)}
        return cls(
            process=result.trial_id,
            worker=result.worker or "unknown",
            device=str(result.fingerprint.get("gpu_name") or ""),
            at_sec=result.steps_began_at,
            **arrays,
        )

    def __post_init__(self) -> None:
        shapes = {self.step_time_sec.shape, *(getattr(self, amount).shape for amount in AMOUNTS)}
        if len(shapes) != 1 or self.step_time_sec.ndim != 1 or not self.step_time_sec.size:
            raise ValueError(f"process {self.process}: expected at least one step, and arrays of equal length")
        if not 0.0 < self.step_time_sec.min() <= self.step_time_sec.max() < math.inf:
            raise ValueError(f"process {self.process}: step times must be finite and above 0 s")
        if not all(getattr(self, amount).sum() > 0 for amount in AMOUNTS):
            raise ValueError(f"process {self.process}: its steps hold no sample or no useful token")


def describe(processes: Iterable[ProcessSteps]) -> list[Process]:
    """Describe every process, in the given order; processes of equal length are computed together."""
    processes = list(processes)
    by_length: dict[int, list[int]] = {}
    for index, process in enumerate(processes):
        by_length.setdefault(len(process.step_time_sec), []).append(index)
    described: dict[int, Process] = {}
    for length, indices in by_length.items():
        times = np.stack([processes[index].step_time_sec for index in indices])
        medians = np.median(times, axis=1)
        effective, median_errors = _effective_steps_and_errors(np.log(times), length)
        errors = times.std(axis=1, ddof=1 if length > 1 else 0) / times.mean(axis=1) / np.sqrt(effective)
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
                at_sec=process.at_sec,
                steps=process.step_time_sec,
                amounts={amount: getattr(process, amount) for amount in AMOUNTS},
                step_time_sec=float(medians[row]),
                **{f"steady_{amount}_per_sec": float(by_median[amount][row]) for amount in AMOUNTS},
                elapsed_samples_per_sec=float(sums["samples"][row] / elapsed[row]),
                elapsed_useful_tokens_per_sec=float(sums["useful_tokens"][row] / elapsed[row]),
                elapsed_error=float(errors[row]),
                standard_error=float(median_errors[row]),
                effective_steps=float(effective[row]),
            )
    return [described[index] for index in range(len(processes))]


def _effective_steps_and_errors(steps: Floats, length: int) -> tuple[Floats, Floats]:
    """Compute effective steps and the median's standard error for rows of logarithms of step times."""
    median = np.median(steps, axis=1)
    sd = _SD_OF_MAD * np.median(np.abs(steps - median[:, None]), axis=1)
    ranks = np.argsort(np.argsort(steps, axis=1, kind="stable"), axis=1, kind="stable").astype(np.float64)
    ranks[np.ptp(steps, axis=1) == 0] = 0.0  # equal steps have no meaningful ranks
    rho = _unbiased(_lag1(ranks), length)
    rho = np.clip(rho + 0.5 / math.sqrt(length), 0.0, _MAX_AUTOCORRELATION) if length > 4 else np.zeros(len(steps))
    effective = np.clip(length * (1.0 - rho) / (1.0 + rho), min(3.0, length), length)
    return effective, _SE_OF_MEDIAN * sd / np.sqrt(effective)


def _lag1(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=1, keepdims=True)
    squares = (centred * centred).sum(axis=1)
    autocorrelation: Floats = (centred[:, 1:] * centred[:, :-1]).sum(axis=1) / np.where(squares > 0, squares, 1.0)
    return autocorrelation


def _unbiased(rho: Floats, length: int) -> Floats:
    """Correct the bias of a short series' lag-1 autocorrelation, which is too low by about (1 + 4 rho) / n."""
    return (length * rho + 1.0) / (length - 4.0) if length > 4 else np.zeros_like(rho)
