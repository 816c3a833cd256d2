"""A training's job, on a host or in pods: its state there, imported into the run's ledger; cancelled.

Both run the same engine (`bench.commands.job_runner`). Each attempt has its own folder in the run's folder there, which
is on the volume that the pods share, or on the host; the engine writes the training's end next to them. The ledger gets
the modification times of the attempts' files, so that the recorded duration does not depend on when they are imported.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.records import schema
from bench.records.atomic_files import write_atomic
from bench.records.paths import (
    CHECKPOINTS_FOLDER,
    COLLECTED_FILE,
    JOB_END_FILE,
    LOSS_FILE,
    PROGRESS_FILE,
    RESTARTS_FILE,
    RESULT_FILE,
    TRIALS_FOLDER,
)
from bench.records.run import Progress, RunRecord, TrainingJobEnd
from bench.records.status import Outcome, ReasonCode, TrialStatus
from bench.records.training import Restart
from remote.fleet.ledger import Ledger
from remote.fleet.outcome import fetch_result, judge
from remote.fleet.worker import DOWNLOAD_FOLDER
from remote.hosts.bundle import inline_command
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host, HostError, check, read_json
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent, Job, JobState, JobStatus, slot_path
from remote.jobs.transfer import pull
from reports.read.attempts import AttemptSpan
from tasks.clients.target_cluster import open_cluster
from tasks.clients.worker_queries import translate_host_errors
from tasks.clients.workers import run_hosts
from tasks.fleet.training_pods import PodsJob
from tasks.settings.layers import Settings

_LIST_TIMEOUT_SEC = 60.0
CANCEL_GRACE_SEC = 30.0


class HostJob:
    """A training as a detached job of its first worker, which has all ranks.

    `hosts` see its folder while it runs, the first one first, and the host of `reader` also after its end.
    `outlives_end`: it may go on for long after it has written the training's end.
    """

    outlives_end = False  # it holds the worker for some milliseconds more

    def __init__(self, settings: Settings, run: RunRecord) -> None:
        self._settings, self._run = settings, run

    @cached_property
    def hosts(self) -> Sequence[Host]:
        return run_hosts(self._settings, self._run)[:1]

    @property
    def job(self) -> Job:
        (host,) = self.hosts
        return Job(Agent(host), f"{run_folder(self._run)}/job.{_turn(self._run)}", slot=slot_path(host))

    def end(self) -> Outcome | None:
        """Return how it counts if it has left no end; None while it goes on. Raises HostError."""
        job, (planned,) = self.job, self._run.planned
        status = job.status()
        if status.state in (JobState.RUNNING, JobState.WAITING):
            return None
        return judge(planned, 0, status, None, job.log_tail() if status.state is JobState.ENDED else [])

    def stop(self) -> None:
        """Stop it, with a checkpoint, and wait for that. Raises HostError."""
        self.job.cancel(grace_sec=CANCEL_GRACE_SEC)

    @contextlib.contextmanager
    def reader(self) -> Iterator[Host]:
        yield self.hosts[0]


def is_job_active(run: RunRecord) -> bool:
    """Check whether a training's job on this machine goes on. Raises HostError, and KeyError for another run."""
    folder = Path(run_folder(run), f"job.{_turn(run)}")
    host = LocalHost(name=run.workers[0], workdir=str(folder.parents[2]))
    return folder.is_dir() and Job(Agent(host), str(folder)).status().state in (JobState.RUNNING, JobState.WAITING)


TrainingJob = HostJob | PodsJob


@contextlib.contextmanager
def open_job(settings: Settings, run: RunRecord) -> Iterator[TrainingJob]:
    """Provide the job of a training. Errors of a cluster become task errors at the end of the block."""
    if "overlay" not in run.provenance["inputs"]["job"]:
        yield HostJob(settings, run)
        return
    with open_cluster(settings) as cluster:
        yield PodsJob(settings, run, cluster)


def run_folder(run: RunRecord) -> str:
    """Return the training's folder on its host or volume."""
    return f"{run.provenance['inputs']['job']['shared']}/{run.run_id}"


