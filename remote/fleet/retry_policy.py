"""A fleet's patience with its hosts: how long one that does not answer, or is busy, is asked again.

A host that has not answered for `lost_after_sec` is lost; it is polled until it answers or `give_up_after_sec` has
passed. A host that answers, but works for another run, is not lost: the fleet waits as long as that run's trial may
take. Nor is any host lost whose operator is refused (expired credentials): the fleet waits for `log_in_within_sec`, and
then this process ends while the jobs go on.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from remote.hosts.host import CommandTimedOut, HostError, HostUnreachable, PermissionDenied, one_line
from remote.jobs.agent import Agent
from remote.jobs.job import HostBusy, Job, JobState, JobStatus, slot_of

T = TypeVar("T")
_FIRST_PAUSE_SEC, _LONGEST_PAUSE_SEC = 0.2, 5.0
_LOOKS_AT_ONCE, _LOOKS_PER_SEC = 3, 4.0  # with kubectl, a look is 0.06 s of one core
_LOGIN_PAUSE_SEC = 15.0  # a night of asking; each time, kubectl calls the credential program up to six times


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The fleet's patience, in seconds, and how often one trial may be started.

    `max_attempts` 2: a trial cut short from outside goes back into the queue once; a resumed run allows as many again.
    `deadline_margin_sec` is added to a trial's own deadline before its job is stopped from outside. `streams`: so many
    jobs are followed over streams; where there are more workers, all of them are looked at in turn.
    """

    lost_after_sec: float = 60.0
    give_up_after_sec: float = 600.0
    log_in_within_sec: float = 86_400.0
    max_attempts: int = 2
    deadline_margin_sec: float = 30.0
    grace_sec: float = 25.0
    every_sec: float = 1.0
    streams: int = 1024


class WorkerLost(Exception):
    """A host has not answered for too long, or cannot do what every host can."""


class WorkerUnusable(WorkerLost):
    """A host answers, but cannot work: its disk is full, its Python is gone."""


class WorkerBusy(WorkerLost):
    """Another run's job has held a host for too long; the host itself answers and is well."""


class CredentialsRejected(WorkerLost):
    """No host lets the operator in (expired credentials): handing a trial to another host does not help."""


class LoginTimeout(Exception):
    """The operator was refused for `log_in_within_sec`. No job was stopped, and no trial ended by that."""


class FleetStopped(Exception):
    """The operator asked to stop while a host was being asked."""


