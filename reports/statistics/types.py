"""Results of the statistics: one process, one configuration, a ratio of two."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.records import student
from reports.statistics.pooling import Spread

MISSED_STEP = 0.5  # in median steps
Over = Literal["runs", "workers", "processes", "steps"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """Description of one process. Elapsed rates are all amounts over the time of all steps, slow ones included; steady
    rates are the mean amount per step over the median step time. `elapsed_error` is the standard error of the former's
    logarithm, `standard_error` that of `step_time_sec`, corrected for autocorrelation; `effective_steps` is the
    equivalent number of independent steps. `steps` are in seconds, `amounts` by the names of AMOUNTS.

    `at_sec` is when its steps began by its worker's clock; `trend` is the logarithm of its slowdown that the run's
    drift explains (`pooling.Slope`).
    """

    process: str
    worker: str
    device: str
    at_sec: float
    steps: NDArray[np.float64]
    amounts: Mapping[str, NDArray[np.float64]] = field(repr=False)
    step_time_sec: float
    steady_samples_per_sec: float
    steady_tokens_per_sec: float
    steady_useful_tokens_per_sec: float
    elapsed_samples_per_sec: float
    elapsed_useful_tokens_per_sec: float
    elapsed_error: float
    standard_error: float
    effective_steps: float
    trend: float = 0.0

    @property
    def n_steps(self) -> int:
        return len(self.steps)

    def half_width(self, *, elapsed: bool) -> float | None:
        """Return half the 95 % interval over the steps of its only process; None for a single step.

        Student's t of the effective steps times the standard error. The elapsed rate may have missed a slow step:
        without that, 84 % of simulated intervals held it.
        """
        if self.n_steps < 2:
            return None
        error = math.hypot(self.elapsed_error, MISSED_STEP / self.n_steps) if elapsed else self.standard_error
        return error * student.quantile(0.95, round(max(self.effective_steps - 1.0, 1.0), 1))


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
class MeasuredRate:
    """One configuration over all its processes. Rates are per worker and per second.

    `worker_medians` maps worker to its step time in seconds. `spreads` maps a quantity to the noise of its units,
    pooled over the whole run, if anything was repeated.
    """

    n_workers: int
    n_processes: int
    n_steps: int
    step_time_sec: Estimate
    steady_samples_per_sec: Estimate
    steady_tokens_per_sec: Estimate
    steady_useful_tokens_per_sec: Estimate
    elapsed_samples_per_sec: Estimate
    elapsed_useful_tokens_per_sec: Estimate
    padding_percent: float
    worker_medians: dict[str, float]
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
    """A configuration's elapsed rate over the baseline's; `steady` is that of their steady rates.

    `verdict` is "faster" or "slower" if the interval of `steady` excludes 1 and slow steps leave at least half of that
    difference; None: it cannot be told.
    """

    verdict: Literal["faster", "slower"] | None
    steady: Estimate

    @property
    def is_shown_elapsed(self) -> bool:
        """True if the interval of the elapsed rates excludes 1, too."""
        return self.low is not None and self.high is not None and not self.low <= 1.0 <= self.high

    @property
    def word(self) -> str:
        """The verdict for a table that shows the elapsed interval; "" without one."""
        return "" if self.verdict is None else self.verdict if self.is_shown_elapsed else f"{self.verdict}, steady"
