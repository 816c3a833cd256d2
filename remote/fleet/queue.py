"""Queue of the trials that wait for a host. Thread-safe; the ledger says which are still open.

Events that a fleet sends to a display, one for each change. Events decide nothing.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from bench.records.run import PlannedTrial, Progress
from bench.records.status import TrialStatus
from remote.fleet.ledger import Attempt, Ledger


class EventType(Enum):
    """The kind of a change."""

    STARTED = "started"
    ATTACHED = "attached"  # a resumed run: the trial still runs on its worker, or has ended there
    PROGRESS = "progress"
    RETRYING = "retrying"  # this attempt has no result; the trial is back in the queue
    ENDED = "ended"
    WORKER_LOST = "worker lost"
    CREDENTIALS_REJECTED = "shut out"  # the operator's credentials expired; no worker is at fault and nothing is lost
    WORKER_BUSY = "worker busy"  # it runs another run's trial; the fleet waits for it
    WORKER_DIAGNOSED = "still waiting"  # why a lost worker does not come back, each time this changes
    WORKER_BACK = "worker back"
    WORKER_FAULTY = "worker faulty"  # its GPU showed a fault: it takes no more trials of the run


@dataclass(frozen=True, kw_only=True)
class FleetEvent:
    """One change. A worker's own events have no `trial_id`; ENDED has a `status`, PROGRESS a `progress`.

    `may_still_run`: its job did not confirm its end.
    """

    kind: EventType
    worker: str
    trial_id: str | None = None
    attempt: int = 1
    progress: Progress | None = None
    status: TrialStatus | None = None
    reason: str | None = None
    may_still_run: bool = False


def attempt_event(kind: EventType, planned: PlannedTrial, attempt: Attempt | None) -> FleetEvent:
    """Return an event about `attempt`, which is None if the trial ended without one."""
    if attempt is None:
        return FleetEvent(kind=kind, worker=planned.worker or "", trial_id=planned.trial_id)
    worker, number = attempt.worker, attempt.number
    return FleetEvent(kind=kind, worker=worker, trial_id=planned.trial_id, attempt=number)


_POLL_SEC = 1.0  # a change without a notification is noticed after this time


@dataclass(kw_only=True, eq=False)
class OpenTrial:
    """A trial that had not ended when the fleet started. `max_attempts` includes the attempts of earlier runs.

    `started_folders` and `busy_folders` are the folders of attempts: those that started, and those whose host was busy.
    `is_released`: no worker follows the trial now. It waits until the attempts of the `awaited_workers` are known.
    """

    planned: PlannedTrial
    max_attempts: int
    started_folders: set[str] = field(default_factory=set)
    busy_folders: set[str] = field(default_factory=set)
    is_released: bool = False
    awaited_workers: set[str] = field(default_factory=set)

    @property
    def trial_id(self) -> str:
        return self.planned.trial_id

    def allows_retry_after(self, attempt: Attempt) -> bool:
        """Check whether another attempt may follow this one. Attempts that only met a busy worker do not count."""
        return attempt.number < self.max_attempts + len(self.busy_folders - self.started_folders)

    def can_run_on(self, worker: str) -> bool:
        return self.planned.worker in (None, worker)


class TrialQueue:
    """One queue for all hosts. A trial pinned to a worker is handed to that worker only."""

    def __init__(self, ledger: Ledger, trials: Mapping[str, OpenTrial]) -> None:
        self._ledger, self._trials = ledger, trials
        self._waiting: list[OpenTrial] = []
        self._changed = threading.Condition()
        self._closed = False

    def put(self, trial: OpenTrial) -> None:
        """Queue a trial for the next idle host that may run it, once the outcome of its earlier attempts is known."""
        with self._changed:
            trial.is_released = True
            self._queue_if_free(trial)

    def release(self, trial: OpenTrial, worker: str) -> None:
        """Release a trial that `worker` has an attempt at: no other attempt starts before `stop_awaiting`."""
        with self._changed:
            trial.is_released = True
            trial.awaited_workers.add(worker)
            self._changed.notify_all()

    def stop_awaiting(self, trial: OpenTrial, worker: str) -> None:
        """Offer the trial to other workers: the outcome of `worker`'s attempt is known, or cannot be known."""
        with self._changed:
            trial.awaited_workers.discard(worker)
            self._queue_if_free(trial)

    def give_up(self, trial: OpenTrial, worker: str) -> bool:
        """Give up on `worker` for this trial. Returns True, and claims the trial, if no other worker may have it."""
        with self._changed:
            trial.awaited_workers.discard(worker)
            return not trial.awaited_workers and self._clear_released(trial)

    def claim(self, trial: OpenTrial) -> bool:
        """Claim a trial for its earlier attempt. Returns False if it has ended or another host has it."""
        with self._changed:
            if not self._ledger.is_open(trial.trial_id):
                return False
            if trial in self._waiting:
                self._waiting.remove(trial)
                return True
            return self._clear_released(trial)

    def get(self, worker: str) -> OpenTrial | None:
        """Return the next trial for `worker`, or None if there will be no more. Waits while one may be requeued."""
        with self._changed:
            while not self._closed and self._has_trial_for(worker):
                for trial in self._waiting:
                    if trial.can_run_on(worker) and self._ledger.is_open(trial.trial_id):
                        self._waiting.remove(trial)
                        return trial
                self._changed.wait(_POLL_SEC)
            return None

    def has_trial_for(self, worker: str) -> bool:
        """Check whether `worker` may still run a trial that has not ended."""
        with self._changed:
            return not self._closed and self._has_trial_for(worker)

    def open_trials(self) -> list[OpenTrial]:
        """List the trials that have not ended, in plan order."""
        return [self._trials[trial_id] for trial_id in self._ledger.open_trials() if trial_id in self._trials]

    def notify(self) -> None:
        """Wake the waiting workers, after a trial has ended."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _queue_if_free(self, trial: OpenTrial) -> None:
        if not trial.awaited_workers and self._clear_released(trial):
            self._waiting.append(trial)
        self._changed.notify_all()

    @staticmethod
    def _clear_released(trial: OpenTrial) -> bool:
        """Clear `is_released`; return its old value."""
        was_released, trial.is_released = trial.is_released, False
        return was_released

    def _has_trial_for(self, worker: str) -> bool:
        return any(trial.can_run_on(worker) for trial in self.open_trials())
