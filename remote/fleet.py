"""Many hosts, one queue of trials, and nothing lost: hand out, follow, retry what is transient, requeue, settle.

One thread per host takes the next trial that host may run, starts it as a detached job and follows it. Nothing here
holds the only copy of anything: every decision is in the ledger before it is acted on, every job can be found again
by its folder, and a result counts once it lies verified in the run's own folder. So the operator may be killed at any
moment; a new Fleet over the same ledger picks up what runs, what has ended meanwhile, and what never started.

A host that stops answering for `lost_after_sec` is lost: its trial goes to another host (unless pinned to it), and the
host is asked again until it answers or `give_up_after_sec` has passed. When it comes back with the trial still running
or done, the first complete result wins and the other copy is cancelled. Where the workers share a volume, a result that
a dead one left there counts, and its trial is not run again.

Not covered: two operators on two machines driving the same hosts; the slot lock on the host keeps them from running
two trials at once there, but each would wait for the other.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from bench.result import (
    PROGRESS_FILE,
    RESULT_FILE,
    End,
    PlannedTrial,
    Progress,
    ResultError,
    RunRecord,
    TrialResult,
    write_atomic,
)
from bench.schema import SchemaError, from_json
from remote.agent import Agent
from remote.command import Command
from remote.events import FleetEvent, Happening
from remote.host import CommandTimedOut, Host, HostError, HostUnreachable, one_line
from remote.job import HostBusy, Job, JobSpec, JobState, JobStatus, slot_holder, slot_of
from remote.ledger import Attempt, Ledger
from remote.queue import TrialQueue
from remote.shelter import place_of
from remote.transfer import ChecksumMismatch, pull
from remote.verdict import Verdict, belongs, judge

T = TypeVar("T")
Launch = Callable[[Host, PlannedTrial, int, str], Command]
OUT_FOLDER = "out"
TRIAL_FILE = "trial.json"
INCOMING = "incoming"  # below the run's folder: results on their way, before one of them is a trial's end
PROGRESS = f"{OUT_FOLDER}/{PROGRESS_FILE}"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The fleet's patience, in seconds, and how often one trial may be started.

    `deadline_margin_sec` is added to a trial's own deadline before its job is stopped from outside.
    """

    lost_after_sec: float = 60.0
    give_up_after_sec: float = 600.0
    max_attempts: int = 2
    deadline_margin_sec: float = 30.0
    grace_sec: float = 25.0
    every_sec: float = 1.0


class _WorkerLost(Exception):
    """A host has not answered for too long."""


class _Stopped(Exception):
    """The operator asked to stop while a trial was being followed."""


class _Overtaken(Exception):
    """The trial being followed has reached its end through another attempt."""


