"""Retries of a host and what ends them, with a clock that only waiting advances."""

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest

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
from remote.hosts.host_protocol import HostError, HostUnreachable, PermissionDenied
from remote.hosts.local import LocalHost
from remote.hosts.pods.kubectl import PodUnusable
from remote.jobs.job import HostBusy, Job, JobState, JobStatus
from tests.support.faults import Clock

LIMITS = RetryLimits(lost_after_sec=10.0, reconnect_timeout_sec=100.0, login_timeout_sec=50_000.0)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> RetryPolicy:
    monkeypatch.setattr("remote.fleet.retry_policy.time.monotonic", lambda: Clock.now)
    Clock.now = 0.0
    retry_policy = RetryPolicy(LIMITS, busy_timeout_sec=300.0)
    retry_policy.stopping = Clock()
    return retry_policy


class FakeAgent:
    """An agent whose slot has these holders in turn, each for `each_sec`; an error is raised instead."""

    def __init__(self, holders: Iterable[str | Exception | None], each_sec: float) -> None:
        self.holders, self.each_sec, self.full_until = list(holders), each_sec, 0.0
        self.host = LocalHost(name="worker-1", workdir="/w")

    def holder(self, slot: str) -> str | None:
        assert slot == "/w/slot"
        holder = self.holders[min(int(Clock.now / self.each_sec), len(self.holders) - 1)]
        if isinstance(holder, Exception):
            raise holder
        return holder

    def check_disk_space(self) -> None:
        if Clock.now < self.full_until:
            raise HostError("worker-1: No space left on device")


def busy() -> WorkerBusy:
    return WorkerBusy("worker-1: busy with /w/runs/theirs/a.1 (for 10 s)")


def refused() -> PermissionDenied:
    return PermissionDenied("worker-1: getting credentials: exec: failed; log in again")


@pytest.mark.parametrize(
    ("error", "kind", "tokens", "retried_for_sec"),
    [
        (HostUnreachable("worker-1: nothing"), WorkerLost, r"worker-1: nothing \(for 1\d s\)", 10.5),
        (HostBusy("worker-1", "/w/runs/theirs/a.1"), WorkerBusy, r"busy with /w/runs/theirs/a\.1", 10.5),
        (HostError("worker-1: no space left on device"), WorkerUnusable, "no space left", 0),
        # The operator cannot renew anything here, and other pods may work.
        (
            PodUnusable('worker-1: "python3": executable file not found in $PATH'),
            WorkerUnusable,
            "executable file not found",
            0,
        ),
        (refused(), CredentialsRejected, "log in again", 0),
    ],
)
def test_a_silent_or_busy_host_is_retried_and_an_unusable_one_is_lost_at_once(
    policy: RetryPolicy, error: Exception, kind: type[Exception], tokens: str, retried_for_sec: float
) -> None:
    def query() -> None:
        raise error

    with pytest.raises(kind, match=tokens) as caught:
        policy.call("worker-1", query)
    assert type(caught.value) is kind
    assert Clock.now == retried_for_sec


def test_a_reply_in_between_restarts_the_silence(policy: RetryPolicy) -> None:
    def query() -> str:
        if Clock.now > 50:
            return "done"
        policy.record_reply("worker-1")
        raise HostUnreachable("worker-1: the stream broke")

    assert policy.call("worker-1", query) == "done"


def test_a_retry_ends_when_the_fleet_is_stopped(policy: RetryPolicy) -> None:
    def query() -> None:
        policy.stopping.set()
        raise HostUnreachable("worker-1: nothing")

    with pytest.raises(FleetStopped):
        policy.call("worker-1", query)


def test_a_lost_host_that_answers_is_back_in_any_state(policy: RetryPolicy) -> None:
    agent, silent_at = FakeAgent([HostUnreachable("nothing"), "/w/runs/r1/ours.1"], each_sec=50.0), list[float]()
    assert policy.await_return(agent, WorkerLost("silent"), lambda: silent_at.append(Clock.now)) is None
    assert 50 <= Clock.now < 60
    assert len(silent_at) == 19  # each 2.5 s


def test_a_lost_host_is_given_up_after_its_timeout_even_with_interruptions(policy: RetryPolicy) -> None:
    answers_and_fails = FakeAgent([None], each_sec=1.0)
    for _ in range(4):  # it answers but cannot start anything: it is lost again each time
        assert policy.await_return(answers_and_fails, WorkerLost("no disk")) is None
        Clock.now += 30
    reason = policy.await_return(answers_and_fails, WorkerLost("no disk"))
    assert reason == "worker-1 did not come back within 100 s: no disk"


