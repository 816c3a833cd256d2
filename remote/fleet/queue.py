"""The trials that wait for a host, and who may have them. Thread-safe; the ledger says which are still open."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from bench.records.run import PlannedTrial
from remote.fleet.ledger import Ledger

_LOOK_SEC = 1.0  # after which a change that nothing announced is noticed


class TrialQueue:
    """One queue for all hosts. A trial pinned to a worker is handed to that worker only."""

    def __init__(self, ledger: Ledger, planned: Sequence[PlannedTrial]) -> None:
        self._ledger = ledger
        self._planned = list(planned)
        self._waiting: list[PlannedTrial] = []
        self._released: dict[str, PlannedTrial] = {}  # not followed now, and not to be started yet
        self._expected: defaultdict[str, set[str]] = defaultdict(set)  # workers whose earlier attempts are unknown
        self._changed = threading.Condition()
        self._closed = False

    def put(self, planned: PlannedTrial) -> None:
        """Queue a trial for the next idle host that may run it, once what became of its earlier attempts is known."""
        with self._changed:
            self._released[planned.trial_id] = planned
            self._queue_if_free(planned.trial_id)

    def release(self, planned: PlannedTrial, worker: str) -> None:
        """This trial is not followed now, and `worker` has an earlier attempt: no other is started before `pass_on`."""
        with self._changed:
            self._released[planned.trial_id] = planned
            self._expected[planned.trial_id].add(worker)
            self._changed.notify_all()

    def pass_on(self, trial_id: str, worker: str) -> None:
        """What became of `worker`'s attempt is known, or cannot be known: others may have the trial."""
        with self._changed:
            self._expected[trial_id].discard(worker)
            self._queue_if_free(trial_id)

    def give_up(self, trial_id: str, worker: str) -> bool:
        """`worker` will not come back for this trial. True, and the trial claimed, if no other worker may have it."""
        with self._changed:
            self._expected[trial_id].discard(worker)
            return not self._expected[trial_id] and self._released.pop(trial_id, None) is not None

    def claim(self, trial_id: str) -> bool:
        """Take back a trial whose earlier attempt has been found; False when it has ended or another host has it."""
        with self._changed:
            if not self._ledger.is_open(trial_id):
                return False
            for planned in self._waiting:
                if planned.trial_id == trial_id:
                    self._waiting.remove(planned)
                    return True
            return self._released.pop(trial_id, None) is not None

    def take(self, worker: str) -> PlannedTrial | None:
        """The next trial for `worker`; waits for one to come back if need be. None when there will be no more."""
        with self._changed:
            while not self._closed and self._is_open_for(worker):
                for planned in self._waiting:
                    if planned.worker in (None, worker) and self._ledger.is_open(planned.trial_id):
                        self._waiting.remove(planned)
                        return planned
                self._changed.wait(_LOOK_SEC)
            return None

    def is_open_for(self, worker: str) -> bool:
        """True while a trial without an end could still be run by `worker`."""
        with self._changed:
            return not self._closed and self._is_open_for(worker)

    def pinned_to(self, worker: str) -> list[PlannedTrial]:
        """The open trials that only `worker` may run."""
        return [planned for planned in self._open() if planned.worker == worker]

    def settle(self) -> None:
        """A trial has ended: waiting workers look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _queue_if_free(self, trial_id: str) -> None:
        if not self._expected[trial_id] and (planned := self._released.pop(trial_id, None)) is not None:
            self._waiting.append(planned)
        self._changed.notify_all()

    def _open(self) -> list[PlannedTrial]:
        still = set(self._ledger.open_trials())
        return [planned for planned in self._planned if planned.trial_id in still]

    def _is_open_for(self, worker: str) -> bool:
        return any(planned.worker in (None, worker) for planned in self._open())