class Fleet:
    """Runs the open trials of a ledger over hosts.

    `launch` makes the command for (host, trial, attempt, job folder); the trial lies in that folder as trial.json and
    the result is expected in its `out/`, or below `shared`, a folder that every host sees (`remote.shelter`).
    `on_event` is called from several threads and must not raise. `agents` makes a host's agent; `only` these trials of
    the run are this fleet's business.
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
        self._planned = {one.trial_id: one for one in run.planned if only is None or one.trial_id in only}
        self._stop = threading.Event()
        self._abandon = threading.Event()
        self._failure: BaseException | None = None
        self._settling = threading.Lock()
        self._begun: set[str] = set()
        self._last_heard: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}
        self._queue = TrialQueue(ledger, list(self._planned.values()))
        names = {host.name for host in self.hosts}
        self._budget: dict[str, int] = {}
        self._inherited: dict[str, list[tuple[PlannedTrial, Attempt]]] = {name: [] for name in names}
        for trial_id in self._open_trials():
            self._take_stock(self._planned[trial_id], names)

    def _take_stock(self, planned: PlannedTrial, names: set[str]) -> None:
        """What becomes of an open trial: its host is asked about an earlier attempt, or it is queued, or given up."""
        trial_id, attempts = planned.trial_id, self.ledger.entries[planned.trial_id].attempts
        live = [attempt for attempt in attempts if attempt.reason is None]
        spent = max(len(attempts) - len(live), self.ledger.entries[trial_id].spent)
        self._budget[trial_id] = spent + self.limits.max_attempts
        known = [attempt for attempt in live if attempt.worker in names]
        for attempt in live:
            if attempt not in known:
                self.ledger.retried(trial_id, attempt.number, f"{attempt.worker} is not in this fleet")
        if planned.worker is not None and planned.worker not in names:
            self._end(planned, attempts[-1] if attempts else None, End.LOST, f"{planned.worker} is not in this fleet")
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
            if self._stop.is_set():
                self._end(self._planned[trial_id], last, End.CANCELLED, "cancelled before it started")
            else:
                self._end(self._planned[trial_id], last, End.LOST, "no worker is left that may run it")
        shutil.rmtree(self.run_folder / INCOMING, ignore_errors=True)  # what attempts left that came to nothing

    def _open_trials(self) -> list[str]:
        return [trial_id for trial_id in self.ledger.open_trials() if trial_id in self._planned]

    @property
    def was_stopped(self) -> bool:
        """True once somebody asked this fleet to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Cancel what runs and start nothing more."""
        self._stop.set()
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
            self._abandon.set()
            self._queue.close()

    def _serve(self, agent: Agent) -> None:
        inherited = self._inherited[agent.host.name]
        while True:
            try:
                if self._halted():
                    raise _Stopped
                while inherited:
                    self._pick_up(agent, *inherited[0])
                    self._queue.pass_on(inherited.pop(0)[0].trial_id, agent.host.name)
                planned = self._queue.take(agent.host.name)
                if planned is None:
                    return
                self._attend(agent, planned)
            except _WorkerLost as lost:
                if not self._await_return(agent, str(lost)):
                    return
            except _Stopped:
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
        self._tell(Happening.STARTED, attempt, planned)
        self._see_through(agent, planned, attempt)

    def _is_done_already(self, agent: Agent, planned: PlannedTrial, attempts: Sequence[Attempt]) -> bool:
        """Whether an earlier attempt left its result on the shared volume before its host died; then it counts."""
        try:
            for attempt in attempts:
                job, gone = self._job(agent, attempt), JobStatus(state=JobState.ABSENT)
                judged = partial(self._judge, job, planned, attempt, gone)
                verdict, result = self._reach(agent, judged)
                if result is not None and not verdict.end.is_resumable:
                    self._end(planned, attempt, verdict.end, verdict.reason, result)
                    return True
        except (_WorkerLost, _Stopped):
            self._queue.put(planned)
            raise
        return False

    def _pick_up(self, agent: Agent, planned: PlannedTrial, attempt: Attempt) -> None:
        """An earlier attempt on this host, after a resume or after the host was lost: go on from what it is now."""
        job = self._job(agent, attempt)
        status = self._reach(agent, job.status)
        if self._queue.claim(planned.trial_id):
            self._tell(Happening.ATTACHED, attempt, planned)
            if status.state is JobState.ABSENT and attempt.folder in self._begun:
                # It ran here once; its worker has come back without its memory.
                self._settle(planned, attempt, judge(planned, attempt.number, status, None, []), None)
            else:
                self._see_through(agent, planned, attempt, resumed=True)
        elif status.state is JobState.ENDED and self.ledger.is_open(planned.trial_id):
            # Done before its replacement: what it came to counts, unless it came to nothing.
            verdict, result = self._reach(agent, lambda: self._judge(job, planned, attempt, status))
            if not verdict.end.is_resumable:
                self._end(planned, attempt, verdict.end, verdict.reason, result)
        elif status.state is JobState.RUNNING:
            self._reach(agent, lambda: job.cancel(grace_sec=self.limits.grace_sec))

    def _see_through(self, agent: Agent, planned: PlannedTrial, attempt: Attempt, *, resumed: bool = False) -> None:
        """Follow the attempt to its end, wherever it is now, and settle what comes of it."""
        job = self._job(agent, attempt)
        try:
            outcome = self._outcome(agent, job, planned, attempt)
        except _Stopped:
            self._cancel(agent, job, planned, attempt)
        except _WorkerLost:
            if (planned, attempt) not in self._inherited[agent.host.name]:
                self._inherited[agent.host.name].append((planned, attempt))
            self._queue.release(planned, agent.host.name)
            raise
        else:
            if outcome is None:
                return
            verdict, result = outcome
            if resumed and verdict.end is End.CANCELLED and not self._halted():
                # That end was the operator's, and the operator has come back for it.
                self._try_again(planned, attempt, "cancelled earlier")
            else:
                self._settle(planned, attempt, verdict, result)

    def _outcome(
        self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt
    ) -> tuple[Verdict, Path | None] | None:
        """What the attempt came to, once its job is over; None when another attempt was first: this one is stopped."""
        try:
            status = self._follow(agent, job, planned, attempt)
            return self._reach(agent, lambda: self._judge(job, planned, attempt, status))
        except _Overtaken:
            self._reach(agent, lambda: job.cancel(grace_sec=self.limits.grace_sec))
            return None

    def _follow(self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt) -> JobStatus:
        """Start the job if need be and watch it to its end, over as many connections as that takes."""

        def hear(status: JobStatus) -> None:
            self._last_heard[agent.host.name] = time.monotonic()
            self._lost_since.pop(agent.host.name, None)
            if self._halted():
                raise _Stopped
            if not self.ledger.is_open(planned.trial_id):
                raise _Overtaken
            if status.progress is not None:
                progress = _progress(status.progress)
                if progress is not None:
                    self._tell(Happening.PROGRESS, attempt, planned, progress=progress)

        command = self.launch(agent.host, planned, attempt.number, attempt.folder)
        spec = JobSpec(
            command=command,
            deadline_sec=planned.trial.deadline_sec + self.limits.deadline_margin_sec,
            grace_sec=self.limits.grace_sec,
            files={TRIAL_FILE: planned.trial.to_text()},
        )
        status = self._reach(agent, lambda: job.start(spec))
        self._begun.add(attempt.folder)
        while status.state in (JobState.RUNNING, JobState.WAITING):
            if status.state is JobState.WAITING:
                status = self._reach(agent, lambda: job.start(spec))
            else:
                status = self._reach(agent, lambda: job.watch(hear, progress=PROGRESS, every_sec=self.limits.every_sec))
        return status

    def _judge(
        self, job: Job, planned: PlannedTrial, attempt: Attempt, status: JobStatus
    ) -> tuple[Verdict, Path | None]:
        """Bring the attempt's result, if there is one, to this machine; say what it means and where it lies."""
        incoming = self.run_folder / INCOMING / f"{planned.trial_id}.{attempt.number}"
        for folder in (incoming.parent, incoming):  # not parents=True: a run's folder that went away is not made anew
            folder.mkdir(exist_ok=True)
        path, result, damage = incoming / RESULT_FILE, None, None
        for place in self._outputs(planned, attempt):
            try:
                pull(job.agent, place, incoming, only=(RESULT_FILE,))
                result = TrialResult.read(path) if path.exists() else None
            except (ResultError, ChecksumMismatch) as error:
                damage = str(error)
            if result is not None:
                break
        log_tail = job.log_tail() if result is None else []
        verdict = judge(planned, attempt.number, status, result, log_tail, damage)
        is_its_own = result is not None and belongs(result, planned, attempt.number)
        return verdict, path if is_its_own else None

    def _outputs(self, planned: PlannedTrial, attempt: Attempt) -> list[str]:
        """Where the attempt's output may lie: with its job, and, once its host is gone, on the shared volume."""
        shared = (
            []
            if self.shared is None
            else [place_of(self.shared, self.run_record.run_id, planned.trial_id, attempt.number)]
        )
        return [f"{attempt.folder}/{OUT_FOLDER}", *shared]

    def _settle(self, planned: PlannedTrial, attempt: Attempt, verdict: Verdict, result: Path | None) -> None:
        may_again = attempt.number < self._budget[planned.trial_id] and not self._halted()
        if verdict.is_transient and may_again:
            self._try_again(planned, attempt, verdict.reason or verdict.end.value)
        else:
            self._end(planned, attempt, verdict.end, verdict.reason, result)

    def _try_again(self, planned: PlannedTrial, attempt: Attempt, reason: str) -> None:
        if not self.ledger.is_open(planned.trial_id):
            return
        self.ledger.retried(planned.trial_id, attempt.number, reason)
        self._tell(Happening.RETRYING, attempt, planned, reason=reason)
        self._queue.put(planned)

    def _end(
        self, planned: PlannedTrial, attempt: Attempt | None, end: End, reason: str | None, result: Path | None = None
    ) -> None:
        """Write the trial's end, its result in place first. The first end stands; a later one changes nothing."""
        with self._settling:
            if not self.ledger.is_open(planned.trial_id):
                return
            place = self.run_folder / "trials" / planned.trial_id
            if result is not None:
                place.mkdir(parents=True, exist_ok=True)
                write_atomic(place / RESULT_FILE, result.read_bytes())
            else:
                (place / RESULT_FILE).unlink(missing_ok=True)  # of an end that was reopened since
            self.ledger.ended(planned.trial_id, end, reason, None if attempt is None else attempt.number)
            if result is not None:
                shutil.rmtree(result.parent)
        told = attempt or Attempt(number=1, worker=planned.worker or "", folder="")
        self._tell(Happening.ENDED, told, planned, end=end, reason=reason)
        self._queue.settle()

    def _cancel(self, agent: Agent, job: Job, planned: PlannedTrial, attempt: Attempt) -> None:
        """Stop the attempt because the operator asked; if it got to its end first, that end counts."""
        if self._abandon.is_set():
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
        self._end(planned, attempt, verdict.end, verdict.reason, result)

    # --- reaching a host ---

    def _job(self, agent: Agent, attempt: Attempt) -> Job:
        return Job(agent, attempt.folder, slot=slot_of(agent.host))

    def _halted(self) -> bool:
        return self._stop.is_set() or self._abandon.is_set()

    def _reach(self, agent: Agent, ask: Callable[[], T]) -> T:
        """`ask` the host, again and again while it is out of reach, for at most `lost_after_sec` of silence.

        A host that answers but cannot do what every host can (its disk is full, its Python gone) is lost at once:
        were it left in service, it would take trial after trial from the queue and fail them all.
        """
        self._last_heard[agent.host.name] = time.monotonic()
        pause_sec = 0.2
        while True:
            try:
                return ask()
            except (HostUnreachable, CommandTimedOut, HostBusy) as error:
                silent_sec = time.monotonic() - self._last_heard[agent.host.name]
                if silent_sec >= self.limits.lost_after_sec:
                    raise _WorkerLost(f"{one_line(error)} (for {silent_sec:.0f} s)") from error
            except HostError as error:
                raise _WorkerLost(one_line(error)) from error
            if self._stop.wait(min(pause_sec, self.limits.lost_after_sec / 4)) or self._abandon.is_set():
                raise _Stopped
            pause_sec = min(pause_sec * 2, 5.0)

    def _await_return(self, agent: Agent, why: str) -> bool:
        """Give a lost host's trials to others and ask after it now and then.

        True when it answers; False when it is given up, or nothing is left that it could do.
        """
        name = agent.host.name
        inherited = self._inherited[name]
        held = inherited[0][0].trial_id if inherited else None
        self.on_event(FleetEvent(happening=Happening.WORKER_LOST, worker=name, trial_id=held, reason=why))
        for planned, attempt in inherited:
            if planned.worker is None and attempt.number < self._budget[planned.trial_id]:
                self._queue.pass_on(planned.trial_id, name)
        until = self._lost_since.setdefault(name, time.monotonic()) + self.limits.give_up_after_sec
        pause_sec = min(5.0, self.limits.lost_after_sec / 4)
        while time.monotonic() < until and self._queue.is_open_for(name):
            if self._stop.wait(pause_sec) or self._abandon.is_set():
                return self._stop.is_set()  # to be stopped properly, what it runs has to be cancelled
            try:
                slot_holder(agent, slot_of(agent.host))
            except HostError:
                continue
            self.on_event(FleetEvent(happening=Happening.WORKER_BACK, worker=name))
            return True
        reason = f"{name} did not come back within {self.limits.give_up_after_sec:g} s: {why}"
        for planned, attempt in inherited:
            if self._queue.give_up(planned.trial_id, name):
                self._end(planned, attempt, End.LOST, reason)
        for planned in self._queue.pinned_to(name):
            self._end(planned, None, End.LOST, reason)
        return False

    def _tell(
        self,
        happening: Happening,
        attempt: Attempt,
        planned: PlannedTrial,
        *,
        progress: Progress | None = None,
        end: End | None = None,
        reason: str | None = None,
    ) -> None:
        self.on_event(
            FleetEvent(
                happening=happening,
                worker=attempt.worker,
                trial_id=planned.trial_id,
                attempt=attempt.number,
                progress=progress,
                end=end,
                reason=reason,
            )
        )


def _progress(document: dict[str, object]) -> Progress | None:
    """What a trial says of itself, or None when it is not what we know (another version's): a view, never a verdict."""
    try:
        return from_json(Progress, document)
    except SchemaError:
        return None
