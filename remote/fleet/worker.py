"""One host of a fleet: a thread that takes trials, starts and follows them, and records their outcomes."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.records.run import PlannedTrial, Progress
from bench.records.schema import SchemaError, from_json
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import (
    OUT_FOLDER,
    PROGRESS_PATH,
    TRIAL_FILE,
    OutcomeWriter,
    fetch_result,
    shared_output_folder,
)
from remote.fleet.queue import EventType, FleetEvent, OpenTrial, TrialQueue, attempt_event
from remote.fleet.retry_policy import CredentialsRejected, FleetStopped, RetryPolicy, WorkerBusy, WorkerLost
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host, HostError, collapse_whitespace
from remote.jobs.job import Agent, Job, JobSpec, JobState, JobStatus, slot_path

_logger = logging.getLogger(__name__)

CommandFactory = Callable[[Host, PlannedTrial, int, str], Command]
DEADLINE_MARGIN_SEC = 30.0  # after a trial's own deadline its job is stopped from outside
DOWNLOAD_FOLDER = "incoming"  # below the run's folder: downloaded results, before they count


class Superseded(Exception):
    """The end of the followed trial through another attempt."""


class WorkerFaulty(Exception):
    """A host whose GPU showed a fault: it takes no more trials of the run."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """State shared by the workers of one fleet; all of it is safe to use from many threads."""

    run_id: str
    run_folder: Path
    ledger: Ledger
    queue: TrialQueue
    outcome_writer: OutcomeWriter
    retry_policy: RetryPolicy
    make_command: CommandFactory
    on_event: Callable[[FleetEvent], None]
    healthy_workers: set[str]
    shared_folder: str | None
    diagnose: Callable[[], str | None] = lambda: None


class Worker:
    """A host and its agent. `earlier_attempts` are attempts on it whose state is unknown now."""

    def __init__(self, agent: Agent, fleet: FleetState) -> None:
        self.agent, self.name = agent, agent.host.name
        self._fleet, self._queue, self._retry_policy = fleet, fleet.queue, fleet.retry_policy
        self.earlier_attempts: list[tuple[OpenTrial, Attempt]] = []

    def serve(self) -> None:
        """Run trials until none is left, the host is given up, or the fleet is halted."""
        while True:
            try:
                if self._retry_policy.is_halted:
                    raise FleetStopped
                while self.earlier_attempts:
                    self._resume_attempt(*self.earlier_attempts[0])
                    self._queue.stop_awaiting(self.earlier_attempts.pop(0)[0], self.name)
                trial = self._queue.get(self.name)
                if trial is None:
                    return
                self._start_attempt(trial)
            except WorkerLost as lost:
                if not self._await_return(lost):
                    return
            except WorkerFaulty as fault:
                for trial, _ in self.earlier_attempts:
                    self._queue.stop_awaiting(trial, self.name)
                self._end_own_trials(fault.outcome)
                return
            except FleetStopped:
                for trial, attempt in self.earlier_attempts:
                    self._cancel(trial, attempt)
                return

    def _start_attempt(self, trial: OpenTrial) -> None:
        """Start a new attempt and follow it to its end."""
        if self._end_by_shared_result(trial):
            return
        planned = trial.planned
        attempts = self._fleet.ledger.entries[planned.trial_id].attempts
        number = max((attempt.number for attempt in attempts), default=0) + 1
        folder = f"{self.agent.host.workdir}/runs/{self._fleet.run_id}/{planned.trial_id}.{number}"
        self._fleet.ledger.record_start(planned.trial_id, number, self.name, folder, planned.trial.world_size)
        attempt = Attempt(number=number, worker=self.name, folder=folder)
        self._fleet.on_event(attempt_event(EventType.STARTED, planned, attempt))
        self._finish_attempt(trial, attempt)

    def _end_by_shared_result(self, trial: OpenTrial) -> bool:
        """End the trial if an attempt left a result on the shared volume before its host died.

        An attempt on a live host without a connection may finish after this check: then the trial runs twice.
        """
        if self._fleet.shared_folder is None:
            return False
        absent = JobStatus(state=JobState.ABSENT)
        try:
            for attempt in list(self._fleet.ledger.entries[trial.trial_id].attempts):
                if attempt.has_failed:
                    continue
                fetch = partial(self._fetch_result, trial, attempt, absent)
                verdict, result = self._retry_policy.call(self.name, fetch)
                if result is not None and not verdict.status.is_external:
                    self._fleet.outcome_writer.end_trial(trial.planned, attempt, verdict, result)
                    return True
        except (WorkerLost, FleetStopped):
            self._queue.put(trial)
            raise
        return False

    def _fetch_ended(self, trial: OpenTrial, attempt: Attempt) -> tuple[Outcome, Path | None] | None:
        """Return the outcome of an attempt that has run on this host, which has come back with an empty disk.

        Returns None if it is not known to have run: it then has no result on the shared volume either.
        """
        has_run, fetch = attempt.folder in trial.started_folders, partial(self._fetch_result, trial, attempt)
        if not has_run and self._fleet.shared_folder is None:
            return None
        try:
            outcome = self._retry_policy.call(self.name, lambda: fetch(JobStatus(state=JobState.ABSENT)))
        except (WorkerLost, FleetStopped):
            self._queue.put(trial)
            raise
        return outcome if has_run or outcome[1] is not None else None

    def _resume_attempt(self, trial: OpenTrial, attempt: Attempt) -> None:
        """Continue an earlier attempt on this host from its current state, after a resume or a lost host."""
        planned, job = trial.planned, self._job(attempt)
        status = self._retry_policy.call(self.name, job.status)
        if self._queue.claim(trial):
            self._fleet.on_event(attempt_event(EventType.ATTACHED, planned, attempt))
            if status.state in (JobState.ABSENT, JobState.WAITING) and self._end_by_shared_result(trial):
                return
            if status.state is JobState.ABSENT and (ended := self._fetch_ended(trial, attempt)) is not None:
                self._end_or_requeue(trial, attempt, *ended, resumed=True)
            else:
                self._finish_attempt(trial, attempt, resumed=True)
        elif status.state is JobState.ENDED and self._fleet.ledger.is_open(planned.trial_id):
            # It was done before its replacement: its result counts, if it has one.
            verdict, result = self._retry_policy.call(self.name, lambda: self._fetch_result(trial, attempt, status))
            if not verdict.status.is_external:
                self._fleet.outcome_writer.end_trial(planned, attempt, verdict, result)
        elif status.state is JobState.RUNNING:
            self._retry_policy.call(self.name, lambda: job.cancel(grace_sec=self._retry_policy.limits.grace_sec))

    def _finish_attempt(self, trial: OpenTrial, attempt: Attempt, *, resumed: bool = False) -> None:
        """Follow the attempt to its end, from its current state, and record its outcome."""
        try:
            outcome = self._await_outcome(trial, attempt)
        except FleetStopped:
            self._cancel(trial, attempt)
        except WorkerLost as lost:
            if isinstance(lost, WorkerBusy):
                trial.busy_folders.add(attempt.folder)
            if (trial, attempt) not in self.earlier_attempts:
                self.earlier_attempts.append((trial, attempt))
            self._queue.release(trial, self.name)
            raise
        else:
            if outcome is None:
                return
            self._end_or_requeue(trial, attempt, *outcome, resumed=resumed)

    def _await_outcome(self, trial: OpenTrial, attempt: Attempt) -> tuple[Outcome, Path | None] | None:
        """Wait for the attempt's outcome. Returns None if another attempt was first; this one is then cancelled."""
        try:
            status = self._watch_job(trial, attempt)
            return self._retry_policy.call(self.name, lambda: self._fetch_result(trial, attempt, status))
        except Superseded:
            job, grace_sec = self._job(attempt), self._retry_policy.limits.grace_sec
            self._retry_policy.call(self.name, lambda: job.cancel(grace_sec=grace_sec))
            return None

    def _watch_job(self, trial: OpenTrial, attempt: Attempt) -> JobStatus:
        """Start the attempt's job if necessary and watch it to its end, over as many connections as needed.

        Raises Superseded, FleetStopped, WorkerLost and WorkerBusy.
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
            if not fleet.ledger.is_open(planned.trial_id):
                raise Superseded
            if status.progress is not None:
                with contextlib.suppress(SchemaError):  # the progress of another version; it is for display only
                    progress = from_json(Progress, status.progress)
                    fleet.on_event(replace(attempt_event(EventType.PROGRESS, planned, attempt), progress=progress))

        start, watch = partial(job.start, spec), partial(retry_policy.watch, job, on_status, PROGRESS_PATH)
        status = retry_policy.call(self.name, start)
        trial.started_folders.add(attempt.folder)
        while status.state in (JobState.RUNNING, JobState.WAITING):
            status = retry_policy.call(self.name, start if status.state is JobState.WAITING else watch)
        return status

    def _fetch_result(self, trial: OpenTrial, attempt: Attempt, status: JobStatus) -> tuple[Outcome, Path | None]:
        """Fetch the attempt's result from its job's folder or, if its host is gone, from the shared volume."""
        fleet = self._fleet
        remote_folders = [] if status.state is JobState.ABSENT else [f"{attempt.folder}/{OUT_FOLDER}"]
        if fleet.shared_folder is not None:
            remote_folders.append(
                shared_output_folder(fleet.shared_folder, fleet.run_id, trial.planned.trial_id, attempt.number)
            )
        return fetch_result(
            self._job(attempt),
            trial.planned,
            attempt,
            status,
            remote_folders=remote_folders,
            download_folder=fleet.run_folder / DOWNLOAD_FOLDER,
        )

    def _end_or_requeue(
        self, trial: OpenTrial, attempt: Attempt, verdict: Outcome, result: Path | None, *, resumed: bool
    ) -> None:
        if resumed and verdict.status is TrialStatus.CANCELLED and not self._retry_policy.is_halted:
            # The operator cancelled it, and has now resumed the run.
            verdict = Outcome.of(ReasonCode.CANCELLED, "cancelled earlier")
            self._fleet.outcome_writer.requeue(trial, attempt, verdict)
            return
        is_running, healthy = not self._retry_policy.is_halted, self._fleet.healthy_workers
        is_faulty = verdict.cause is not None and verdict.cause.is_worker_faulty
        if is_faulty and is_running:
            healthy.discard(self.name)
        may_retry = verdict.is_transient and trial.allows_retry_after(attempt) and is_running
        if may_retry and any(map(trial.can_run_on, set(healthy))):
            self.agent.free_members(attempt.folder, grace_sec=self._retry_policy.limits.grace_sec)
            self._fleet.outcome_writer.requeue(trial, attempt, verdict)
        else:
            self._fleet.outcome_writer.end_trial(trial.planned, attempt, verdict, result)
        if self.name not in healthy:
            self._fleet.on_event(FleetEvent(kind=EventType.WORKER_FAULTY, worker=self.name, reason=verdict.text))
            raise WorkerFaulty(verdict)

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
        self._fleet.outcome_writer.end_trial(trial.planned, attempt, verdict, result)

    def _job(self, attempt: Attempt) -> Job:
        return Job(self.agent, attempt.folder, slot=slot_path(self.agent.host))

    def _await_return(self, lost: WorkerLost) -> bool:
        """Give the lost host's trials to others and poll the host.

        Returns True if it answers; False if it is given up or has no work left.
        """
        trial_id = self.earlier_attempts[0][0].trial_id if self.earlier_attempts else None
        _logger.warning("%s: no answer; polling it", self.name, exc_info=lost)
        event = FleetEvent(kind=_loss_event(lost), worker=self.name, trial_id=trial_id, reason=str(lost))
        self._fleet.on_event(event)
        # With rejected credentials jobs continue, and no other host would accept a trial.
        if not isinstance(lost, CredentialsRejected):
            for trial, attempt in self.earlier_attempts:
                if trial.planned.worker is None and trial.allows_retry_after(attempt):
                    self._queue.stop_awaiting(trial, self.name)
        diagnoses: list[str | None] = [None]

        def report_diagnosis() -> None:
            diagnosis = self._fleet.diagnose()
            if diagnosis not in (None, diagnoses[-1]):
                diagnoses.append(diagnosis)
                event = FleetEvent(kind=EventType.WORKER_DIAGNOSED, worker=self.name, reason=diagnosis)
                self._fleet.on_event(event)

        has_work = lambda: self._queue.has_trial_for(self.name)  # noqa: E731
        reason = self._retry_policy.await_return(self.agent, lost, has_work, report_diagnosis)
        if reason is None:
            if not self._retry_policy.is_halted:
                self._fleet.on_event(FleetEvent(kind=EventType.WORKER_BACK, worker=self.name))
            return True
        verdict = Outcome.of(ReasonCode.WORKER_LOST, reason)
        for trial, attempt in self.earlier_attempts:
            if self._queue.give_up(trial, self.name):
                self._fleet.outcome_writer.end_trial(trial.planned, attempt, verdict)
        self._end_own_trials(verdict)
        return False

    def _end_own_trials(self, verdict: Outcome) -> None:
        """End the open trials that only this host may run."""
        for trial in self._queue.open_trials():
            if trial.planned.worker == self.name:
                self._fleet.outcome_writer.end_trial(trial.planned, None, verdict)


def _loss_event(lost: WorkerLost) -> EventType:
    if isinstance(lost, WorkerBusy):
        return EventType.WORKER_BUSY
    return EventType.CREDENTIALS_REJECTED if isinstance(lost, CredentialsRejected) else EventType.WORKER_LOST
