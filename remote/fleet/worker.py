"""One host of a fleet: a thread that starts and follows the trials planned for it, and records their outcomes."""

import contextlib
import logging
import shutil
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.records.atomic_files import write_atomic
from bench.records.paths import RESULT_FILE, TRIALS_FOLDER
from bench.records.run import PlannedTrial, Progress
from bench.records.schema import SchemaError, from_json
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.events import EventType, FleetEvent, attempt_event
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import OUT_FOLDER, PROGRESS_PATH, TRIAL_FILE, fetch_result, shared_output_folder
from remote.fleet.retry_policy import CredentialsRejected, FleetStopped, RetryPolicy, WorkerBusy, WorkerLost
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host, HostError, collapse_whitespace
from remote.jobs.job import Agent, Job, JobSpec, JobState, JobStatus, slot_path

_logger = logging.getLogger(__name__)

CommandFactory = Callable[[Host, PlannedTrial, int, str], Command]
DEADLINE_MARGIN_SEC = 30.0  # after a trial's own deadline its job is stopped from outside
DOWNLOAD_FOLDER = "incoming"  # below the run's folder: downloaded results, before they count


@dataclass(kw_only=True, eq=False)
class OpenTrial:
    """A trial that has not ended. `max_attempts` includes the attempts of earlier fleets.

    `attempt` is the one whose end is not known, if any; `has_started`: this fleet has started its job.
    """

    planned: PlannedTrial
    max_attempts: int
    attempt: Attempt | None = None
    has_started: bool = False

    @property
    def trial_id(self) -> str:
        return self.planned.trial_id


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """State shared by the workers of one fleet; all of it is safe to use from many threads."""

    run_id: str
    run_folder: Path
    ledger: Ledger
    retry_policy: RetryPolicy
    make_command: CommandFactory
    on_event: Callable[[FleetEvent], None]
    shared_folder: str | None
    diagnose: Callable[[], str | None]

    def end_trial(
        self, planned: PlannedTrial, attempt: Attempt | None, verdict: Outcome, result: Path | None = None
    ) -> None:
        """Record the end of an open trial. Raises LedgerError and OSError if the run's folder cannot be written.

        `result` is the attempt's verified result on this machine; its folder is deleted afterwards.
        """
        trial_folder = self.run_folder / TRIALS_FOLDER / planned.trial_id
        if result is not None:
            trial_folder.mkdir(parents=True, exist_ok=True)
            write_atomic(trial_folder / RESULT_FILE, result.read_bytes())
        else:
            (trial_folder / RESULT_FILE).unlink(missing_ok=True)  # a result from before the trial was reopened
        self.ledger.record_end(planned.trial_id, verdict, None if attempt is None else attempt.number)
        if result is not None:
            shutil.rmtree(result.parent)
        end = {"status": verdict.status, "reason": verdict.text}
        may_still_run = verdict.cause is not None and verdict.cause.may_still_run
        self.on_event(attempt_event(EventType.ENDED, planned, attempt, may_still_run=may_still_run, **end))


