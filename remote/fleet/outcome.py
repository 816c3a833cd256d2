"""What an attempt came to: its result brought to this machine, verified, and the verdict on it.

Where the workers share a volume (`remote.fleet.shared_volume`), a result that a dead worker left there is found as
well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.records.layout import RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.sealed import ResultError
from remote.fleet.ledger import Attempt
from remote.fleet.verdict import Verdict, belongs, judge
from remote.jobs.job import Job, JobStatus
from remote.jobs.transfer import ChecksumMismatch, pull


def bring(
    job: Job, planned: PlannedTrial, attempt: Attempt, status: JobStatus, *, places: Sequence[str], incoming: Path
) -> tuple[Verdict, Path | None]:
    """The verdict on an attempt whose job is over, and where its own result lies now (None: it left none).

    `places` are the folders on the host where the result may be, the first one that has it counts; it is laid down
    below `incoming`, whose parent must be there: a run's folder that went away is not made anew. Raises HostError.
    """
    into = incoming / f"{planned.trial_id}.{attempt.number}"
    for folder in (incoming, into):
        folder.mkdir(exist_ok=True)
    path, result, damage = into / RESULT_FILE, None, None
    for place in places:
        try:
            pull(job.agent, place, into, only=(RESULT_FILE,))
            result = TrialResult.read(path) if path.exists() else None
        except (ResultError, ChecksumMismatch) as error:
            damage = str(error)
        if result is not None:
            break
    log_tail = job.log_tail() if result is None else []
    verdict = judge(planned, attempt.number, status, result, log_tail, damage)
    is_its_own = result is not None and belongs(result, planned, attempt.number)
    return verdict, path if is_its_own else None
