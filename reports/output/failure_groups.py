"""Groups of similar failures: a configuration that runs out of memory usually does so on every worker."""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from reports import formatting
from reports.read.run import Missing
from reports.summary.summary import Failure

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
    """Group by configuration, status and reason; numbers in the reason (bytes, process ids) are ignored."""
    return _group_by(
        trials, lambda failure: (failure.configuration, failure.end, re.sub(r"\d+", "0", failure.reason or ""))
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
