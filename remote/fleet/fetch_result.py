"""Download of the result that an attempt left on its host, and its verdict."""

from collections.abc import Sequence
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import PROGRESS_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import Outcome
from remote.fleet.ledger import Attempt
from remote.fleet.outcome import is_result_of, judge
from remote.jobs.job import Job, JobState, JobStatus
from remote.jobs.transfer import ChecksumMismatch, pull

OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
PROGRESS_PATH = f"{OUT_FOLDER}/{PROGRESS_FILE}"


def fetch_result(
    job: Job,
    planned: PlannedTrial,
    attempt: Attempt,
    status: JobStatus,
    *,
    remote_folders: Sequence[str],
    download_folder: Path,
) -> tuple[Outcome, Path | None]:
    """Return the verdict on an attempt whose job is over, and the local path of its verified result, or None.

    The result is in the first of the host's `remote_folders` that has one. It is downloaded below `download_folder`,
    whose parent must exist, so that a deleted run folder is not created again. Raises HostError.
    """
    local_folder = download_folder / f"{planned.trial_id}.{attempt.number}"
    for folder in (download_folder, local_folder):
        folder.mkdir(exist_ok=True)
    path, result, verification_error = local_folder / RESULT_FILE, None, None
    for remote_folder in remote_folders:
        try:
            pull(job.agent, remote_folder, local_folder, only=(RESULT_FILE,))
            result = TrialResult.read(path) if path.exists() else None
        except (ResultError, ChecksumMismatch) as error:
            verification_error = str(error)
        if result is not None:
            break
    # The verdict on a job that did not end on its own does not depend on its output.
    log_tail = job.log_tail() if result is None and status.state is JobState.ENDED else []
    verdict = judge(planned, attempt.number, status, result, log_tail, verification_error)
    is_its_own = result is not None and is_result_of(result, planned, attempt.number)
    return verdict, path if is_its_own else None
