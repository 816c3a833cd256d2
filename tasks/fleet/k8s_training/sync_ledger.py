"""Import of a Kubernetes-run training's state from the shared volume into the run's ledger.

Each attempt of the pods has its own folder on the volume, and the first pod writes the training's end. The ledger gets
the modification times of these files, so that the recorded duration does not depend on when it is imported.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.records.atomic_files import write_atomic
from bench.records.paths import ORDER_END_FILE, PROGRESS_FILE, RESULT_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord, TrainingJobEnd
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.fetch_result import fetch_result
from remote.fleet.ledger import Ledger
from remote.fleet.worker import DOWNLOAD_FOLDER
from remote.hosts.base import Host, read_json
from remote.hosts.bundle import inline_command
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobState, JobStatus
from remote.jobs.transfer import pull
from reports.read.attempts import AttemptSpan

_LIST_TIMEOUT_SEC = 60.0


@dataclass(frozen=True, kw_only=True)
class VolumeState:
    """The state on the volume: attempts as (number, first file's time, last file's time), and the last one's progress.

    `progress` is unvalidated JSON.
    """

    attempts: list[tuple[int, float, float]]
    progress: dict[str, Any] | None

    def attempt_spans(self, run: RunRecord) -> list[AttemptSpan]:
        """Convert the attempts to spans; the last attempt counts as running."""
        worker, size = run.workers[0], run.planned[0].trial.world_size
        spans = [
            AttemptSpan(number=number, worker=worker, began=first, ended=last, workers=size)
            for number, first, last in self.attempts
        ]
        return [*spans[:-1], *(replace(span, ended=None) for span in spans[-1:])]


def run_folder_on_volume(run: RunRecord) -> str:
    """Return the run's folder on the volume, as written in the Job's order."""
    return f"{run.provenance['inputs']['job']['shared']}/{run.run_id}"


def read_volume_state(run: RunRecord, host: Host) -> VolumeState:
    """Read the training's attempts and progress from the volume. Raises HostError."""
    trial_id, script = run.planned[0].trial_id, "remote.agent.scripts.list_attempts"
    command = inline_command(host, script, run_folder_on_volume(run), trial_id, PROGRESS_FILE)
    return read_json(host, command, "the list of the training's attempts", _to_state, timeout_sec=_LIST_TIMEOUT_SEC)


def _to_state(document: Any) -> VolumeState:
    attempts = [(int(number), float(first), float(last)) for number, first, last in document["attempts"]]
    progress = document["progress"]
    return VolumeState(attempts=attempts, progress=progress if isinstance(progress, dict) else None)


def sync_ledger(run: RunRecord, folder: Path, ledger: Ledger, host: Host) -> None:
    """Import attempts and end into the ledger; `folder` is the run's. Raises HostError, LedgerError and OSError."""
    (planned,), state = run.planned, read_volume_state(run, host)
    entry = ledger.entries[planned.trial_id]
    if entry.status is not None:
        return
    run_folder, size = run_folder_on_volume(run), planned.trial.world_size
    for number, first, _ in state.attempts:
        if entry.find_attempt(number) is None:
            ledger.record_start(
                planned.trial_id, number, run.workers[0], f"{run_folder}/{planned.trial_id}.{number}", size, at=first
            )
    end_times = {number: last for number, _, last in state.attempts}
    for attempt in entry.attempts[:-1]:
        if attempt.reason is None:
            ended_at = end_times.get(attempt.number)
            outcome = Outcome.of(ReasonCode.WORKER_LOST, "ended from outside; its Job started another attempt")
            ledger.record_retry(planned.trial_id, attempt.number, outcome, at=ended_at)
    incoming, turn = folder / DOWNLOAD_FOLDER, run.provenance["inputs"]["job"]["turn"]
    incoming.mkdir(exist_ok=True)
    pull(Agent(host), run_folder, incoming, only=(ORDER_END_FILE.format(turn=turn),))
    order_end = TrainingJobEnd.read_or_none(incoming, turn)
    last_attempt = None if order_end is None else entry.find_attempt(order_end.attempt)
    if order_end is None or last_attempt is None:
        return
    job_status = JobStatus(
        state=JobState.ENDED, exit_code=0 if order_end.end is TrialStatus.SUCCEEDED else 1, why="exited"
    )
    job = Job(Agent(host), last_attempt.folder)
    outcome, result = fetch_result(
        job, planned, last_attempt, job_status, remote_folders=[last_attempt.folder], download_folder=incoming
    )
    target = folder / TRIALS_FOLDER / planned.trial_id
    if result is not None:
        target.mkdir(parents=True, exist_ok=True)
        write_atomic(target / RESULT_FILE, result.read_bytes())
    if result is None:
        outcome = order_end.outcome
        if outcome.status is TrialStatus.SUCCEEDED:
            outcome = Outcome.of(ReasonCode.NO_RESULT, "recorded as SUCCEEDED, but its result is not on the volume")
    ledger.record_end(planned.trial_id, outcome, last_attempt.number, at=end_times.get(last_attempt.number))
