"""The rows of a report: one per configuration, and one per group of similar failures."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.records.status import ReasonCode, TrialStatus
from bench.records.trial import Trial
from reports import formatting
from reports.read.loaded_run import Missing
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary import cost

Trialled = TypeVar("Trialled")


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
    worker: str
    end: TrialStatus
    reason: str | None
    reason_code: ReasonCode | None
    phase: str | None
    attempt: int
    n_steps: int
    n_measurements: int
    log_tail: tuple[str, ...]


_MAX_WORKERS_NAMED = 4  # workers in one line


def group_failures(trials: Iterable[Failure]) -> list[list[Failure]]:
    """Group by configuration, status, cause and phase; without a known cause, by reason."""
    return _group_by(trials, lambda each: (each.configuration, each.end, each.reason_code or each.reason, each.phase))


def group_missing(trials: Iterable[Missing]) -> list[list[Missing]]:
    """Group by configuration and reason."""
    return _group_by(trials, lambda each: (each.configuration, each.reason))


def _group_by(trials: Iterable[Trialled], key: Callable[[Trialled], Hashable]) -> list[list[Trialled]]:
    groups: dict[Hashable, list[Trialled]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return list(groups.values())


def group_name(trials: Sequence[Failure] | Sequence[Missing]) -> str:
    """Return the trial's id, `seq-2048.gpu-node-1`; for several, `4 trials of seq-2048`."""
    first = trials[0]
    return first.trial_id if len(trials) == 1 else f"{len(trials)} trials of {first.configuration}"


def group_workers(trials: Iterable[Failure] | Iterable[Missing]) -> str:
    """List the workers they were planned for."""
    return formatting.first_n(list(dict.fromkeys(trial.worker for trial in trials)), _MAX_WORKERS_NAMED)
