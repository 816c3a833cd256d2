"""How long a host is asked again, and what ends it, on a clock that only waiting moves."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import pytest

from remote.fleet.patience import Limits, Reach, Stopped, WorkerBusy, WorkerLost
from remote.hosts.host import HostError, HostUnreachable
from remote.hosts.local import LocalHost
from remote.jobs.job import HostBusy

LIMITS = Limits(lost_after_sec=10.0, give_up_after_sec=100.0)


class Clock(threading.Event):
    """Stands for `stopping`: waiting on it moves the time, and takes none."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        Clock.now += timeout or 0.0
        return self.is_set()


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Reach:
    monkeypatch.setattr("remote.fleet.patience.time.monotonic", lambda: Clock.now)
    Clock.now = 0.0
    made = Reach(LIMITS, busy_for_sec=300.0)
    made.stopping = Clock()
    return made


class Holders:
    """An agent whose slot is held by these, one after the other, each for `each_sec`; an error is raised instead."""

    def __init__(self, holders: Iterable[str | Exception | None], each_sec: float) -> None:
        self.holders, self.each_sec = list(holders), each_sec
        self.host = LocalHost(name="worker-1", workdir="/w")

    def line(self, verb: str, arguments: dict[str, Any], **_: Any) -> dict[str, Any]:
        assert (verb, arguments) == ("holder", {"slot": "/w/slot"})
        now = self.holders[min(int(Clock.now / self.each_sec), len(self.holders) - 1)]
        if isinstance(now, Exception):
            raise now
        return {"holder": now}


def busy() -> WorkerBusy:
    return WorkerBusy("worker-1: busy with /w/runs/theirs/a.1 (for 10 s)")


def test_silence_is_borne_for_as_long_as_the_limit_and_no_longer(reach: Reach) -> None:
    def ask() -> None:
        raise HostUnreachable("worker-1: nothing")

    with pytest.raises(WorkerLost, match=r"worker-1: nothing \(for 1\d s\)") as caught:
        reach.ask("worker-1", ask)
    assert not isinstance(caught.value, WorkerBusy)
    assert Clock.now < 20


def test_a_sign_of_life_in_between_begins_the_silence_anew(reach: Reach) -> None:
    def ask() -> str:
        if Clock.now > 50:
            return "done"
        reach.heard("worker-1")
        raise HostUnreachable("worker-1: the stream broke")

    assert reach.ask("worker-1", ask) == "done"


def test_a_host_at_another_job_is_busy_and_not_lost(reach: Reach) -> None:
    def ask() -> None:
        raise HostBusy("worker-1", "/w/runs/theirs/a.1")

    with pytest.raises(WorkerBusy, match=r"busy with /w/runs/theirs/a\.1"):
        reach.ask("worker-1", ask)


def test_a_host_that_cannot_do_what_every_host_can_is_lost_at_once(reach: Reach) -> None:
    def ask() -> None:
        raise HostError("worker-1: no space left on device")

    with pytest.raises(WorkerLost, match="no space left"):
        reach.ask("worker-1", ask)
    assert Clock.now == 0


def test_whoever_asks_is_stopped_while_waiting(reach: Reach) -> None:
    def ask() -> None:
        reach.stopping.set()
        raise HostUnreachable("worker-1: nothing")

    with pytest.raises(Stopped):
        reach.ask("worker-1", ask)


def test_a_lost_host_that_answers_is_back_whatever_it_is_at(reach: Reach) -> None:
    agent = Holders([HostUnreachable("nothing"), "/w/runs/r1/ours.1"], each_sec=50.0)
    assert reach.await_return(agent, WorkerLost("silent"), lambda: True) is None
    assert 50 <= Clock.now < 60


def test_a_lost_host_is_given_up_when_its_time_has_passed_also_in_pieces(reach: Reach) -> None:
    answers_and_fails = Holders([None], each_sec=1.0)
    for _ in range(4):  # it answers, and cannot start anything: each time it is lost anew
        assert reach.await_return(answers_and_fails, WorkerLost("no disk"), lambda: True) is None
        Clock.now += 30
    reason = reach.await_return(answers_and_fails, WorkerLost("no disk"), lambda: True)
    assert reason == "worker-1 did not come back within 100 s: no disk"


def test_a_busy_host_is_waited_for_through_all_trials_of_another_run(reach: Reach) -> None:
    agent = Holders([*(f"/w/runs/theirs/{number}.1" for number in range(20)), None], each_sec=250.0)
    assert reach.await_return(agent, busy(), lambda: True) is None
    assert 5000 <= Clock.now < 5010


def test_one_job_that_holds_a_host_for_longer_than_a_trial_may_last_ends_the_wait(reach: Reach) -> None:
    reason = reach.await_return(Holders(["/w/runs/theirs/a.1"], each_sec=1.0), busy(), lambda: True)
    assert reason == "worker-1 was not free within 300 s: worker-1: busy with /w/runs/theirs/a.1 (for 10 s)"


def test_nobody_is_waited_for_once_nothing_is_left_to_do(reach: Reach) -> None:
    assert reach.await_return(Holders(["/w/runs/theirs/a.1"], 1.0), busy(), lambda: Clock.now < 20) is not None
    assert Clock.now < 30
