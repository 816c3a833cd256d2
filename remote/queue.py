"""The trials that wait for a host, and who may have them. Thread-safe; the ledger says which are still open."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bench.result import PlannedTrial
from remote.ledger import Ledger

_LOOK_SEC = 1.0  # an upper bound on noticing a change nobody announced


class TrialQueue:
    """One queue for all hosts. A trial pinned to a worker is handed to that worker only."""

    def __init__(self, ledger: Ledger, planned: Sequence[PlannedTrial]) -> None:
        self._ledger = ledger
        self._planned = list(planned)
        self._waiting: list[PlannedTrial] = []
        self._released: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, planned: PlannedTrial) -> None:
        """Queue a trial for the next idle host that may run it."""
        with self._changed:
            self._released.discard(planned.trial_id)
            self._waiting.append(planned)
            self._changed.notify_all()

    def release(self, trial_id: str) -> None:
        """Nobody follows this trial now, and nobody else may start it: only its own host may claim it again."""
        with self._changed:
            self._released.add(trial_id)
            self._changed.notify_all()

    def hand_on(self, planned: PlannedTrial) -> None:
        """Queue a released trial for other hosts; one that is not released (claimed, queued, ended) stays as it is."""
        with self._changed:
            if planned.trial_id in self._released and self._ledger.is_open(planned.trial_id):
                self._released.remove(planned.trial_id)
                self._waiting.append(planned)
                self._changed.notify_all()

    def claim(self, trial_id: str) -> bool:
        """Take back a trial whose earlier attempt is at hand; False when it has ended or another host has it."""
        with self._changed:
            if not self._ledger.is_open(trial_id):
                return False
            for planned in self._waiting:
                if planned.trial_id == trial_id:
                    self._waiting.remove(planned)
                    return True
            if trial_id in self._released:
                self._released.remove(trial_id)
                return True
            return False

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

    def _open(self) -> list[PlannedTrial]:
        still = set(self._ledger.open_trials())
        return [planned for planned in self._planned if planned.trial_id in still]

    def _is_open_for(self, worker: str) -> bool:
        return any(planned.worker in (None, worker) for planned in self._open())
