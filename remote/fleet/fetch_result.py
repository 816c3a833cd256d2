"""What an attempt at a trial leaves on its host, and how it is brought to this machine and judged."""

from collections.abc import Sequence
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import PROGRESS_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from remote.fleet.ledger import Attempt
from remote.fleet.outcome import Verdict, belongs, judge
from remote.jobs.job import Job, JobState, JobStatus
from remote.jobs.transfer import ChecksumMismatch, pull

OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
PROGRESS = f"{OUT_FOLDER}/{PROGRESS_FILE}"


def fetch_result(
    job: Job, planned: PlannedTrial, attempt: Attempt, status: JobStatus, *, places: Sequence[str], incoming: Path
) -> tuple[Verdict, Path | None]:
    """The verdict on an attempt whose job is over, and where its own verified result lies now (None: it left none).

    `places` are the folders on the host where the result may be; the first that has it counts. The result is put below
    `incoming`, whose parent must exist: a run's folder that was deleted is not made again. Raises HostError.
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
    # Of a job that has not come to its end, the verdict does not depend on what it printed.
    log_tail = job.log_tail() if result is None and status.state is JobState.ENDED else []
    verdict = judge(planned, attempt.number, status, result, log_tail, damage)
    is_its_own = result is not None and belongs(result, planned, attempt.number)
    return verdict, path if is_its_own else None
