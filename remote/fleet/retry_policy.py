"""Retry policy of a fleet: how long it retries a host that does not answer, is busy, or refuses the operator.

A host that has not answered for `lost_after_sec` is lost; it is polled until it answers or `reconnect_timeout_sec` has
passed. A host that answers, but works for another run, is not lost: the fleet waits as long as that run's trial may
take. A host that refuses the operator (expired credentials) is not lost either: the fleet waits for
`login_timeout_sec`, and then this process ends while the jobs continue.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from remote.hosts.host_protocol import (
    CommandTimedOut,
    HostError,
    HostUnreachable,
    PermissionDenied,
    collapse_whitespace,
)
from remote.jobs.job import Agent, HostBusy, Job, JobState, JobStatus, slot_path

T = TypeVar("T")
_FIRST_PAUSE_SEC, _MAX_PAUSE_SEC = 0.2, 5.0
_MAX_PARALLEL_POLLS, _POLLS_PER_SEC = 3, 4.0  # with kubectl, a poll takes 0.06 s of one core
_MAX_LOGIN_PAUSE_SEC = 15.0  # polling may last all night; each time, kubectl calls the credential program up to 6 times


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The time limits of a fleet in seconds, and the number of attempts at one trial.

    With `max_attempts` 2 an interrupted trial is requeued once; a resumed run allows as many attempts again.
    Up to `max_streams` jobs are followed over streams; with more workers, all of them are polled in turn.
    """

    lost_after_sec: float = 60.0
    reconnect_timeout_sec: float = 600.0
    login_timeout_sec: float = 86_400.0
    max_attempts: int = 2
    grace_sec: float = 25.0
    poll_sec: float = 1.0
    max_streams: int = 1024


class WorkerLost(Exception):
    """A host that has not answered for too long, or cannot work."""


class WorkerUnusable(WorkerLost):
    """A host that answers but cannot work, as with a full disk or without Python."""


class WorkerBusy(WorkerLost):
    """A working host that another run's job has held for too long."""


class CredentialsRejected(WorkerLost):
    """Expired credentials: every host refuses the operator, so another host would not help a trial."""


class LoginTimeout(Exception):
    """A refusal of the operator for `login_timeout_sec`. It stops no job and ends no trial."""


class FleetStopped(Exception):
    """A stop by the operator during a call to a host."""


