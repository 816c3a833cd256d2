"""One attempt at a trial: followed to its job's end over as many connections as it takes, its result brought here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.records.layout import PROGRESS_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, Progress
from bench.records.schema import SchemaError, from_json
from bench.records.sealed import ResultError
from remote.fleet.ledger import Attempt
from remote.fleet.patience import Patience, Stopped
from remote.fleet.verdict import Verdict, belongs, judge
from remote.jobs.job import Job, JobSpec, JobState, JobStatus
from remote.jobs.transfer import ChecksumMismatch, pull

OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
PROGRESS = f"{OUT_FOLDER}/{PROGRESS_FILE}"


class Overtaken(Exception):
    """The trial being followed has reached its end through another attempt."""


def follow(
    job: Job,
    spec: JobSpec,
    patience: Patience,
    *,
    is_open: Callable[[], bool],
    on_begun: Callable[[], None],
    on_progress: Callable[[Progress], None],
) -> JobStatus:
    """Start the job if need be and watch it to its end.

    `on_begun` is called once the host has taken the job. Raises Overtaken when `is_open()` no longer holds, Stopped,
    WorkerLost and WorkerBusy.
    """
    name = job.agent.host.name

    def hear(status: JobStatus) -> None:
        patience.heard(name)
        if patience.is_halted:
            raise Stopped
        if not is_open():
            raise Overtaken
        progress = None if status.progress is None else _progress(status.progress)
        if progress is not None:
            on_progress(progress)

    def start() -> JobStatus:
        return job.start(spec)

    def watch() -> JobStatus:
        return job.watch(hear, progress=PROGRESS, every_sec=patience.limits.every_sec)

    status = patience.ask(name, start)
    on_begun()
    while status.state in (JobState.RUNNING, JobState.WAITING):
        status = patience.ask(name, start if status.state is JobState.WAITING else watch)
    return status


def _progress(document: dict[str, object]) -> Progress | None:
    """A trial's progress, for display only; None when another version wrote it."""
    try:
        return from_json(Progress, document)
    except SchemaError:
        return None


def bring(
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
    log_tail = job.log_tail() if result is None else []
    verdict = judge(planned, attempt.number, status, result, log_tail, damage)
    is_its_own = result is not None and belongs(result, planned, attempt.number)
    return verdict, path if is_its_own else None
