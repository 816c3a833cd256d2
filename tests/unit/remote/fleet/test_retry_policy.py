"""How long a host is asked again, and what ends it, on a clock that only waiting moves."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest

from remote.cluster.errors import KubectlUnusable
from remote.fleet.retry_policy import (
    CredentialsRejected,
    FleetStopped,
    LoginTimeout,
    RetryLimits,
    RetryPolicy,
    WorkerBusy,
    WorkerLost,
    WorkerUnusable,
)
from remote.hosts.host import HostError, HostUnreachable, PermissionDenied
from remote.hosts.local import LocalHost
from remote.jobs.job import HostBusy, Job, JobState, JobStatus

LIMITS = RetryLimits(lost_after_sec=10.0, give_up_after_sec=100.0, log_in_within_sec=50_000.0)


class Clock(threading.Event):
    """Stands for `stopping`: waiting on it moves the time, and takes none."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        Clock.now += timeout or 0.0
        return self.is_set()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> RetryPolicy:
    monkeypatch.setattr("remote.fleet.retry_policy.time.monotonic", lambda: Clock.now)
    Clock.now = 0.0
    made = RetryPolicy(LIMITS, busy_for_sec=300.0)
    made.stopping = Clock()
    return made


class Holders:
    """An agent whose slot is held by these, one after the other, each for `each_sec`; an error is raised instead."""

    def __init__(self, holders: Iterable[str | Exception | None], each_sec: float) -> None:
        self.holders, self.each_sec, self.full_until = list(holders), each_sec, 0.0
        self.host = LocalHost(name="worker-1", workdir="/w")

    def holder(self, slot: str) -> str | None:
        assert slot == "/w/slot"
        now = self.holders[min(int(Clock.now / self.each_sec), len(self.holders) - 1)]
        if isinstance(now, Exception):
            raise now
        return now

    def check_room(self) -> None:
        if Clock.now < self.full_until:
            raise HostError("worker-1: No space left on device")


def busy() -> WorkerBusy:
    return WorkerBusy("worker-1: busy with /w/runs/theirs/a.1 (for 10 s)")


def refused() -> PermissionDenied:
    return PermissionDenied("worker-1: getting credentials: exec: failed; log in again")


@pytest.mark.parametrize(
    ("error", "kind", "words", "asked_for_sec"),
    [
        (HostUnreachable("worker-1: nothing"), WorkerLost, r"worker-1: nothing \(for 1\d s\)", 10.5),
        (HostBusy("worker-1", "/w/runs/theirs/a.1"), WorkerBusy, r"busy with /w/runs/theirs/a\.1", 10.5),
        (HostError("worker-1: no space left on device"), WorkerUnusable, "no space left", 0),
        # Nothing that the operator can renew helps, and other pods may have it.
        (
            KubectlUnusable('worker-1: "python3": executable file not found in $PATH'),
            WorkerUnusable,
            "executable file not found",
            0,
        ),
        (refused(), CredentialsRejected, "log in again", 0),
    ],
)
def test_a_host_that_is_silent_or_busy_is_asked_for_a_while_and_one_that_cannot_be_used_is_left_at_once(
    patience: RetryPolicy, error: Exception, kind: type[Exception], words: str, asked_for_sec: float
) -> None:
    def ask() -> None:
        raise error

    with pytest.raises(kind, match=words) as caught:
        patience.ask("worker-1", ask)
    assert type(caught.value) is kind
    assert Clock.now == asked_for_sec


def test_a_sign_of_life_in_between_begins_the_silence_anew(patience: RetryPolicy) -> None:
    def ask() -> str:
        if Clock.now > 50:
            return "done"
        patience.heard("worker-1")
        raise HostUnreachable("worker-1: the stream broke")

    assert patience.ask("worker-1", ask) == "done"


def test_whoever_asks_is_stopped_while_waiting(patience: RetryPolicy) -> None:
    def ask() -> None:
        patience.stopping.set()
        raise HostUnreachable("worker-1: nothing")

    with pytest.raises(FleetStopped):
        patience.ask("worker-1", ask)


def test_a_lost_host_that_answers_is_back_whatever_it_is_at(patience: RetryPolicy) -> None:
    agent = Holders([HostUnreachable("nothing"), "/w/runs/r1/ours.1"], each_sec=50.0)
    assert patience.await_return(agent, WorkerLost("silent"), lambda: True) is None
    assert 50 <= Clock.now < 60


def test_a_lost_host_is_given_up_when_its_time_has_passed_also_in_pieces(patience: RetryPolicy) -> None:
    answers_and_fails = Holders([None], each_sec=1.0)
    for _ in range(4):  # it answers, and cannot start anything: each time it is lost anew
        assert patience.await_return(answers_and_fails, WorkerLost("no disk"), lambda: True) is None
        Clock.now += 30
    reason = patience.await_return(answers_and_fails, WorkerLost("no disk"), lambda: True)
    assert reason == "worker-1 did not come back within 100 s: no disk"