class RetryPolicy:
    """One fleet's patience with all its hosts, each of which is asked from a thread of its own.

    `stopping` is set when the operator wants to end; `abandoning` when this process must exit while jobs go on.
    `busy_for_sec` is how long one job of another run may hold a host; `workers` is how many hosts there are.
    """

    def __init__(self, limits: RetryLimits, *, busy_for_sec: float, workers: int = 1) -> None:
        self.limits, self._busy_for_sec, self._workers = limits, busy_for_sec, workers
        self._looks = threading.BoundedSemaphore(_LOOKS_AT_ONCE)
        self.stopping, self.abandoning = threading.Event(), threading.Event()
        self._last_heard: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}

    @property
    def is_halted(self) -> bool:
        return self.stopping.is_set() or self.abandoning.is_set()

    def watch(self, job: Job, hear: Callable[[JobStatus], None], progress: str) -> JobStatus:
        """Follow a job over a stream, as `Job.watch`; with more workers than `limits.streams`, take a look in turn.

        An end is then noticed later, by a quarter of a second for each worker.
        """
        if self._workers <= self.limits.streams:
            return job.watch(hear, progress=progress, every_sec=self.limits.every_sec)
        with self._looks:
            status = job.watch(hear, progress=progress, for_sec=0.0)
        if status.state is JobState.RUNNING:
            self.stopping.wait(self._workers / _LOOKS_PER_SEC)
        return status

    def heard(self, name: str) -> None:
        """A job on this host has reported: the host is well again."""
        self._last_heard[name] = time.monotonic()
        self._lost_since.pop(name, None)

    def ask(self, name: str, ask: Callable[[], T]) -> T:
        """Call `ask`, again while the host does not answer, until `lost_after_sec` have passed without an answer.

        A host that answers but cannot work (its disk is full, its Python is gone) is lost at once: otherwise it would
        take trial after trial from the queue and fail them all.
        """
        self._last_heard[name] = time.monotonic()
        pause_sec = _FIRST_PAUSE_SEC
        while True:
            try:
                return ask()
            except (HostUnreachable, CommandTimedOut, HostBusy) as error:
                silent_sec = time.monotonic() - self._last_heard[name]
                if silent_sec >= self.limits.lost_after_sec:
                    kind = WorkerBusy if isinstance(error, HostBusy) else WorkerLost
                    raise kind(f"{one_line(error)} (for {silent_sec:.0f} s)") from error
            except PermissionDenied as error:
                raise CredentialsRejected(one_line(error)) from error
            except HostError as error:
                raise WorkerUnusable(one_line(error)) from error
            if self.stopping.wait(min(pause_sec, self.limits.lost_after_sec / 4)) or self.abandoning.is_set():
                raise FleetStopped
            pause_sec = min(pause_sec * 2, _LONGEST_PAUSE_SEC)

    def await_return(self, agent: Agent, lost: WorkerLost, is_worth_it: Callable[[], bool]) -> str | None:
        """Poll a lost host. None when it is back or this fleet is halted; otherwise why it is given up.

        Returns early, with a reason, once `is_worth_it()` no longer holds.
        """
        name, slot = agent.host.name, slot_of(agent.host)
        if isinstance(lost, CredentialsRejected) and self._await_login(agent, str(lost), is_worth_it):
            self._lost_since.pop(name, None)
            return None
        since = self._lost_since.setdefault(name, time.monotonic())
        within_sec, holder = self.limits.give_up_after_sec, None
        pause_sec = min(_LONGEST_PAUSE_SEC, self.limits.lost_after_sec / 4)
        while time.monotonic() < since + within_sec and is_worth_it():
            if self.stopping.wait(pause_sec) or self.abandoning.is_set():
                return None  # to be stopped properly, what it runs has to be cancelled
            try:
                now_holds = agent.holder(slot)
                if isinstance(lost, WorkerUnusable):
                    agent.check_room()  # else it would be back at once, and lost again with its next trial
                if not isinstance(lost, WorkerBusy):
                    return None
            except PermissionDenied as error:
                self._await_login(agent, one_line(error), is_worth_it)
                since = self._lost_since[name] = time.monotonic()  # the time of that is not the host's
                continue
            except HostError:
                continue
            if now_holds is None:
                self._lost_since.pop(name, None)
                return None
            if now_holds != holder:  # the other run goes on, and each of its trials has its own time
                since, within_sec, holder = time.monotonic(), self._busy_for_sec, now_holds
        if self.is_halted:  # by another worker's thread, which also closed the queue: this one's trials get no end
            return None
        word = "was not free" if isinstance(lost, WorkerBusy) else "did not come back"
        return f"{name} {word} within {within_sec:g} s: {lost}"

    def _await_login(self, agent: Agent, refusal: str, is_worth_it: Callable[[], bool]) -> bool:
        """Poll until the operator is no longer refused. True when the host answers; False when it does not, this fleet
        is halted, or nothing is left to do. Raises NotLetIn.
        """
        began, pause_sec = time.monotonic(), min(_LONGEST_PAUSE_SEC, self.limits.lost_after_sec / 4)
        while is_worth_it() and not self.stopping.wait(pause_sec) and not self.abandoning.is_set():
            try:
                agent.holder(slot_of(agent.host))
            except PermissionDenied as error:
                refusal = one_line(error)
            except HostError:
                return False
            else:
                return True
            if time.monotonic() >= began + self.limits.log_in_within_sec:
                raise LoginTimeout(f"{refusal} (refused for {self.limits.log_in_within_sec:g} s)")
            pause_sec = min(1.5 * pause_sec, _LOGIN_PAUSE_SEC)
        return False
