"""The trials that wait for a host, and who may have them. Thread-safe; the ledger says which are still open."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.records.run import PlannedTrial
from remote.fleet.ledger import Attempt, Ledger

_LOOK_SEC = 1.0  # after which a change that nothing announced is noticed


@dataclass(kw_only=True, eq=False)
class OpenTrial:
    """A trial that had no end when the fleet began. `budget`: how many attempts it may have, earlier runs included.

    `begun` and `kept_out` are the folders of attempts: those that a host has taken, and those that found it busy.
    `is_released`: it is not followed now, and waits until the attempts of the workers in `expected` are known.
    """

    planned: PlannedTrial
    budget: int
    begun: set[str] = field(default_factory=set)
    kept_out: set[str] = field(default_factory=set)
    is_released: bool = False
    expected: set[str] = field(default_factory=set)

    @property
    def trial_id(self) -> str:
        return self.planned.trial_id

    def may_follow(self, attempt: Attempt) -> bool:
        """Whether another attempt may follow this one. Those that only ever found their worker busy do not count."""
        return attempt.number < self.budget + len(self.kept_out - self.begun)

    def is_for(self, worker: str) -> bool:
        return self.planned.worker in (None, worker)


class TrialQueue:
    """One queue for all hosts. A trial pinned to a worker is handed to that worker only."""

    def __init__(self, ledger: Ledger, trials: Mapping[str, OpenTrial]) -> None:
        self._ledger, self._trials = ledger, trials
        self._waiting: list[OpenTrial] = []
        self._changed = threading.Condition()
        self._closed = False

    def put(self, trial: OpenTrial) -> None:
        """Queue a trial for the next idle host that may run it, once what became of its earlier attempts is known."""
        with self._changed:
            trial.is_released = True
            self._queue_if_free(trial)

    def release(self, trial: OpenTrial, worker: str) -> None:
        """This trial is not followed now, and `worker` has an earlier attempt: no other is started before `pass_on`."""
        with self._changed:
            trial.is_released = True
            trial.expected.add(worker)
            self._changed.notify_all()

    def pass_on(self, trial: OpenTrial, worker: str) -> None:
        """What became of `worker`'s attempt is known, or cannot be known: others may have the trial."""
        with self._changed:
            trial.expected.discard(worker)
            self._queue_if_free(trial)

    def give_up(self, trial: OpenTrial, worker: str) -> bool:
        """`worker` will not come back for this trial. True, and the trial claimed, if no other worker may have it."""
        with self._changed:
            trial.expected.discard(worker)
            return not trial.expected and self._unreleased(trial)

    def claim(self, trial: OpenTrial) -> bool:
        """Take back a trial whose earlier attempt has been found; False when it has ended or another host has it."""
        with self._changed:
            if not self._ledger.is_open(trial.trial_id):
                return False
            if trial in self._waiting:
                self._waiting.remove(trial)
                return True
            return self._unreleased(trial)

    def take(self, worker: str) -> OpenTrial | None:
        """The next trial for `worker`; waits for one to come back if need be. None when there will be no more."""
        with self._changed:
            while not self._closed and self._is_open_for(worker):
                for trial in self._waiting:
                    if trial.is_for(worker) and self._ledger.is_open(trial.trial_id):
                        self._waiting.remove(trial)
                        return trial
                self._changed.wait(_LOOK_SEC)
            return None

    def is_open_for(self, worker: str) -> bool:
        """True while a trial without an end could still be run by `worker`."""
        with self._changed:
            return not self._closed and self._is_open_for(worker)

    def open_trials(self) -> list[OpenTrial]:
        """The trials without an end, in plan order."""
        return [self._trials[trial_id] for trial_id in self._ledger.open_trials() if trial_id in self._trials]

    def settle(self) -> None:
        """A trial has ended: waiting workers look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _queue_if_free(self, trial: OpenTrial) -> None:
        if not trial.expected and self._unreleased(trial):
            self._waiting.append(trial)
        self._changed.notify_all()

    @staticmethod
    def _unreleased(trial: OpenTrial) -> bool:
        """Whether the trial was released; it is not any more."""
        was_released, trial.is_released = trial.is_released, False
        return was_released

    def _is_open_for(self, worker: str) -> bool:
        return any(trial.is_for(worker) for trial in self.open_trials())