def test_a_host_that_cannot_write_is_back_when_it_can_and_not_when_it_answers(patience: RetryPolicy) -> None:
    agent = Holders([None], each_sec=1.0)
    agent.full_until = 60.0
    assert patience.await_return(agent, WorkerUnusable("no space left"), lambda: True) is None
    assert 60 <= Clock.now < 70
    agent.full_until = 1000.0
    reason = patience.await_return(agent, WorkerUnusable("no space left"), lambda: True)
    assert reason == "worker-1 did not come back within 100 s: no space left"
    assert Clock.now < 120


def test_a_silent_host_whose_disk_its_own_trial_has_filled_is_back_when_it_answers(patience: RetryPolicy) -> None:
    agent = Holders(["/w/runs/r1/ours.1"], each_sec=1.0)
    agent.full_until = 1000.0
    assert patience.await_return(agent, WorkerLost("silent"), lambda: True) is None
    assert Clock.now < 10


def test_a_busy_host_is_waited_for_through_all_trials_of_another_run(patience: RetryPolicy) -> None:
    agent = Holders([*(f"/w/runs/theirs/{number}.1" for number in range(20)), None], each_sec=250.0)
    assert patience.await_return(agent, busy(), lambda: True) is None
    assert 5000 <= Clock.now < 5010


def test_one_job_that_holds_a_host_for_longer_than_a_trial_may_last_ends_the_wait(patience: RetryPolicy) -> None:
    reason = patience.await_return(Holders(["/w/runs/theirs/a.1"], each_sec=1.0), busy(), lambda: True)
    assert reason == "worker-1 was not free within 300 s: worker-1: busy with /w/runs/theirs/a.1 (for 10 s)"


def test_nobody_is_waited_for_once_nothing_is_left_to_do(patience: RetryPolicy) -> None:
    assert patience.await_return(Holders(["/w/runs/theirs/a.1"], 1.0), busy(), lambda: Clock.now < 20) is not None
    assert Clock.now < 30


class Following:
    """Stands for a job: how long each time it was followed, in seconds, and that it runs."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def watch(self, _hear: object, *, for_sec: float = 300.0, **_: object) -> JobStatus:
        self.asked.append(for_sec)
        return JobStatus(state=JobState.RUNNING)


@pytest.mark.parametrize(("workers", "for_sec", "waits_sec"), [(8, 300.0, 0.0), (9, 0.0, 2.25), (64, 0.0, 16.0)])
@pytest.mark.usefixtures("patience")
def test_more_workers_than_streams_are_looked_at_in_turn(workers: int, for_sec: float, waits_sec: float) -> None:
    many = RetryPolicy(replace(LIMITS, streams=8), busy_for_sec=1.0, workers=workers)
    many.stopping, job = Clock(), Following()
    many.watch(cast("Job", job), lambda _: None, "progress.json")
    assert (job.asked, Clock.now) == ([for_sec], waits_sec)


def test_a_night_without_credentials_gives_no_host_up(patience: RetryPolicy) -> None:
    night = Holders([refused(), None], each_sec=30_000.0)
    assert patience.await_return(night, CredentialsRejected("log in again"), lambda: True) is None
    assert 30_000 <= Clock.now < 30_030


def test_credentials_that_expire_while_a_host_is_lost_do_not_count_against_the_host(patience: RetryPolicy) -> None:
    """VPN and token end at the same time: silence counts from when somebody has logged in."""
    agent = Holders([HostUnreachable("nothing"), *[refused()] * 300, HostUnreachable("nothing")], each_sec=50.0)
    reason = patience.await_return(agent, WorkerLost("silent"), lambda: True)
    assert reason == "worker-1 did not come back within 100 s: silent"
    assert Clock.now >= 301 * 50 + 100


def test_an_operator_who_never_logs_in_is_left_with_the_jobs_going_on(patience: RetryPolicy) -> None:
    with pytest.raises(LoginTimeout, match=r"log in again \(refused for 50000 s\)"):
        patience.await_return(Holders([refused()], each_sec=1.0), CredentialsRejected("log in again"), lambda: True)
    assert not patience.stopping.is_set()


def test_a_refused_operator_who_stops_the_run_is_not_waited_for(patience: RetryPolicy) -> None:
    patience.stopping.set()
    assert (
        patience.await_return(Holders([refused()], each_sec=1.0), CredentialsRejected("log in again"), lambda: True)
        is None
    )


@pytest.mark.parametrize("lost", [CredentialsRejected("log in again"), WorkerLost("silent")])
def test_a_fleet_that_another_worker_halts_gives_no_host_up(patience: RetryPolicy, lost: WorkerLost) -> None:
    """It was refused for too long, and closed the queue: what runs here goes on, so it must get no end."""

    def is_worth_it() -> bool:
        patience.abandoning.set()
        return False

    assert patience.await_return(Holders([refused()], each_sec=1.0), lost, is_worth_it) is None
