"""The rows of a report: one per configuration, and one per group of similar failures."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bench.records.result import TrialResult
from bench.records.status import ReasonCode, TrialStatus
from bench.records.trial import Trial
from reports import formatting
from reports.read.loaded_run import Missing
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary import cost


@dataclass(frozen=True, kw_only=True)
class PlannedRow:
    """A configuration, and how its planned trials ended."""

    label: str
    planned: int
    ends: dict[TrialStatus, int]
    missing: int

    @property
    def succeeded(self) -> int:
        return self.ends.get(TrialStatus.SUCCEEDED, 0)


@dataclass(frozen=True, kw_only=True)
class ConfigurationRow(PlannedRow):
    """A training configuration. `measured` and everything derived from it are None if no trial succeeded.

    The losses are those of the first and last measured step, and like `load_time_sec` medians over workers; memory is
    the maximum over workers. Ratios are against the baseline row, None for that row. `costs` has one entry for each of
    the summary's prices, in their order; `cost` is the first.
    """

    trial: Trial
    is_baseline: bool
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
class OtherConfiguration(PlannedRow):
    """A configuration that is not a training; its results are among the measurements."""

    kind: str
    reason: str
    n_measurements: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial that ended without success, and its configuration's label."""

    configuration: str
    result: TrialResult

    @property
    def trial_id(self) -> str:
        return self.result.trial_id

    @property
    def worker(self) -> str:
        return self.result.worker or ""  # that of the plan

    @property
    def cause(self) -> tuple[object, ...]:
        """Status, reason code (without a known one, the reason) and last phase, which similar failures share."""
        known = self.result.reason_code not in (None, ReasonCode.UNKNOWN)
        reason = self.result.reason_code if known else self.result.outcome.text
        return self.result.status, reason, next(reversed(self.result.phases), None)

    @property
    def counts(self) -> dict[str, int]:
        """The attempt, and the numbers of steps and measurements that the trial has."""
        result = self.result
        numbers = {"n_steps": len(result.steps.step_time_sec), "n_measurements": len(result.measurements)}
        return {"attempt": result.attempt} | numbers

    def to_json(self) -> dict[str, object]:
        """Return the fields of summary.json."""
        return {
            "trial_id": self.trial_id,
            "configuration": self.configuration,
            "worker": self.worker,
            "end": self.result.status,
            "reason": self.result.outcome.text,
            **self.counts,
        }


_MAX_WORKERS_NAMED = 4  # workers in one line
Trialled = TypeVar("Trialled", Failure, Missing)


def group_similar(trials: Iterable[Trialled]) -> list[list[Trialled]]:
    """Group by configuration and cause."""
    groups: dict[Hashable, list[Trialled]] = {}
    for trial in trials:
        groups.setdefault((trial.configuration, trial.cause), []).append(trial)
    return list(groups.values())


def group_name(trials: Sequence[Failure] | Sequence[Missing]) -> str:
    """Return the trial's id, `seq-2048.gpu-node-1`; for several, `4 trials of seq-2048`."""
    first = trials[0]
    return first.trial_id if len(trials) == 1 else f"{len(trials)} trials of {first.configuration}"


def group_workers(trials: Iterable[Failure] | Iterable[Missing]) -> str:
    """List the workers they were planned for."""
    return formatting.first_n(list(dict.fromkeys(trial.worker for trial in trials)), _MAX_WORKERS_NAMED)
