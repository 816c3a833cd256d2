"""Many hosts, one queue of trials, and nothing lost: hand out, follow, retry what is transient, requeue, settle.

One thread per host takes the next trial that host may run, starts it as a detached job and follows it. Nothing here
holds the only copy of anything: every decision is in the ledger before it is acted on, every job can be found again
by its folder, and a result counts once it lies verified in the run's own folder. So the operator may be killed at any
moment; a new Fleet over the same ledger picks up what runs, what has ended meanwhile, and what never started.

A trial whose host is lost goes to another one (unless pinned to it), and the host is asked after
(`remote.fleet.patience`). When it comes back with the trial still running or done, the first complete result wins and
the other copy is cancelled. Where the workers share a volume, a result that a dead one left there counts, and its trial
is not run again.

Two operators may drive the same hosts: a host's slot lets in one trial at a time, and a run that finds it taken waits
for its turn, trial by trial.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from bench.records.result import End
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.attempt import OUT_FOLDER, TRIAL_FILE, Overtaken, follow
from remote.fleet.events import FleetEvent, Happening
from remote.fleet.ledger import Attempt, Ledger
from remote.fleet.outcome import bring
from remote.fleet.patience import Limits, Reach, ShutOut, Stopped, WorkerBusy, WorkerLost
from remote.fleet.queue import TrialQueue
from remote.fleet.settle import Ends
from remote.fleet.shared_volume import place_of
from remote.fleet.verdict import Verdict, judge
from remote.hosts.command import Command
from remote.hosts.host import Host, HostError, one_line
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec, JobState, JobStatus, slot_of

Launch = Callable[[Host, PlannedTrial, int, str], Command]
INCOMING = "incoming"  # below the run's folder: results on their way, before one of them is a trial's end


class Fleet:
    """Runs the open trials of a ledger over hosts.

    `launch` makes the command for (host, trial, attempt, job folder); the trial lies in that folder as trial.json and
    the result is expected in its `out/`, or below `shared`, a folder that every host sees
    (`remote.fleet.shared_volume`). `on_event` is called from several threads and must not raise. `agents` makes a
    host's agent; `only` these trials of the run are this fleet's business.
    """

    def __init__(
        self,
        *,
        hosts: Sequence[Host],
        run: RunRecord,
        run_folder: Path,
        ledger: Ledger,
        launch: Launch,
        on_event: Callable[[FleetEvent], None] = lambda _: None,
        limits: Limits | None = None,
        shared: str | None = None,
        agents: Callable[[Host], Agent] = Agent,
        only: Collection[str] | None = None,
    ) -> None:
        self.hosts, self.run_record, self.run_folder, self.ledger = list(hosts), run, run_folder, ledger
        self.launch, self.on_event, self.shared = launch, on_event, shared
        self.limits = Limits() if limits is None else limits
        self._agents = agents
        longest_sec = max((one.trial.deadline_sec for one in run.planned), default=0.0)
        self._reach = Reach(self.limits, busy_for_sec=self.limits.give_up_after_sec + longest_sec)
        self._planned = {one.trial_id: one for one in run.planned if only is None or one.trial_id in only}
        self._failure: BaseException | None = None
        self._begun: set[str] = set()
        self._queue = TrialQueue(ledger, list(self._planned.values()))
        self._ends = Ends(run_folder, ledger, self._queue, on_event)
        names = {host.name for host in self.hosts}
        self._budget: dict[str, int] = {}
        self._kept_out: dict[str, set[str]] = {}  # a trial's attempts that have found their worker busy
        self._inherited: dict[str, list[tuple[PlannedTrial, Attempt]]] = {name: [] for name in names}
        for trial_id in self._open_trials():
            self._take_stock(self._planned[trial_id], names)

    def _take_stock(self, planned: PlannedTrial, names: set[str]) -> None:
        """What becomes of an open trial: its host is asked about an earlier attempt, or it is queued, or given up."""
        trial_id, attempts = planned.trial_id, self.ledger.entries[planned.trial_id].attempts
        live = [attempt for attempt in attempts if attempt.reason is None]
        spent = max(len(attempts) - len(live), self.ledger.entries[trial_id].spent)
        self._budget[trial_id], self._kept_out[trial_id] = spent + self.limits.max_attempts, set()
        known = [attempt for attempt in live if attempt.worker in names]
        for attempt in live:
            if attempt not in known:
                self.ledger.retried(trial_id, attempt.number, f"{attempt.worker} is not in this fleet")
        if planned.worker is not None and planned.worker not in names:
            self._ends.end(
                planned, attempts[-1] if attempts else None, End.LOST, f"{planned.worker} is not in this fleet"
            )
        elif known:
            for attempt in known:
                self._inherited[attempt.worker].append((planned, attempt))
                self._queue.release(planned, attempt.worker)
        else:
            self._queue.put(planned)

    def run(self) -> None:
        """Work until every trial has its end. KeyboardInterrupt stops the workers' jobs and ends them as CANCELLED.

        A second interrupt leaves at once; what runs goes on and can be resumed. Raises LedgerError when the run's
        folder can no longer be written (jobs go on, resume later), and whatever else broke a worker's thread.
        """
        threads = [
            threading.Thread(target=self._guard, args=(self._agents(host),), name=host.name, daemon=True)
            for host in self.hosts
        ]
        for thread in threads:
            thread.start()
        try:
            self._join(threads)
        except KeyboardInterrupt:
            self.stop()
            self._join(threads)
        if self._failure is not None:
            raise self._failure
        for trial_id in self._open_trials():
            attempts = self.ledger.entries[trial_id].attempts
            last = attempts[-1] if attempts else None
            if self._reach.stopping.is_set():
                self._ends.end(self._planned[trial_id], last, End.CANCELLED, "cancelled before it started")
            else:
                self._ends.end(self._planned[trial_id], last, End.LOST, "no worker is left that may run it")
        shutil.rmtree(self.run_folder / INCOMING, ignore_errors=True)  # what attempts left that came to nothing

    def _open_trials(self) -> list[str]:
        return [trial_id for trial_id in self.ledger.open_trials() if trial_id in self._planned]

    @property
    def was_stopped(self) -> bool:
        """True once somebody asked this fleet to stop."""
        return self._reach.stopping.is_set()

    def stop(self) -> None:
        """Cancel what runs and start nothing more."""
        self._reach.stopping.set()
        self._queue.close()

    @staticmethod
    def _join(threads: Sequence[threading.Thread]) -> None:
        while any(thread.is_alive() for thread in threads):
            for thread in threads:
                thread.join(0.1)  # in slices, so that a signal reaches the main thread

    # --- one host's thread ---

    def _guard(self, agent: Agent) -> None:
        try:
            self._serve(agent)
        except BaseException as error:  # noqa: BLE001 - carried to the caller of run(); the jobs go on without us
            self._failure = self._failure or error
            self._reach.abandoning.set()
            self._queue.close()

    def _serve(self, agent: Agent) -> None:
        inherited = self._inherited[agent.host.name]
        while True:
            try:
                if self._reach.is_halted:
                    raise Stopped
                while inherited:
                    self._pick_up(agent, *inherited[0])
                    self._queue.pass_on(inherited.pop(0)[0].trial_id, agent.host.name)
                planned = self._queue.take(agent.host.name)
                if planned is None:
                    return
                self._attend(agent, planned)
            except WorkerLost as lost:
                if not self._await_return(agent, lost):
                    return
            except Stopped:
                for planned, attempt in inherited:
                    self._cancel(agent, self._job(agent, attempt), planned, attempt)
                return

    def _attend(self, agent: Agent, planned: PlannedTrial) -> None:
        """Start a new attempt and see it through."""
        attempts = self.ledger.entries[planned.trial_id].attempts
        if self.shared is not None and self._is_done_already(agent, planned, attempts):
            return
        number = max((attempt.number for attempt in attempts), default=0) + 1
        folder = f"{agent.host.workdir}/runs/{self.run_record.run_id}/{planned.trial_id}.{number}"
        self.ledger.started(planned.trial_id, number, agent.host.name, folder)
        attempt = Attempt(number=number, worker=agent.host.name, folder=folder)
        self._ends.tell(Happening.STARTED, attempt, planned)
        self._see_through(agent, planned, attempt)

    def _is_done_already(self, agent: Agent, planned: PlannedTrial, attempts: Sequence[Attempt]) -> bool:
        """Whether an earlier attempt left its result on the shared volume before its host died; then it counts."""
        try:
            for attempt in attempts:
                job, gone = self._job(agent, attempt), JobStatus(state=JobState.ABSENT)
                judged = partial(self._judge, job, planned, attempt, gone)
                verdict, result = self._reach.ask(agent.host.name, judged)
                if result is not None and not verdict.end.is_resumable:
                    self._ends.end(planned, attempt, verdict.end, verdict.reason, result)
                    return True
        except (WorkerLost, Stopped):
            self._queue.put(planned)
            raise
        return False

    def _pick_up(self, agent: Agent, planned: PlannedTrial, attempt: Attempt) -> None:
        """An earlier attempt on this host, after a resume or after the host was lost: go on from what it is now."""
        job = self._job(agent, attempt)
        status = self._reach.ask(agent.host.name, job.status)
        if self._queue.claim(planned.trial_id):
            self._ends.tell(Happening.ATTACHED, attempt, planned)
            if status.state is JobState.ABSENT and attempt.folder in self._begun:
                # It ran here once; its worker has come back without its memory.
                self._settle(planned, attempt, judge(planned, attempt.number, status, None, []), None)
            else:
                self._see_through(agent, planned, attempt, resumed=True)
        elif status.state is JobState.ENDED and self.ledger.is_open(planned.trial_id):
            # Done before its replacement: what it came to counts, unless it came to nothing.
            verdict, result = self._reach.ask(agent.host.name, lambda: self._judge(job, planned, attempt, status))
            if not verdict.end.is_resumable:
                self._ends.end(planned, attempt, verdict.end, verdict.reason, result)
        elif status.state is JobState.RUNNING:
            self._reach.ask(agent.host.name, lambda: job.cancel(grace_sec=self.limits.grace_sec))

    def _see_through(self, agent: Agent, planned: PlannedTrial, attempt: Attempt, *, resumed: bool = False) -> None:
        """Follow the attempt to its end, wherever it is now, and settle what comes of it."""
        job = self._job(agent, attempt)
        try:
            outcome = self._outcome(agent, job, planned, attempt)
        except Stopped:
            self._cancel(agent, job, planned, attempt)
        except WorkerLost as lost:
            if isinstance(lost, WorkerBusy):
                self._kept_out[planned.trial_id].add(attempt.folder)
            if (planned, attempt) not in self._inherited[agent.host.name]:
                self._inherited[agent.host.name].append((planned, attempt))
            self._queue.release(planned, agent.host.name)
            raise
        else:
            if outcome is None:
                return
            verdict, result = outcome
            if resumed and verdict.end is End.CANCELLED and not self._reach.is_halted:
                # That end was the operator's, and the operator has come back for it.
                self._ends.try_again(planned, attempt, "cancelled earlier")
            else:
                self._settle(planned, attempt, verdict, result)

    def _outcome(
        self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt
    ) -> tuple[Verdict, Path | None] | None:
        """What the attempt came to, once its job is over; None when another attempt was first: this one is stopped."""
        try:
            status = self._follow(agent, job, planned, attempt)
            return self._reach.ask(agent.host.name, lambda: self._judge(job, planned, attempt, status))
        except Overtaken:
            self._reach.ask(agent.host.name, lambda: job.cancel(grace_sec=self.limits.grace_sec))
            return None

    def _follow(self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt) -> JobStatus:
        spec = JobSpec(
            command=self.launch(agent.host, planned, attempt.number, attempt.folder),
            deadline_sec=planned.trial.deadline_sec + self.limits.deadline_margin_sec,
            grace_sec=self.limits.grace_sec,
            files={TRIAL_FILE: planned.trial.to_text()},
        )
        return follow(
            job,
            spec,
            self._reach,
            is_open=lambda: self.ledger.is_open(planned.trial_id),
            on_begun=lambda: self._begun.add(attempt.folder),
            on_progress=lambda now: self._ends.tell(Happening.PROGRESS, attempt, planned, progress=now),
        )

    def _judge(
        self, job: Job, planned: PlannedTrial, attempt: Attempt, status: JobStatus
    ) -> tuple[Verdict, Path | None]:
        """Bring what the attempt left: with its job, or, once its host is gone, on the shared volume."""
        places = [f"{attempt.folder}/{OUT_FOLDER}"]
        if self.shared is not None:
            places.append(place_of(self.shared, self.run_record.run_id, planned.trial_id, attempt.number))
        return bring(job, planned, attempt, status, places=places, incoming=self.run_folder / INCOMING)

    def _settle(self, planned: PlannedTrial, attempt: Attempt, verdict: Verdict, result: Path | None) -> None:
        if verdict.is_transient and self._may_again(planned, attempt) and not self._reach.is_halted:
            self._ends.try_again(planned, attempt, verdict.reason or verdict.end.value)
        else:
            self._ends.end(planned, attempt, verdict.end, verdict.reason, result)

    def _may_again(self, planned: PlannedTrial, attempt: Attempt) -> bool:
        """Whether another attempt may follow this one. One that only ever found its worker busy has used up none."""
        unspent = self._kept_out[planned.trial_id] - self._begun
        return attempt.number < self._budget[planned.trial_id] + len(unspent)

    def _cancel(self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt) -> None:
        """Stop the attempt because the operator asked; if it got to its end first, that end counts."""
        if self._reach.abandoning.is_set():
            return
        result = None
        try:
            status = job.cancel(grace_sec=self.limits.grace_sec)
            verdict, result = self._judge(job, planned, attempt, status)
        except HostError as error:
            reason = f"cancelled, but {agent.host.name} could not be told: {one_line(error)}"
            verdict = Verdict(end=End.CANCELLED, reason=reason)
        if verdict.end is End.LOST:
            verdict = Verdict(end=End.CANCELLED, reason="cancelled before it started")
        self._ends.end(planned, attempt, verdict.end, verdict.reason, result)

    def _job(self, agent: Agent, attempt: Attempt) -> Job:
        return Job(agent, attempt.folder, slot=slot_of(agent.host))

    def _await_return(self, agent: Agent, lost: WorkerLost) -> bool:
        """Give a lost host's trials to others and ask after it now and then.

        True when it answers; False when it is given up, or nothing is left that it could do.
        """
        name = agent.host.name
        inherited = self._inherited[name]
        held = inherited[0][0].trial_id if inherited else None
        happened = Happening.WORKER_BUSY if isinstance(lost, WorkerBusy) else Happening.WORKER_LOST
        self.on_event(FleetEvent(happening=happened, worker=name, trial_id=held, reason=str(lost)))
        for planned, attempt in inherited:
            if isinstance(lost, ShutOut):
                break  # what runs goes on; the others are shut out too
            if planned.worker is None and self._may_again(planned, attempt):
                self._queue.pass_on(planned.trial_id, name)
        reason = self._reach.await_return(agent, lost, lambda: self._queue.is_open_for(name))
        if reason is None:
            if not self._reach.is_halted:
                self.on_event(FleetEvent(happening=Happening.WORKER_BACK, worker=name))
            return True
        for planned, attempt in inherited:
            if self._queue.give_up(planned.trial_id, name):
                self._ends.end(planned, attempt, End.LOST, reason)
        for planned in self._queue.pinned_to(name):
            self._ends.end(planned, None, End.LOST, reason)
        return False
