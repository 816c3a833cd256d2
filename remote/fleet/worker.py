"""One host of a fleet: a thread that takes trials, starts and follows them, and settles what comes of them."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial, Progress
from bench.records.schema import SchemaError, from_json
from remote.fleet.checkpoint_sync import CheckpointSync
from remote.fleet.events import EventType, FleetEvent, of_attempt
from remote.fleet.fetch_result import OUT_FOLDER, PROGRESS, TRIAL_FILE, fetch_result
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import Verdict, judge
from remote.fleet.outcome_writer import OutcomeWriter
from remote.fleet.queue import OpenTrial, TrialQueue
from remote.fleet.retry_policy import CredentialsRejected, FleetStopped, RetryPolicy, WorkerBusy, WorkerLost
from remote.fleet.shared_volume import place_of
from remote.hosts.command import Command
from remote.hosts.host import Host, HostError, one_line
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec, JobState, JobStatus, slot_of

Launch = Callable[[Host, PlannedTrial, int, str], Command]
NOT_ASKED = "could not be asked to stop it, so it may still run"
INCOMING = "incoming"  # below the run's folder: results on their way, before one of them is a trial's end


class Superseded(Exception):
    """The trial being followed has reached its end through another attempt."""


@dataclass(frozen=True, kw_only=True)
class FleetState:
    """What the workers of one fleet share; all of it is safe to use from many threads."""

    run_id: str
    run_folder: Path
    ledger: Ledger
    queue: TrialQueue
    settlement: OutcomeWriter
    patience: RetryPolicy
    launch: Launch
    on_event: Callable[[FleetEvent], None]
    shared: str | None
    keeper: CheckpointSync | None = None


class Worker:
    """A host, by its agent. `earlier`: attempts on it whose state is not known now."""

    def __init__(self, agent: Agent, fleet: FleetState) -> None:
        self.agent, self.name = agent, agent.host.name
        self._fleet, self._queue, self._patience = fleet, fleet.queue, fleet.patience
        self.earlier: list[tuple[OpenTrial, Attempt]] = []

    def serve(self) -> None:
        """Run trials until there are no more, the host is given up, or the fleet is halted."""
        while True:
            try:
                if self._patience.is_halted:
                    raise FleetStopped
                while self.earlier:
                    self._pick_up(*self.earlier[0])
                    self._queue.pass_on(self.earlier.pop(0)[0], self.name)
                trial = self._queue.take(self.name)
                if trial is None:
                    return
                self._begin(trial)
            except WorkerLost as lost:
                if not self._await_return(lost):
                    return
            except FleetStopped:
                for trial, attempt in self.earlier:
                    self._cancel(trial, attempt)
                return

    def _begin(self, trial: OpenTrial) -> None:
        """Start a new attempt and see it through."""
        if self._is_done_already(trial):
            return
        planned = trial.planned
        attempts = self._fleet.ledger.entries[planned.trial_id].attempts
        number = max((attempt.number for attempt in attempts), default=0) + 1
        folder = f"{self.agent.host.workdir}/runs/{self._fleet.run_id}/{planned.trial_id}.{number}"
        self._fleet.ledger.started(planned.trial_id, number, self.name, folder, planned.trial.world_size)
        attempt = Attempt(number=number, worker=self.name, folder=folder)
        self._fleet.on_event(of_attempt(EventType.STARTED, planned, attempt))
        self._see_through(trial, attempt)

    def _is_done_already(self, trial: OpenTrial) -> bool:
        """Whether an attempt left its result on the shared volume before its host died; then it counts.

        One on a host that is cut off and alive may still get there after this look: then the trial runs twice.
        """
        if self._fleet.shared is None:
            return False
        gone = JobStatus(state=JobState.ABSENT)
        try:
            for attempt in list(self._fleet.ledger.entries[trial.trial_id].attempts):
                verdict, result = self._patience.ask(self.name, partial(self._bring, trial, attempt, gone))
                if result is not None and not verdict.end.is_resumable:
                    self._fleet.settlement.end(trial.planned, attempt, verdict, result)
                    return True
        except (WorkerLost, FleetStopped):
            self._queue.put(trial)
            raise
        return False

    def _pick_up(self, trial: OpenTrial, attempt: Attempt) -> None:
        """An earlier attempt on this host, after a resume or after the host was lost: go on from what it is now."""
        planned, job = trial.planned, self._job(attempt)
        status = self._patience.ask(self.name, job.status)
        if self._queue.claim(trial):
            self._fleet.on_event(of_attempt(EventType.ATTACHED, planned, attempt))
            if status.state in (JobState.ABSENT, JobState.WAITING) and self._is_done_already(trial):
                return
            if status.state is JobState.ABSENT and attempt.folder in trial.begun:
                # It ran here once; its worker has come back with an empty disk.
                self._settle(trial, attempt, judge(planned, attempt.number, status, None, []), None)
            else:
                self._see_through(trial, attempt, resumed=True)
        elif status.state is JobState.ENDED and self._fleet.ledger.is_open(planned.trial_id):
            # Done before its replacement: its result counts, if it has one.
            verdict, result = self._patience.ask(self.name, lambda: self._bring(trial, attempt, status))
            if not verdict.end.is_resumable:
                self._fleet.settlement.end(planned, attempt, verdict, result)
        elif status.state is JobState.RUNNING:
            self._patience.ask(self.name, lambda: job.cancel(grace_sec=self._patience.limits.grace_sec))

    def _see_through(self, trial: OpenTrial, attempt: Attempt, *, resumed: bool = False) -> None:
        """Follow the attempt to its end, wherever it is now, and settle what comes of it."""
        try:
            outcome = self._outcome(trial, attempt)
        except FleetStopped:
            self._cancel(trial, attempt)
        except WorkerLost as lost:
            if isinstance(lost, WorkerBusy):
                trial.kept_out.add(attempt.folder)
            if (trial, attempt) not in self.earlier:
                self.earlier.append((trial, attempt))
            self._queue.release(trial, self.name)
            raise
        else:
            if outcome is None:
                return
            verdict, result = outcome
            if resumed and verdict.end is TrialStatus.CANCELLED and not self._patience.is_halted:
                # The operator cancelled it in an earlier run, and has now resumed that run.
                self._fleet.settlement.try_again(trial, attempt, "cancelled earlier")
            else:
                self._settle(trial, attempt, verdict, result)

    def _outcome(self, trial: OpenTrial, attempt: Attempt) -> tuple[Verdict, Path | None] | None:
        """What the attempt came to, once its job is over; None when another attempt was first: this one is stopped."""
        try:
            status = self._follow(trial, attempt)
            return self._patience.ask(self.name, lambda: self._bring(trial, attempt, status))
        except Superseded:
            job, grace_sec = self._job(attempt), self._patience.limits.grace_sec
            self._patience.ask(self.name, lambda: job.cancel(grace_sec=grace_sec))
            return None

    def _follow(self, trial: OpenTrial, attempt: Attempt) -> JobStatus:
        """Start the attempt's job if need be and watch it to its end, over as many connections as it takes.

        Raises Overtaken, Stopped, WorkerLost and WorkerBusy.
        """
        fleet, planned, job, patience = self._fleet, trial.planned, self._job(attempt), self._patience
        spec = JobSpec(
            command=fleet.launch(self.agent.host, planned, attempt.number, attempt.folder),
            deadline_sec=planned.trial.deadline_sec + patience.limits.deadline_margin_sec,
            grace_sec=patience.limits.grace_sec,
            files={TRIAL_FILE: planned.trial.to_text()},
        )

        def hear(status: JobStatus) -> None:
            patience.heard(self.name)
            if patience.is_halted:
                raise FleetStopped
            if not fleet.ledger.is_open(planned.trial_id):
                raise Superseded
            if status.progress is not None:
                with contextlib.suppress(SchemaError):  # of another version: it is for display only
                    progress = from_json(Progress, status.progress)
                    if fleet.keeper is not None:
                        fleet.keeper.hear(self.agent, planned, attempt.number, progress)
                    fleet.on_event(replace(of_attempt(EventType.PROGRESS, planned, attempt), progress=progress))

        start, watch = partial(job.start, spec), partial(patience.watch, job, hear, PROGRESS)
        if fleet.keeper is not None and attempt.folder not in trial.begun:
            patience.ask(self.name, partial(fleet.keeper.provide, self.agent, planned))
        status = patience.ask(self.name, start)
        trial.begun.add(attempt.folder)
        while status.state in (JobState.RUNNING, JobState.WAITING):
            status = patience.ask(self.name, start if status.state is JobState.WAITING else watch)
        return status

    def _bring(self, trial: OpenTrial, attempt: Attempt, status: JobStatus) -> tuple[Verdict, Path | None]:
        """Bring what the attempt left: with its job, or, once its host is gone, on the shared volume."""
        fleet = self._fleet
        places = [] if status.state is JobState.ABSENT else [f"{attempt.folder}/{OUT_FOLDER}"]
        if fleet.shared is not None:
            places.append(place_of(fleet.shared, fleet.run_id, trial.planned.trial_id, attempt.number))
        incoming = fleet.run_folder / INCOMING
        return fetch_result(self._job(attempt), trial.planned, attempt, status, places=places, incoming=incoming)

    def _settle(self, trial: OpenTrial, attempt: Attempt, verdict: Verdict, result: Path | None) -> None:
        if verdict.is_transient and trial.may_follow(attempt) and not self._patience.is_halted:
            self._fleet.settlement.try_again(trial, attempt, verdict.reason or verdict.end.value)
        else:
            self._fleet.settlement.end(trial.planned, attempt, verdict, result)

    def _cancel(self, trial: OpenTrial, attempt: Attempt) -> None:
        """Stop the attempt because the operator asked; if it got to its end first, that end counts."""
        if self._patience.abandoning.is_set():
            return
        result, has_begun = None, False
        try:
            job = self._job(attempt)
            status = job.cancel(grace_sec=self._patience.limits.grace_sec)
            has_begun = status.state not in (JobState.ABSENT, JobState.WAITING)
            if status.state is JobState.LOST:  # with how far it was
                status = job.watch(lambda _: None, progress=PROGRESS, for_sec=0.0)
            verdict, result = self._bring(trial, attempt, status)
        except HostError as error:
            reason = f"{self.name} {NOT_ASKED}: {one_line(error)}"
            verdict = Verdict(end=TrialStatus.CANCELLED, reason=reason)
        if verdict.end is TrialStatus.LOST:
            reason = f"cancelled; {verdict.reason}" if has_begun else "cancelled before it started"
            verdict = Verdict(end=TrialStatus.CANCELLED, reason=reason)
        self._fleet.settlement.end(trial.planned, attempt, verdict, result)

    def _job(self, attempt: Attempt) -> Job:
        return Job(self.agent, attempt.folder, slot=slot_of(self.agent.host))

    def _await_return(self, lost: WorkerLost) -> bool:
        """Give the lost host's trials to others and ask after it now and then.

        True when it answers; False when it is given up, or nothing is left that it could do.
        """
        held = self.earlier[0][0].trial_id if self.earlier else None
        self._fleet.on_event(FleetEvent(happening=_kind_of(lost), worker=self.name, trial_id=held, reason=str(lost)))
        if not isinstance(lost, CredentialsRejected):  # then what runs goes on, and no other host would take a trial
            for trial, attempt in self.earlier:
                if trial.planned.worker is None and trial.may_follow(attempt):
                    self._queue.pass_on(trial, self.name)
        reason = self._patience.await_return(self.agent, lost, lambda: self._queue.is_open_for(self.name))
        if reason is None:
            if not self._patience.is_halted:
                self._fleet.on_event(FleetEvent(happening=EventType.WORKER_BACK, worker=self.name))
            return True
        verdict = Verdict(end=TrialStatus.LOST, reason=reason)
        for trial, attempt in self.earlier:
            if self._queue.give_up(trial, self.name):
                self._fleet.settlement.end(trial.planned, attempt, verdict)
        for trial in self._queue.open_trials():
            if trial.planned.worker == self.name:
                self._fleet.settlement.end(trial.planned, None, verdict)
        return False


def _kind_of(lost: WorkerLost) -> EventType:
    if isinstance(lost, WorkerBusy):
        return EventType.WORKER_BUSY
    return EventType.SHUT_OUT if isinstance(lost, CredentialsRejected) else EventType.WORKER_LOST