class RetryPolicy:
    """The retries of one fleet for all its hosts, each of which is called from its own thread.

    `stopping` is set when the operator stops the fleet; `detaching` when this process must exit while jobs continue.
    One job of another run may hold a host for `busy_timeout_sec`.
    """

    def __init__(self, limits: RetryLimits, *, busy_timeout_sec: float, worker_count: int = 1) -> None:
        self.limits, self._busy_timeout_sec, self._worker_count = limits, busy_timeout_sec, worker_count
        self._poll_slots = threading.BoundedSemaphore(_MAX_PARALLEL_POLLS)
        self.stopping, self.detaching = threading.Event(), threading.Event()
        self._last_reply: dict[str, float] = {}
        self._lost_since: dict[str, float] = {}

    @property
    def is_halted(self) -> bool:
        return self.stopping.is_set() or self.detaching.is_set()

    def watch(self, job: Job, on_status: Callable[[JobStatus], None], progress: str) -> JobStatus:
        """Follow a job over a stream, like `Job.watch`. With more than `limits.max_streams` workers, poll in turn.

        The end of a job is then noticed later, by a quarter of a second for each worker.
        """
        if self._worker_count <= self.limits.max_streams:
            return job.watch(on_status, progress=progress, interval_sec=self.limits.poll_sec)
        with self._poll_slots:
            status = job.watch(on_status, progress=progress, duration_sec=0.0)
        if status.state is JobState.RUNNING:
            self.stopping.wait(self._worker_count / _POLLS_PER_SEC)
        return status

    def record_reply(self, name: str) -> None:
        """Record that a job on this host has reported: the host works."""
        self._last_reply[name] = time.monotonic()
        self._lost_since.pop(name, None)

    def call(self, name: str, query: Callable[[], T]) -> T:
        """Call `query`; retry while the host does not answer, until `lost_after_sec` have passed without an answer.

        A host that answers but cannot work (full disk, no Python) is lost at once: otherwise it would fail trial after
        trial. Raises WorkerLost or a subclass, and FleetStopped.
        """
        self._last_reply[name] = time.monotonic()
        pause_sec = _FIRST_PAUSE_SEC
        while True:
            try:
                return query()
            except (HostUnreachable, CommandTimedOut, HostBusy) as error:
                silent_sec = time.monotonic() - self._last_reply[name]
                if silent_sec >= self.limits.lost_after_sec:
                    error_class = WorkerBusy if isinstance(error, HostBusy) else WorkerLost
                    raise error_class(f"{collapse_whitespace(error)} (for {silent_sec:.0f} s)") from error
            except PermissionDenied as error:
                raise CredentialsRejected(collapse_whitespace(error)) from error
            except HostError as error:
                raise WorkerUnusable(collapse_whitespace(error)) from error
            if self.stopping.wait(min(pause_sec, self.limits.lost_after_sec / 4)) or self.detaching.is_set():
                raise FleetStopped
            pause_sec = min(pause_sec * 2, _MAX_PAUSE_SEC)

    def await_return(
        self, agent: Agent, lost: WorkerLost, on_silence: Callable[[], object] = lambda: None
    ) -> str | None:
        """Poll a lost host. Returns None if it is back or this fleet is halted; otherwise why it is given up.

        `on_silence` is called after each poll without answer.
        """
        name, slot = agent.host.name, slot_path(agent.host)
        if isinstance(lost, CredentialsRejected) and self._await_login(agent, str(lost)):
            self._lost_since.pop(name, None)
            return None
        since = self._lost_since.setdefault(name, time.monotonic())
        timeout_sec, holder = self.limits.reconnect_timeout_sec, None
        pause_sec = min(_MAX_PAUSE_SEC, self.limits.lost_after_sec / 4)
        while time.monotonic() < since + timeout_sec:
            if self.stopping.wait(pause_sec) or self.detaching.is_set():
                return None  # back to the worker's loop, which cancels its jobs
            try:
                current_holder = agent.holder(slot)
                if isinstance(lost, WorkerUnusable):
                    agent.check_disk_space()  # otherwise it would be back at once, and lost again with its next trial
                if not isinstance(lost, WorkerBusy):
                    return None
            except PermissionDenied as error:
                self._await_login(agent, collapse_whitespace(error))
                since = self._lost_since[name] = time.monotonic()  # the host is not charged for that time
                continue
            except HostError:
                on_silence()
                continue
            if current_holder is None:
                self._lost_since.pop(name, None)
                return None
            if current_holder != holder:  # the other run continues; each of its trials has its own timeout
                since, timeout_sec, holder = time.monotonic(), self._busy_timeout_sec, current_holder
        if self.is_halted:  # by another worker's thread: do not end this worker's trials
            return None
        problem = "was not free" if isinstance(lost, WorkerBusy) else "did not come back"
        return f"{name} {problem} within {timeout_sec:g} s: {lost}"

    def _await_login(self, agent: Agent, refusal: str) -> bool:
        """Poll until the operator is no longer refused. Returns True if the host answers.

        Returns False if it does not, or this fleet is halted. Raises LoginTimeout.
        """
        started_at, pause_sec = time.monotonic(), min(_MAX_PAUSE_SEC, self.limits.lost_after_sec / 4)
        while not self.stopping.wait(pause_sec) and not self.detaching.is_set():
            try:
                agent.holder(slot_path(agent.host))
            except PermissionDenied as error:
                refusal = collapse_whitespace(error)
            except HostError:
                return False
            else:
                return True
            if time.monotonic() >= started_at + self.limits.login_timeout_sec:
                raise LoginTimeout(f"{refusal} (refused for {self.limits.login_timeout_sec:g} s)")
            pause_sec = min(1.5 * pause_sec, _MAX_LOGIN_PAUSE_SEC)
        return False
