"""What a fleet reports while it works: one event for each change, for a view to show. Events decide nothing."""

from dataclasses import dataclass
from enum import Enum

from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, Progress
from remote.fleet.ledger import Attempt


class EventType(Enum):
    """What happened."""

    STARTED = "started"
    ATTACHED = "attached"  # a resumed run found the trial still running, or already ended, on its worker
    PROGRESS = "progress"
    RETRYING = "retrying"  # this attempt did not get to a result; the trial is back in the queue
    ENDED = "ended"
    WORKER_LOST = "worker lost"
    SHUT_OUT = "shut out"  # the operator is refused (expired credentials): no worker's doing, and nothing is lost
    WORKER_BUSY = "worker busy"  # with another run's trial: it is waited for
    WORKER_BACK = "worker back"


@dataclass(frozen=True, kw_only=True)
class FleetEvent:
    """One change. `trial_id` is None for a worker's own events; `end` is set with ENDED; `progress` with PROGRESS."""

    happening: EventType
    worker: str
    trial_id: str | None = None
    attempt: int = 1
    progress: Progress | None = None
    end: TrialStatus | None = None
    reason: str | None = None


def of_attempt(happening: EventType, planned: PlannedTrial, attempt: Attempt | None) -> FleetEvent:
    """The event of an attempt; None where the trial ended without one."""
    if attempt is None:
        return FleetEvent(happening=happening, worker=planned.worker or "", trial_id=planned.trial_id)
    worker, number = attempt.worker, attempt.number
    return FleetEvent(happening=happening, worker=worker, trial_id=planned.trial_id, attempt=number)
