"""What did not work, what is alike in one line: a configuration that runs out of memory does so on every worker."""

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from reports import formatting
from reports.read.run import Missing
from reports.summary.summary import Failure

Ended = TypeVar("Ended", Failure, Missing)
_NAMED = 4  # workers in one line


@dataclass(frozen=True, kw_only=True)
class FailureGroup(Generic[Ended]):
    """Trials of one configuration that ended alike; `first` stands for all."""

    trials: tuple[Ended, ...]

    @property
    def first(self) -> Ended:
        return self.trials[0]

    @property
    def name(self) -> str:
        """`seq-2048.gpu-node-1`; of several, `4 trials of seq-2048`."""
        amount = len(self.trials)
        return self.first.trial_id if amount == 1 else f"{amount} trials of {self.first.configuration}"

    def workers(self, none: str) -> str:
        """Where they ran; `none` where that is not known."""
        return formatting.first_n(list(dict.fromkeys(trial.worker or none for trial in self.trials)), _NAMED)

    def span(self, what: str) -> str:
        """`0`, `2 to 5`: the smallest and the largest of a number."""
        return formatting.number_range(int(getattr(trial, what)) for trial in self.trials)


def failures(found: Iterable[Failure]) -> list[FailureGroup[Failure]]:
    """Grouped by configuration, end and reason; numbers in a reason (bytes, process ids) do not tell them apart."""
    return _alike(found, lambda one: (one.configuration, one.end, re.sub(r"\d+", "0", one.reason or "")))


def missing(found: Iterable[Missing]) -> list[FailureGroup[Missing]]:
    """Grouped by configuration and reason."""
    return _alike(found, lambda one: (one.configuration, one.reason))


def _alike(found: Iterable[Ended], key: Callable[[Ended], Hashable]) -> list[FailureGroup[Ended]]:
    groups: dict[Hashable, list[Ended]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return [FailureGroup(trials=tuple(same)) for same in groups.values()]