def test_a_host_that_cannot_write_is_back_when_it_can_and_not_when_it_answers(policy: RetryPolicy) -> None:
    agent = FakeAgent([None], each_sec=1.0)
    agent.full_until = 60.0
    assert policy.await_return(agent, WorkerUnusable("no space left")) is None
    assert 60 <= Clock.now < 70
    agent.full_until = 1000.0
    reason = policy.await_return(agent, WorkerUnusable("no space left"))
    assert reason == "worker-1 did not come back within 100 s: no space left"
    assert Clock.now < 120


def test_a_silent_host_whose_disk_its_own_trial_has_filled_is_back_when_it_answers(policy: RetryPolicy) -> None:
    agent = FakeAgent(["/w/runs/r1/ours.1"], each_sec=1.0)
    agent.full_until = 1000.0
    assert policy.await_return(agent, WorkerLost("silent")) is None
    assert Clock.now < 10


def test_a_busy_host_is_waited_for_through_all_trials_of_another_run(policy: RetryPolicy) -> None:
    agent = FakeAgent([*(f"/w/runs/theirs/{number}.1" for number in range(20)), None], each_sec=250.0)
    assert policy.await_return(agent, busy()) is None
    assert 5000 <= Clock.now < 5010


def test_one_job_that_holds_a_host_for_longer_than_a_trial_may_last_ends_the_wait(policy: RetryPolicy) -> None:
    reason = policy.await_return(FakeAgent(["/w/runs/theirs/a.1"], each_sec=1.0), busy())
    assert reason == "worker-1 was not free within 300 s: worker-1: busy with /w/runs/theirs/a.1 (for 10 s)"


class FakeJob:
    """A running job that records how long each call follows it."""

    def __init__(self) -> None:
        self.durations_sec: list[float] = []

    def watch(self, _on_status: object, *, duration_sec: float = 300.0, **_: object) -> JobStatus:
        self.durations_sec.append(duration_sec)
        return JobStatus(state=JobState.RUNNING)


@pytest.mark.parametrize(("workers", "duration_sec", "waits_sec"), [(8, 300.0, 0.0), (9, 0.0, 2.25), (64, 0.0, 16.0)])
@pytest.mark.usefixtures("policy")
def test_more_workers_than_streams_are_polled_in_turn(workers: int, duration_sec: float, waits_sec: float) -> None:
    retry_policy = RetryPolicy(replace(LIMITS, max_streams=8), busy_timeout_sec=1.0, worker_count=workers)
    retry_policy.stopping, job = Clock(), FakeJob()
    retry_policy.watch(cast("Job", job), lambda _: None, "progress.json")
    assert (job.durations_sec, Clock.now) == ([duration_sec], waits_sec)


def test_a_night_without_credentials_loses_no_host(policy: RetryPolicy) -> None:
    agent = FakeAgent([refused(), None], each_sec=30_000.0)
    assert policy.await_return(agent, CredentialsRejected("log in again")) is None
    assert 30_000 <= Clock.now < 30_030


def test_credentials_that_expire_while_a_host_is_lost_do_not_count_against_the_host(policy: RetryPolicy) -> None:
    """VPN and token expire at the same time: the silence counts from the next login."""
    agent = FakeAgent([HostUnreachable("nothing"), *[refused()] * 300, HostUnreachable("nothing")], each_sec=50.0)
    reason = policy.await_return(agent, WorkerLost("silent"))
    assert reason == "worker-1 did not come back within 100 s: silent"
    assert Clock.now >= 301 * 50 + 100


def test_an_operator_who_never_logs_in_leaves_the_jobs_running(policy: RetryPolicy) -> None:
    with pytest.raises(LoginTimeout, match=r"log in again \(refused for 50000 s\)"):
        policy.await_return(FakeAgent([refused()], each_sec=1.0), CredentialsRejected("log in again"))
    assert not policy.stopping.is_set()


@pytest.mark.parametrize("lost", [CredentialsRejected("log in again"), WorkerLost("silent")])
@pytest.mark.parametrize("halt", ["stopping", "detaching"])
def test_a_halted_fleet_loses_no_host(policy: RetryPolicy, lost: WorkerLost, halt: str) -> None:
    """Another worker was refused for too long, or the operator stops the run: no trial may end as lost."""
    getattr(policy, halt).set()
    assert policy.await_return(FakeAgent([refused()], each_sec=1.0), lost) is None
