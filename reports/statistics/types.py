"""Results of the statistics: one process, one configuration, a ratio of two."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from reports.statistics.pooling import Spread

Over = Literal["workers", "processes", "steps"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """Description of one process. Rates are the mean amount per step over the median step time (steady state).

    Elapsed rates are all amounts over the time of all steps; `elapsed_error` is the standard error of their logarithm.
    `steps` are the step times in seconds, `amounts` each step's amounts by the names of AMOUNTS. `noise_percent` is the
    standard deviation of a step without outliers. `standard_error` is that of the logarithm of `step_time_sec`,
    corrected for autocorrelation, and at least `timer_error`, that of a coarse timer's rounding; `effective_steps` is
    the equivalent number of independent steps. `levels_percent` is the distance of the two speeds if the steps jump
    between two, else None. `drift_percent` is how much slower the last step is than the first along a fitted line, None
    below DRIFT_MIN_STEPS steps; `drifts`: it is more than noise.
    """

    process: str
    worker: str
    device: str
    steps: NDArray[np.float64]
    amounts: Mapping[str, NDArray[np.float64]] = field(repr=False)
    step_time_sec: float
    samples_per_sec: float
    tokens_per_sec: float
    useful_tokens_per_sec: float
    elapsed_samples_per_sec: float
    elapsed_useful_tokens_per_sec: float
    elapsed_error: float
    noise_percent: float
    standard_error: float
    timer_error: float
    autocorrelation: float
    effective_steps: float
    outliers: int
    levels_percent: float | None
    drift_percent: float | None
    drifts: bool

    @property
    def n_steps(self) -> int:
        return len(self.steps)

    @property
    def degrees_of_freedom(self) -> float:
        """The degrees of freedom of an interval over its steps."""
        return round(max(self.effective_steps - 1.0, 1.0), 1)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its 95 % interval over `n` steps. `low`, `high` and `over` are None if there is a single step.

    `over` says what the interval predicts: the next worker's mean ("workers"), the next process on this worker
    ("processes"), or only a longer measurement of this process ("steps").
    """

    value: float
    low: float | None
    high: float | None
    n: int
    over: Over | None = None


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Standard deviations in percent; None if there is only one process or worker.

    `steps_percent` is within a process, without outliers; `processes_percent` between processes on one worker;
    `workers_percent` between workers, including the noise of their processes.
    """

    steps_percent: float
    processes_percent: float | None
    workers_percent: float | None


@dataclass(frozen=True, kw_only=True)
class QualityFlag:
    """Doubt about a configuration's numbers. The larger of two `severity` of one `kind` is the worse."""

    kind: Literal["outliers", "drift"]
    text: str
    severity: float


@dataclass(frozen=True, kw_only=True)
class MeasuredRate:
    """One configuration over all its processes. Rates are per worker and per second.

    `worker_spread` is the slowest worker's step time over the fastest's, None with a single worker; `worker_medians`
    maps worker to its step time in seconds. `flags` are about doubtful numbers. `half_width` is half the 95 %
    interval of the logarithm of a single process's median, None with several processes or one step. `spreads` maps a
    quantity to the noise of its units, pooled over the whole run, if anything was repeated.
    """

    n_workers: int
    n_processes: int
    n_steps: int
    step_time_sec: Estimate
    samples_per_sec: Estimate
    tokens_per_sec: Estimate
    useful_tokens_per_sec: Estimate
    elapsed_samples_per_sec: Estimate
    elapsed_useful_tokens_per_sec: Estimate
    padding_percent: float
    worker_spread: float | None
    worker_medians: dict[str, float]
    noise: Noise
    outliers: int
    flags: tuple[QualityFlag, ...]
    half_width: float | None
    spreads: Mapping[str, Spread]
    processes: tuple[Process, ...] = field(repr=False, compare=False)

    @property
    def elapsed_tokens_per_sec(self) -> Estimate:
        """The elapsed rate of all tokens: of the useful ones and padding, whose share is exact."""
        useful, share = self.elapsed_useful_tokens_per_sec, 1.0 - self.padding_percent / 100.0
        low, high = (None if end is None else end / share for end in (useful.low, useful.high))
        return replace(useful, value=useful.value / share, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Ratio(Estimate):
    """A configuration's rate over the baseline's. `verdict` is None unless the interval excludes 1."""

    verdict: str | None
