"""The trials that wait for a host, and who may have them. Thread-safe; the ledger says which are still open."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from bench.records.run import PlannedTrial
from remote.fleet.ledger import Ledger

_LOOK_SEC = 1.0  # an upper bound on noticing a change nobody announced


class TrialQueue:
    """One queue for all hosts. A trial pinned to a worker is handed to that worker only."""

    def __init__(self, ledger: Ledger, planned: Sequence[PlannedTrial]) -> None:
        self._ledger = ledger
        self._planned = list(planned)
        self._waiting: list[PlannedTrial] = []
        self._released: dict[str, PlannedTrial] = {}  # followed by nobody, and not to be started yet
        self._expected: defaultdict[str, set[str]] = defaultdict(set)  # the workers whose earlier attempts are unknown
        self._changed = threading.Condition()
        self._closed = False

    def put(self, planned: PlannedTrial) -> None:
        """Queue a trial for the next idle host that may run it, once no earlier attempt is still to be heard of."""
        with self._changed:
            self._released[planned.trial_id] = planned
            self._queue_if_free(planned.trial_id)

    def release(self, planned: PlannedTrial, worker: str) -> None:
        """Nobody follows this trial now, and `worker` has an earlier attempt: nobody may start another before
        `pass_on` says that this one keeps no one from it."""
        with self._changed:
            self._released[planned.trial_id] = planned
            self._expected[planned.trial_id].add(worker)
            self._changed.notify_all()

    def pass_on(self, trial_id: str, worker: str) -> None:
        """What `worker` has of this trial is known, or out of reach: it keeps nobody from it any longer."""
        with self._changed:
            self._expected[trial_id].discard(worker)
            self._queue_if_free(trial_id)

    def give_up(self, trial_id: str, worker: str) -> bool:
        """`worker` will not come back for this trial; True, and the trial claimed, when nobody else is left to ask."""
        with self._changed:
            self._expected[trial_id].discard(worker)
            return not self._expected[trial_id] and self._released.pop(trial_id, None) is not None

    def claim(self, trial_id: str) -> bool:
        """Take back a trial whose earlier attempt is at hand; False when it has ended or another host has it."""
        with self._changed:
            if not self._ledger.is_open(trial_id):
                return False
            for planned in self._waiting:
                if planned.trial_id == trial_id:
                    self._waiting.remove(planned)
                    return True
            return self._released.pop(trial_id, None) is not None

    def take(self, worker: str) -> PlannedTrial | None:
        """The next trial for `worker`, waiting for one to come back if need be; None when there will be no more."""
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
        """A trial has ended: those who wait look again."""
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