@dataclass(frozen=True, kw_only=True)
class AttemptFiles:
    """One attempt: the times of its first and last file, and why another one follows it, if the engine said so."""

    number: int
    first: float
    last: float
    loss: Outcome | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """The state in the training's folder: attempts, progress of the last one, restarts, and whether it has ended.

    `progress` is None without a valid one. `restarts` is empty if the file of the restarts is missing or invalid.
    """

    attempts: Sequence[AttemptFiles]
    progress: Progress | None = None
    restarts: Sequence[Restart] = ()
    has_ended: bool = False

    def attempt_spans(self, run: RunRecord) -> list[AttemptSpan]:
        """Convert the attempts to spans; the last attempt counts as running."""
        spans = [
            AttemptSpan(number=attempt.number, worker=run.workers[0], began=attempt.first, ended=attempt.last)
            for attempt in self.attempts
        ]
        return [*spans[:-1], *(replace(span, ended=None) for span in spans[-1:])]


def read_state(run: RunRecord, host: Host) -> TrainingState:
    """Read the training's state from its folder. Raises HostError."""
    files = (PROGRESS_FILE, LOSS_FILE, f"{CHECKPOINTS_FOLDER}/{RESTARTS_FILE}", JOB_END_FILE.format(turn=_turn(run)))
    arguments = (run_folder(run), run.planned[0].trial_id, *files)
    command = inline_command(host, "remote.agent.pods.list_attempts", *arguments)
    return read_json(host, command, "the list of the training's attempts", parse_state, timeout_sec=_LIST_TIMEOUT_SEC)


def parse_state(document: Any) -> TrainingState:
    """Parse the list of the attempts, which their hosts may have made up. Raises ValueError, KeyError and TypeError."""
    attempts = [
        AttemptFiles(number=int(number), first=float(first), last=float(last), loss=_parse_loss(loss))
        for number, first, last, loss in document["attempts"]
    ]
    progress, restarts = None, list[Restart]()
    with contextlib.suppress(ValueError, TypeError):  # also null: no attempt has resumed
        restarts = [schema.from_json(Restart, restart) for restart in document["restarts"]]
    with contextlib.suppress(ValueError, TypeError):
        progress = schema.from_json(Progress, document["progress"])
    return TrainingState(
        attempts=attempts, progress=progress, restarts=restarts, has_ended=document["has_ended"] is True
    )


def _parse_loss(document: Any) -> Outcome | None:
    try:
        return Outcome.of(ReasonCode(document["reason_code"]), str(document["reason"])[:1000])
    except (ValueError, KeyError, TypeError):
        return None


def _turn(run: RunRecord) -> int:
    return int(run.provenance["inputs"]["job"]["turn"])


def import_attempts(run: RunRecord, ledger: Ledger, state: TrainingState) -> None:
    """Import attempts and restarts into the ledger of a training that has not ended. Raises LedgerError."""
    (planned,) = run.planned
    entry = ledger.entries[planned.trial_id]
    files = {attempt.number: attempt for attempt in state.attempts}
    for number, attempt in files.items():
        if entry.find_attempt(number) is None:
            folder = f"{run_folder(run)}/{planned.trial_id}.{number}"
            ledger.record_start(planned.trial_id, number, run.workers[0], folder, at=attempt.first)
    unknown = Outcome.of(ReasonCode.WORKER_LOST, "lost with its pod or process; another attempt followed")
    for started in entry.attempts[:-1]:
        if started.reason is None:
            ended = files.get(started.number)
            loss = unknown if ended is None or ended.loss is None else ended.loss
            ledger.record_retry(planned.trial_id, started.number, loss, at=None if ended is None else ended.last)
    _record_restarts(run, ledger, state.restarts)


def _record_restarts(run: RunRecord, ledger: Ledger, restarts: Sequence[Restart]) -> None:
    """Record the cost of each attempt that resumed and made a step, once; the clock is that of the training's files.

    The first attempt of a training that was submitted again has no cost: its checkpoint waited for the operator.
    """
    trial_id, workers = run.planned[0].trial_id, run.planned[0].trial.world_size
    entry, first = ledger.entries[trial_id], run.provenance["inputs"]["job"]["after"] + 1
    price = (run.provenance["inputs"].get("forecast") or {}).get("usd_per_gpu_hour")
    for restart in restarts:
        lost_sec = restart.since_checkpoint_sec
        if lost_sec is None or entry.find_attempt(restart.attempt) is None:
            continue
        if restart.attempt > first and restart.attempt not in entry.restarted_attempts:
            usd = None if price is None else round(lost_sec * workers * price / 3600.0, 4)
            ledger.record_restart(trial_id, restart.attempt, step=restart.from_step, lost_sec=lost_sec, usd=usd)


