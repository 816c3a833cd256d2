"""Events that a fleet sends to a display, one for each change. Events decide nothing."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from bench.records.run import PlannedTrial, Progress
from bench.records.status import TrialStatus
from remote.fleet.ledger import Attempt


class EventType(Enum):
    """The kind of a change."""

    STARTED = "started"
    ATTACHED = "attached"  # a resumed run: the trial still runs on its worker, or has ended there
    PROGRESS = "progress"
    RETRYING = "retrying"  # this attempt has no result; another one follows
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


def attempt_event(kind: EventType, planned: PlannedTrial, attempt: Attempt | None, **more: Any) -> FleetEvent:
    """Return an event about `attempt`, which is None if the trial ended without one."""
    worker, number = (planned.worker, 1) if attempt is None else (attempt.worker, attempt.number)
    return FleetEvent(kind=kind, worker=worker, trial_id=planned.trial_id, attempt=number, **more)