class Worker:
    """A host and its agent. `trials` are the open ones that are planned for it, in the order in which they run."""

    def __init__(self, agent: Agent, fleet: FleetState) -> None:
        self.agent, self.name = agent, agent.host.name
        self._fleet, self._retry_policy = fleet, fleet.retry_policy
        self.trials: deque[OpenTrial] = deque()

    def serve(self) -> None:
        """Run the trials until none is left, the host is given up, or the fleet is halted."""
        while self.trials:
            trial = self.trials[0]
            try:
                if self._retry_policy.is_halted:
                    raise FleetStopped
                if trial.attempt is not None:
                    self._resume_attempt(trial, trial.attempt)
                elif not self._end_by_shared_result(trial):
                    self._start_attempt(trial)
            except WorkerLost as lost:
                self._await_return(lost)
            except FleetStopped:
                for each in list(self.trials):
                    if each.attempt is not None:
                        self._cancel(each, each.attempt)
                return

    def _start_attempt(self, trial: OpenTrial) -> None:
        """Start a new attempt and follow it to its end."""
        planned, ledger = trial.planned, self._fleet.ledger
        number = max((attempt.number for attempt in ledger.entries[trial.trial_id].attempts), default=0) + 1
        folder = f"{self.agent.host.workdir}/runs/{self._fleet.run_id}/{planned.trial_id}.{number}"
        ledger.record_start(planned.trial_id, number, self.name, folder)
        trial.attempt, trial.has_started = Attempt(number=number, worker=self.name, folder=folder), False
        self._fleet.on_event(attempt_event(EventType.STARTED, planned, trial.attempt))
        self._finish_attempt(trial, trial.attempt)

    def _end_by_shared_result(self, trial: OpenTrial) -> bool:
        """End the trial if an attempt left a result on the shared volume before its host died."""
        if self._fleet.shared_folder is None:
            return False
        absent = JobStatus(state=JobState.ABSENT)
        for attempt in list(self._fleet.ledger.entries[trial.trial_id].attempts):
            if attempt.has_failed:
                continue
            fetch = partial(self._fetch_result, trial, attempt, absent)
            verdict, result = self._retry_policy.call(self.name, fetch)
            if result is not None and not verdict.status.is_external:
                self._end(trial, attempt, verdict, result)
                return True
        return False

    def _resume_attempt(self, trial: OpenTrial, attempt: Attempt) -> None:
        """Continue an earlier attempt from its current state, after a resume or when its lost host is back."""
        status = self._retry_policy.call(self.name, self._job(attempt).status)
        self._fleet.on_event(attempt_event(EventType.ATTACHED, trial.planned, attempt))
        if status.state in (JobState.ABSENT, JobState.WAITING) and self._end_by_shared_result(trial):
            return
        if status.state is JobState.ABSENT and (trial.has_started or self._fleet.shared_folder is not None):
            # The host has come back with an empty disk.
            outcome = self._retry_policy.call(self.name, partial(self._fetch_result, trial, attempt, status))
            if trial.has_started or outcome[1] is not None:
                self._end_or_retry(trial, attempt, *outcome, resumed=True)
                return
        self._finish_attempt(trial, attempt, resumed=True)

    def _finish_attempt(self, trial: OpenTrial, attempt: Attempt, *, resumed: bool = False) -> None:
        """Follow the attempt to its end, from its current state, and record its outcome."""
        status = self._watch_job(trial, attempt)
        outcome = self._retry_policy.call(self.name, lambda: self._fetch_result(trial, attempt, status))
        self._end_or_retry(trial, attempt, *outcome, resumed=resumed)

    def _watch_job(self, trial: OpenTrial, attempt: Attempt) -> JobStatus:
        """Start the attempt's job if necessary and watch it to its end, over as many connections as needed.

        Raises FleetStopped, WorkerLost and WorkerBusy.
        """
        fleet, planned, job, retry_policy = self._fleet, trial.planned, self._job(attempt), self._retry_policy
        spec = JobSpec(
            command=fleet.make_command(self.agent.host, planned, attempt.number, attempt.folder),
            deadline_sec=planned.trial.deadline_sec + DEADLINE_MARGIN_SEC,
            grace_sec=retry_policy.limits.grace_sec,
            files={TRIAL_FILE: planned.trial.to_text()},
        )

        def on_status(status: JobStatus) -> None:
            retry_policy.record_reply(self.name)
            if retry_policy.is_halted:
                raise FleetStopped
            if status.progress is not None:
                with contextlib.suppress(SchemaError):  # the progress of another version; it is for display only
                    progress = from_json(Progress, status.progress)
                    fleet.on_event(attempt_event(EventType.PROGRESS, planned, attempt, progress=progress))

        start, watch = partial(job.start, spec), partial(retry_policy.watch, job, on_status, PROGRESS_PATH)
        status = retry_policy.call(self.name, start)
        trial.has_started = True
        while status.state in (JobState.RUNNING, JobState.WAITING):
            status = retry_policy.call(self.name, start if status.state is JobState.WAITING else watch)
        return status

    def _fetch_result(self, trial: OpenTrial, attempt: Attempt, status: JobStatus) -> tuple[Outcome, Path | None]:
        """Fetch the attempt's result from its job's folder or, if its host is gone, from the shared volume."""
        fleet = self._fleet
        remote_folders = [] if status.state is JobState.ABSENT else [f"{attempt.folder}/{OUT_FOLDER}"]
        if fleet.shared_folder is not None:
            remote_folders.append(
                shared_output_folder(fleet.shared_folder, fleet.run_id, trial.trial_id, attempt.number)
            )
        return fetch_result(
            self._job(attempt),
            trial.planned,
            attempt,
            status,
            remote_folders=remote_folders,
            download_folder=fleet.run_folder / DOWNLOAD_FOLDER,
        )

    def _end_or_retry(
        self, trial: OpenTrial, attempt: Attempt, verdict: Outcome, result: Path | None, *, resumed: bool
    ) -> None:
        """End the trial, or put it behind the others if another attempt may succeed."""
        is_running = not self._retry_policy.is_halted
        is_faulty = is_running and verdict.cause is not None and verdict.cause.is_worker_faulty
        may_retry = verdict.is_transient and attempt.number < trial.max_attempts and not is_faulty
        if resumed and verdict.status is TrialStatus.CANCELLED:
            # The operator cancelled it, and has now resumed the run.
            verdict, may_retry = Outcome.of(ReasonCode.CANCELLED, "cancelled earlier"), True
        if may_retry and is_running:
            self.agent.free_members(attempt.folder, grace_sec=self._retry_policy.limits.grace_sec)
            self._fleet.ledger.record_retry(trial.trial_id, attempt.number, verdict)
            self._fleet.on_event(attempt_event(EventType.RETRYING, trial.planned, attempt, reason=verdict.text))
            trial.attempt = None
            self.trials.remove(trial)
            self.trials.append(trial)
            return
        self._end(trial, attempt, verdict, result)
        if is_faulty:
            self._fleet.on_event(FleetEvent(kind=EventType.WORKER_FAULTY, worker=self.name, reason=verdict.text))
            self._end_all(verdict)

    def _cancel(self, trial: OpenTrial, attempt: Attempt) -> None:
        """Cancel the attempt for the operator. If it has ended before, that end counts."""
        if self._retry_policy.detaching.is_set():
            return
        result, has_started = None, False
        try:
            job = self._job(attempt)
            status = job.cancel(grace_sec=self._retry_policy.limits.grace_sec)
            has_started = status.state not in (JobState.ABSENT, JobState.WAITING)
            if status.state is JobState.LOST:  # get its progress
                status = job.watch(lambda _: None, progress=PROGRESS_PATH, duration_sec=0.0)
            verdict, result = self._fetch_result(trial, attempt, status)
        except HostError as error:
            reason = f"{self.name} could not be asked to stop it, so it may still run: {collapse_whitespace(error)}"
            verdict = Outcome.of(ReasonCode.CANCEL_UNCONFIRMED, reason)
        if verdict.status is TrialStatus.LOST:
            reason = f"cancelled; {verdict.reason}" if has_started else "cancelled before it started"
            verdict = Outcome.of(ReasonCode.CANCELLED, reason)
        self._end(trial, attempt, verdict, result)

    def _job(self, attempt: Attempt) -> Job:
        return Job(self.agent, attempt.folder, slot=slot_path(self.agent.host))

    def _await_return(self, lost: WorkerLost) -> None:
        """Poll the lost host until it answers. If it is given up, its trials end as LOST."""
        trial_id = None if self.trials[0].attempt is None else self.trials[0].trial_id
        _logger.warning("%s: no answer; polling it", self.name, exc_info=lost)
        event = FleetEvent(kind=_loss_event(lost), worker=self.name, trial_id=trial_id, reason=str(lost))
        self._fleet.on_event(event)
        diagnoses: list[str | None] = [None]

        def report_diagnosis() -> None:
            diagnosis = self._fleet.diagnose()
            if diagnosis not in (None, diagnoses[-1]):
                diagnoses.append(diagnosis)
                event = FleetEvent(kind=EventType.WORKER_DIAGNOSED, worker=self.name, reason=diagnosis)
                self._fleet.on_event(event)

        reason = self._retry_policy.await_return(self.agent, lost, report_diagnosis)
        if reason is not None:
            self._end_all(Outcome.of(ReasonCode.WORKER_LOST, reason))
        elif not self._retry_policy.is_halted:
            self._fleet.on_event(FleetEvent(kind=EventType.WORKER_BACK, worker=self.name))

    def _end(self, trial: OpenTrial, attempt: Attempt | None, verdict: Outcome, result: Path | None = None) -> None:
        self._fleet.end_trial(trial.planned, attempt, verdict, result)
        self.trials.remove(trial)

    def _end_all(self, verdict: Outcome) -> None:
        for trial in list(self.trials):
            self._end(trial, trial.attempt, verdict)


def _loss_event(lost: WorkerLost) -> EventType:
    if isinstance(lost, WorkerBusy):
        return EventType.WORKER_BUSY
    return EventType.CREDENTIALS_REJECTED if isinstance(lost, CredentialsRejected) else EventType.WORKER_LOST
