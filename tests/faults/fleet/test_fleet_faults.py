"""What may befall a run: trials that fail in every way, hosts that go and come back, a results folder that is gone."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.result import TrialResult
from remote.fleet.events import EventType, FleetEvent
from remote.fleet.ledger import LedgerError
from remote.fleet.retry_policy import RetryLimits
from remote.hosts.command import Command
from remote.hosts.host import HostUnreachable
from remote.hosts.local import LocalHost
from remote.jobs.job import JobState
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import QUICK, CuttableHost, LocalFleet, wait_for

# --- handing out ------------------------------------------------------------------------------------------------------


def test_a_busy_worker_does_not_keep_trials_from_an_idle_one(local: LocalFleet) -> None:
    local.plan("slow 0", *[f"fine {number}" for number in range(1, 6)])
    ended: list[str | None] = []

    def hear(event: FleetEvent) -> None:
        if event.happening is EventType.ENDED:
            ended.append(event.trial_id)
            if len(ended) == 5:
                local.say_go()

    local.fleet(local.hosts(2), on_event=hear).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}
    assert ended[-1] == "slow-0"
    assert len({local.winner(f"fine-{number}")[1] for number in range(1, 6)} | {local.winner("slow-0")[1]}) == 2
    assert all(local.winner(f"fine-{number}")[1] != local.winner("slow-0")[1] for number in range(1, 6))


def test_replicate_runs_every_trial_on_every_worker_once(local: LocalFleet) -> None:
    local.plan("fine 1", "fine 2", workers=3, replicate=True)
    local.fleet(local.hosts(3)).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}
    ran = sorted(line.split()[1] + "@" + line.split()[3] for line in local.noted("started"))
    assert ran == [f"fine-{number}.worker-{worker}@worker-{worker}" for number in (1, 2) for worker in (1, 2, 3)]


def test_progress_is_told_from_what_the_trial_writes(local: LocalFleet) -> None:
    local.plan("slow 1")
    heard: list[FleetEvent] = []

    def hear(event: FleetEvent) -> None:
        heard.append(event)
        if event.progress is not None:
            local.say_go()

    local.fleet(local.hosts(1), on_event=hear).run()
    told = [event.happening for event in heard]
    assert told[0] is EventType.STARTED
    assert told[-1] is EventType.ENDED
    assert next(event.progress.samples_per_sec for event in heard if event.progress is not None) == 1.5


def test_a_worker_whose_disk_is_full_is_lost_once_and_its_trial_ends_with_that_word(
    local: LocalFleet, small_disk: Path
) -> None:
    local.plan("fine 1", pin="worker-1")
    local_fleet.fill(small_disk)
    local.fleet([local.host(workdir=small_disk)], limits=replace(QUICK, give_up_after_sec=2.0)).run()
    assert local.ends() == {"fine-1": "LOST"}
    assert len(local.heard_of(EventType.WORKER_LOST)) == 1
    assert local.heard_of(EventType.WORKER_BACK) == []
    reason = local.reasons()["fine-1"] or ""
    assert reason.startswith("worker-1 did not come back within 2 s: ")
    assert "No space left on device" in reason


# --- trials that go wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "end", "attempts", "said"),
    [
        ("fine", "SUCCEEDED", 1, None),
        ("crash", "FAILED", 1, "exit 1: RuntimeError: the loss is not finite"),
        ("exit-2", "FAILED", 1, "exit 2: no/model: no such folder"),
        ("oom-result", "OUT_OF_MEMORY", 1, "CUDA out of memory in phase measure"),
        ("wrong-result", "FAILED", 1, "its result is of another trial ('somebody-else')"),
        ("killed", "LOST", 2, "the kernel does that when the worker's memory is used up"),
        ("killed-once", "SUCCEEDED", 2, None),
        ("preempted-once", "SUCCEEDED", 2, None),
        ("torn-result", "LOST", 2, "result.json: not complete JSON; the file is truncated or damaged"),
        ("says-done-leaves-nothing", "LOST", 2, "exit 0, but it left no result"),
    ],
)
def test_only_what_is_transient_is_tried_again(
    local: LocalFleet, name: str, end: str, attempts: int, said: str | None
) -> None:
    local.plan(name, workers=1)
    local.fleet(local.hosts(1)).run()
    assert local.ends() == {name: end}
    assert len(local.noted("started")) == attempts
    reason = local.reasons()[name]
    assert reason is None if said is None else said in (reason or "")


def test_a_trial_is_started_at_most_max_attempts_times(local: LocalFleet) -> None:
    local.plan("killed", workers=2)
    local.fleet(local.hosts(2), limits=replace(QUICK, max_attempts=4)).run()
    assert local.ends() == {"killed": "LOST"}
    assert len(local.noted("started")) == 4


def test_a_trial_deaf_to_its_deadline_is_stopped_from_outside(local: LocalFleet) -> None:
    local.plan("hang", workers=1, deadline_sec=5.0)  # on a busy machine, its first step may take seconds
    local.fleet(local.hosts(1), limits=replace(QUICK, deadline_margin_sec=0.1, grace_sec=0.2)).run()
    assert local.ends() == {"hang": "TIMED_OUT"}
    assert local.reasons()["hang"] == "stopped from outside at its deadline in phase measure, step 1 of 2"


def test_a_progress_file_that_is_not_ours_does_not_disturb_the_run(local: LocalFleet) -> None:
    local.plan("slow", workers=1)

    def launch(*given: object) -> Command:
        folder = str(given[3])
        return Command(argv=("sh", "-c", f"mkdir -p {folder}/out; echo 17 > {folder}/out/progress.json; kill -9 $$"))

    local.fleet(local.hosts(1), launch=launch).run()
    assert local.ends() == {"slow": "LOST"}


# --- hosts that go ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def handed_on(local: LocalFleet) -> Iterator[tuple[CuttableHost, CuttableHost]]:
    """A trial has begun on a worker that is lost now, and on another one; it has to succeed."""
    local.plan("slow", workers=2)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    with local.running(local.fleet(wires)):
        wait_for(lambda: local.noted("started"), "the first start")
        lost, other = wires if wires[0].name in local.noted("started")[0] else reversed(wires)
        lost.plugged = False
        wait_for(lambda: len(local.noted("started")) == 2, "a start on the other worker")
        yield lost, other
    assert local.ends() == {"slow": "SUCCEEDED"}


def result_of(wire: CuttableHost, attempt: int) -> Path:
    return Path(wire.workdir, "runs", "r1", f"slow.{attempt}", "out", "result.json")


def test_a_lost_workers_trial_goes_to_another(local: LocalFleet) -> None:
    with handed_on(local) as (_, other):
        local.say_go()
    assert local.winner("slow") == (2, other.name)


def test_a_worker_that_comes_back_too_late_is_told_to_stop(local: LocalFleet) -> None:
    with handed_on(local) as (lost, _):
        lost.plugged = True
        wait_for(result_of(lost, 1).exists, "the first attempt's end")
        assert TrialResult.read(result_of(lost, 1)).status.value == "CANCELLED"
        local.say_go()
    assert local.winner("slow")[0] == 2
    assert len(local.noted("succeeded")) == 1


def test_a_worker_that_comes_back_done_wins_and_the_copy_is_stopped(local: LocalFleet) -> None:
    with handed_on(local) as (lost, other):
        local.say_go(attempt=1)
        wait_for(lambda: local.noted("succeeded"), "the first attempt's success")
        lost.plugged = True
    assert local.winner("slow") == (1, lost.name)
    assert TrialResult.read(result_of(other, 2)).status.value == "CANCELLED"


def test_a_trial_handed_on_is_not_lost_because_its_first_worker_is_given_up(local: LocalFleet) -> None:
    local.plan("slow 1", "slow 2", workers=2)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    with local.running(local.fleet(wires, limits=replace(QUICK, give_up_after_sec=0.3))) as fleet:
        wait_for(lambda: len(local.noted("started")) == 2, "both starts")
        wires[0].plugged = False
        threads = {thread.name: thread for thread in threading.enumerate()}
        wait_for(lambda: not threads[wires[0].name].is_alive(), "the first worker given up")
        assert fleet.ledger.open_trials() == ["slow-1", "slow-2"]
        local.say_go()
    assert set(local.ends().values()) == {"SUCCEEDED"}


def test_a_pinned_trial_waits_for_its_own_worker(local: LocalFleet) -> None:
    local.plan("fine", workers=2, replicate=True)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    wires[1].plugged = False

    def hear(event: FleetEvent) -> None:
        if event.happening is EventType.WORKER_LOST:
            wires[1].plugged = True

    local.fleet(wires, on_event=hear).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}
    assert local.winner("fine.worker-2")[1] == "worker-2"


def test_a_pinned_trial_is_lost_when_its_worker_is_given_up(local: LocalFleet) -> None:
    local.plan("fine", workers=2, replicate=True)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    wires[1].plugged = False
    local.fleet(wires, limits=replace(QUICK, lost_after_sec=0.1, give_up_after_sec=0.2)).run()
    assert local.ends() == {"fine.worker-1": "SUCCEEDED", "fine.worker-2": "LOST"}
    assert "worker-2 did not come back within 0.2 s" in (local.reasons()["fine.worker-2"] or "")
    assert "unplugged" in (local.reasons()["fine.worker-2"] or "")


@pytest.mark.parametrize("broken", ["python", "workdir"])
def test_a_broken_host_does_not_eat_the_queue(local: LocalFleet, broken: str) -> None:
    local.plan(*[f"fine {number}" for number in range(3)])
    spoiled = local.host("worker-1")
    if broken == "python":
        spoiled = LocalHost(name="worker-1", workdir=spoiled.workdir, python=("/no/such/python",))
    else:
        Path(spoiled.workdir).parent.mkdir()
        Path(spoiled.workdir).write_text("a file where the folder should be")
    local.fleet([spoiled, local.host("worker-2")]).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}
    assert {line.split()[3] for line in local.noted("started")} == {"worker-2"}


def test_when_no_worker_is_left_every_trial_is_lost_and_says_why(local: LocalFleet) -> None:
    local.plan("fine 1", "fine 2", workers=1)
    spoiled = LocalHost(name="worker-1", workdir=local.host().workdir, python=("/no/such/python",))
    local.fleet([spoiled], limits=replace(QUICK, lost_after_sec=0.1, give_up_after_sec=0.1)).run()
    assert set(local.ends().values()) == {"LOST"}
    assert all(local.reasons().values())


def test_a_job_whose_supervisor_is_killed_is_tried_again(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    with local.running(local.fleet(local.hosts(1))):
        wait_for(lambda: local.noted("started"), "the first start")
        folder = Path(local.host().workdir, "runs", "r1", "slow.1")
        os.kill(local_fleet.supervisor_of(folder), signal.SIGKILL)
        wait_for(lambda: len(local.noted("started")) == 2, "another start")
        local.say_go()
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow")[0] == 2


# --- the operator's own machine ---------------------------------------------------------------------------------------


def test_two_runs_on_one_host_take_turns(local: LocalFleet) -> None:
    """The slot is held by somebody else's job for a while: the trial waits, and nothing is lost."""
    local.plan("fine", workers=1)
    other = local.occupied()
    busy = local.folder / "busy"

    def look(command: Command) -> None:
        if "start" in command.argv:
            busy.touch()

    with local.running(local.fleet([CuttableHost(host=local.host(), before=look)], limits=RetryLimits(every_sec=0.05))):
        wait_for(busy.exists, "the trial's try to start")
        assert other.cancel(grace_sec=1.0).state is JobState.ENDED
    assert local.ends() == {"fine": "SUCCEEDED"}
    assert local.winner("fine")[0] == 1


def test_a_results_folder_that_went_away_ends_the_run_with_the_reason_and_the_job_goes_on(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    with pytest.raises((OSError, LedgerError)), local.running(local.fleet(local.hosts(1))):  # noqa: PT012 - one run
        wait_for(lambda: local.noted("started"), "the start")
        local.run_folder.rename(local.folder / "elsewhere")
        local.say_go()
    assert local.noted("succeeded")
    assert not local.run_folder.exists()
    (local.folder / "elsewhere").rename(local.run_folder)
    local.fleet(local.hosts(1)).run()
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert len(local.noted("started")) == 1


def test_one_unreachable_moment_is_not_told_as_a_loss(local: LocalFleet) -> None:
    local.plan("fine", workers=1)
    failures = iter([True, True])

    def fail_twice(_: Command) -> None:
        if next(failures, False):
            raise HostUnreachable("worker-1: connection refused")

    wire = CuttableHost(host=local.host(), before=fail_twice)
    local.fleet([wire], limits=replace(QUICK, lost_after_sec=30.0)).run()
    assert local.ends() == {"fine": "SUCCEEDED"}
    assert local.heard_of(EventType.WORKER_LOST) == []