def sync_ledger(run: RunRecord, folder: Path, ledger: Ledger, host: Host, lost: Outcome | None) -> None:
    """Import attempts and end into the ledger; `folder` is the run's. Raises HostError, LedgerError and OSError.

    `lost` is the end of a job that no longer runs, if it has left none; None while it goes on.
    """
    (planned,) = run.planned
    if not ledger.is_open(planned.trial_id):
        return
    state = read_state(run, host)
    import_attempts(run, ledger, state)
    if state.has_ended:
        _import_end(run, folder, ledger, host, state)
    elif lost is not None:
        attempts = ledger.entries[planned.trial_id].attempts
        ledger.record_end(planned.trial_id, lost, attempts[-1].number if attempts else None)


def _import_end(run: RunRecord, folder: Path, ledger: Ledger, host: Host, state: TrainingState) -> None:
    (planned,), agent, incoming = run.planned, Agent(host), folder / DOWNLOAD_FOLDER
    incoming.mkdir(exist_ok=True)
    pull(agent, run_folder(run), incoming, only=(JOB_END_FILE.format(turn=_turn(run)),))
    job_end = TrainingJobEnd.read_or_none(incoming, _turn(run))
    last = None if job_end is None else ledger.entries[planned.trial_id].find_attempt(job_end.attempt)
    if job_end is None or last is None:
        return
    has_succeeded = job_end.end is TrialStatus.SUCCEEDED
    status = JobStatus(state=JobState.ENDED, exit_code=0 if has_succeeded else 1, why="exited")
    outcome, result = fetch_result(
        Job(agent, last.folder), planned, last, status, remote_folders=[last.folder], download_folder=incoming
    )
    if result is not None:
        target = folder / TRIALS_FOLDER / planned.trial_id
        target.mkdir(parents=True, exist_ok=True)
        write_atomic(target / RESULT_FILE, result.read_bytes())
    if not has_succeeded:  # the engine knows more than the last result: restarts, faulty nodes
        outcome = job_end.outcome
    elif result is None:
        outcome = Outcome.of(ReasonCode.NO_RESULT, "recorded as SUCCEEDED, but its result is missing")
    ended_at = next((attempt.last for attempt in state.attempts if attempt.number == last.number), None)
    ledger.record_end(planned.trial_id, outcome, last.number, at=ended_at)


def release_pod(run: RunRecord, host: Host) -> None:
    """Let the pod end that waited because what it wrote was lost with it. Raises HostError."""
    if run.provenance["inputs"]["job"].get("keeps_pod"):
        command = Command(argv=("touch", f"{run_folder(run)}/{COLLECTED_FILE}"))
        check(host, command, host.run(command, timeout_sec=_LIST_TIMEOUT_SEC))


def cancel_training(settings: Settings, run: RunRecord, folder: Path, ledger: Ledger) -> None:
    """Stop the job, and end the training as CANCELLED unless it has already ended. Raises LedgerError."""
    trial_id = run.planned[0].trial_id
    with open_job(settings, run) as job, translate_host_errors():
        lost = job.end()
        if lost is None:
            _sync_through_any(run, folder, ledger, job)
            if ledger.is_open(trial_id):
                job.stop()
        if lost is not None or "overlay" not in run.provenance["inputs"]["job"]:
            with job.reader() as host:  # it may have ended before it was stopped
                sync_ledger(run, folder, ledger, host, None)
    attempts = ledger.entries[trial_id].attempts
    outcome = Outcome.of(ReasonCode.CANCELLED, "cancelled by the operator")
    ledger.record_end(trial_id, outcome, attempts[-1].number if attempts else None)


def _sync_through_any(run: RunRecord, folder: Path, ledger: Ledger, job: TrainingJob) -> None:
    """Import the state through the first host that answers; none may: not started, or ended before the others."""
    for host in job.hosts:
        with contextlib.suppress(HostError):
            sync_ledger(run, folder, ledger, host, None)
            return
