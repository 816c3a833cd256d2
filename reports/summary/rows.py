"""The rows of a report: one per configuration, and one per group of similar failures."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bench.records.status import ReasonCode, TrialStatus
from bench.records.trial import Trial
from reports import formatting
from reports.read.loaded_run import Missing
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary import cost


@dataclass(frozen=True, kw_only=True)
class ConfigurationRow:
    """A training configuration. `measured` and everything derived from it are None if no trial succeeded.

    The losses are those of the first and last measured step, and like `load_time_sec` medians over workers; memory is
    the maximum over workers. Ratios are against the baseline row, None for that row. `costs` has one entry for each of
    the summary's prices, in their order; `cost` is the first.
    """

    label: str
    trial: Trial
    is_baseline: bool
    planned: int
    ends: dict[TrialStatus, int]
    missing: int
    measured: MeasuredRate | None
    samples_ratio: Ratio | None
    useful_tokens_ratio: Ratio | None
    costs: tuple[cost.Cost, ...]
    first_loss: float | None
    last_loss: float | None
    peak_vram_bytes: int | None
    peak_rss_bytes: int | None
    load_time_sec: float | None

    @property
    def succeeded(self) -> int:
        return self.ends.get(TrialStatus.SUCCEEDED, 0)

    @property
    def is_reliable(self) -> bool:
        """True if something was measured and no trial failed, timed out or ran out of memory."""
        return self.measured is not None and not any(count and end.is_failure for end, count in self.ends.items())

    @property
    def cost(self) -> cost.Cost | None:
        return self.costs[0] if self.costs else None

    @property
    def samples_rate(self) -> float:
        """Elapsed samples per second and worker; 0 if nothing was measured."""
        return 0.0 if self.measured is None else self.measured.elapsed_samples_per_sec.value

    @property
    def useful_rate(self) -> float:
        """Elapsed useful tokens per second and worker; 0 if nothing was measured."""
        return 0.0 if self.measured is None else self.measured.elapsed_useful_tokens_per_sec.value

    @property
    def steady_rate(self) -> float:
        """Steady useful tokens per second and worker, which slow steps do not change; 0 if nothing was measured."""
        return 0.0 if self.measured is None else self.measured.steady_useful_tokens_per_sec.value

    @property
    def peak_bytes(self) -> int | None:
        """Peak memory: of the GPU if there is one, else of the process."""
        return self.peak_rss_bytes if self.peak_vram_bytes is None else self.peak_vram_bytes


@dataclass(frozen=True, kw_only=True)
class OtherConfiguration:
    """A configuration that is not a training; its results are among the measurements."""

    label: str
    kind: str
    reason: str
    planned: int
    ends: dict[TrialStatus, int]
    missing: int
    n_measurements: int

    @property
    def succeeded(self) -> int:
        return self.ends.get(TrialStatus.SUCCEEDED, 0)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial that ended without success, and the numbers of steps and measurements that it has.

    `reason_code` is None for an unknown cause; `phase` is the last one that the trial entered.
    """

    trial_id: str
    configuration: str
    worker: str | None
    end: TrialStatus
    reason: str | None
    reason_code: ReasonCode | None
    phase: str | None
    attempt: int
    n_steps: int
    n_measurements: int
    log_tail: tuple[str, ...]


Unsuccessful = TypeVar("Unsuccessful", Failure, Missing)
_MAX_WORKERS_NAMED = 4  # workers in one line


@dataclass(frozen=True, kw_only=True)
class FailureGroup(Generic[Unsuccessful]):
    """Trials of one configuration with the same outcome; `first` represents them."""

    trials: tuple[Unsuccessful, ...]

    @property
    def first(self) -> Unsuccessful:
        return self.trials[0]

    @property
    def name(self) -> str:
        """The trial's id, `seq-2048.gpu-node-1`; for several, `4 trials of seq-2048`."""
        amount = len(self.trials)
        return self.first.trial_id if amount == 1 else f"{amount} trials of {self.first.configuration}"

    def workers(self, unknown: str) -> str:
        """List the workers they ran on; `unknown` replaces a missing one."""
        return formatting.first_n(
            list(dict.fromkeys(trial.worker or unknown for trial in self.trials)), _MAX_WORKERS_NAMED
        )

    def number_range(self, attribute: str) -> str:
        """Format the smallest and the largest value of a numeric attribute: `0`, `2 to 5`."""
        return formatting.number_range(int(getattr(trial, attribute)) for trial in self.trials)


def group_failures(trials: Iterable[Failure]) -> list[FailureGroup[Failure]]:
    """Group by configuration, status, cause and phase; without a known cause, by reason."""
    return _group_by(
        trials,
        lambda failure: (failure.configuration, failure.end, failure.reason_code or failure.reason, failure.phase),
    )


def group_missing(trials: Iterable[Missing]) -> list[FailureGroup[Missing]]:
    """Group by configuration and reason."""
    return _group_by(trials, lambda trial: (trial.configuration, trial.reason))


def _group_by(
    trials: Iterable[Unsuccessful], key: Callable[[Unsuccessful], Hashable]
) -> list[FailureGroup[Unsuccessful]]:
    groups: dict[Hashable, list[Unsuccessful]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return [FailureGroup(trials=tuple(members)) for members in groups.values()]
