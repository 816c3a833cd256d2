"""Faults of a run: trials that fail in every way, hosts that are lost and return, a deleted results folder."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.result import TrialResult
from remote.fleet import worker
from remote.fleet.ledger import LedgerError
from remote.fleet.queue import EventType, FleetEvent
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import QUICK_LIMITS, CuttableHost, LocalFleet, wait_for

# --- assignment -------------------------------------------------------------------------------------------------------


def test_a_busy_worker_does_not_keep_trials_from_an_idle_one(local: LocalFleet) -> None:
    local.plan("slow 0", *[f"fine {number}" for number in range(1, 6)])
    ended: list[str | None] = []

    def on_event(event: FleetEvent) -> None:
        if event.kind is EventType.ENDED:
            ended.append(event.trial_id)
            if len(ended) == 5:
                local.release_slow_trials()

    local.fleet(local.hosts(2), on_event=on_event).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    assert ended[-1] == "slow-0"
    assert len({local.winner(f"fine-{number}")[1] for number in range(1, 6)} | {local.winner("slow-0")[1]}) == 2
    assert all(local.winner(f"fine-{number}")[1] != local.winner("slow-0")[1] for number in range(1, 6))


def test_progress_is_read_from_the_trials_file(local: LocalFleet) -> None:
    local.plan("slow 1")
    events: list[FleetEvent] = []

    def on_event(event: FleetEvent) -> None:
        events.append(event)
        if event.progress is not None:
            local.release_slow_trials()

    local.fleet(local.hosts(1), on_event=on_event).run()
    kinds = [event.kind for event in events]
    assert kinds[0] is EventType.STARTED
    assert kinds[-1] is EventType.ENDED
    assert next(event.progress.samples_per_sec for event in events if event.progress is not None) == 1.5


def test_a_worker_with_a_full_disk_is_lost_once_and_named_as_the_reason(local: LocalFleet, small_disk: Path) -> None:
    local.plan("fine 1", pin="worker-1")
    local_fleet.fill_disk(small_disk)
    diagnoses = iter(("no image", "no image", "no disk"))
    local.fleet(
        [local.host(workdir=small_disk)],
        limits=replace(QUICK_LIMITS, reconnect_timeout_sec=2.0),
        diagnose=lambda: next(diagnoses, None),
    ).run()
    assert local.statuses() == {"fine-1": "LOST"}
    assert [event.reason for event in local.events_of(EventType.WORKER_DIAGNOSED)] == ["no image", "no disk"]
    assert len(local.events_of(EventType.WORKER_LOST)) == 1
    assert local.events_of(EventType.WORKER_BACK) == []
    reason = local.reasons()["fine-1"] or ""
    assert reason.startswith("worker-1 ")
    assert " within 2 s: " in reason
    assert "No space left on device" in reason


# --- trials that go wrong ---------------------------------------------------------------------------------------------


ENDS: dict[str, tuple[str, int, str | None]] = {
    "fine": ("SUCCEEDED", 1, None),
    "crash": ("FAILED", 1, "exit 1: RuntimeError: "),
    "exit-2": ("FAILED", 1, "no/model: "),
    "oom-result": ("OUT_OF_MEMORY", 1, "CUDA out of memory in phase measure"),
    "wrong-result": ("FAILED", 1, "('another-trial')"),
    "killed": ("LOST", 2, "killed by SIGKILL"),
    "killed-once": ("SUCCEEDED", 2, None),
    "preempted-once": ("SUCCEEDED", 2, None),
    "torn-result": ("LOST", 2, "result.json: "),
    "says-done-leaves-nothing": ("LOST", 2, "exit 0"),
}


def test_only_transient_failures_are_retried(local: LocalFleet) -> None:
    local.plan(*ENDS, workers=1)
    local.fleet(local.hosts(1)).run()
    statuses, reasons = local.statuses(), local.reasons()
    for name, (end, attempts, token) in ENDS.items():
        assert statuses[name] == end
        assert len(local.bench_log_lines("started", name)) == attempts, name
        assert reasons[name] is None if token is None else token in (reasons[name] or "")


def test_a_trial_of_a_faulty_gpu_is_retried_on_another_one(local: LocalFleet) -> None:
    local.plan("faulty-once", "fine 1", "fine 2", "fine 3")
    local.fleet(local.hosts(2)).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    first, second = (line.split()[-1] for line in local.bench_log_lines("started faulty-once"))
    assert first != second
    started = [line.split()[-1] for line in local.bench_log_lines("started")]
    assert started.count(first) == 1, "it takes no trials after the fault"
    (event,) = local.events_of(EventType.WORKER_FAULTY)
    assert (event.worker, event.reason) == (first, "GPU 0: XID 79")


def test_trials_that_only_a_worker_with_a_faulty_gpu_may_run_are_lost_with_that_cause(local: LocalFleet) -> None:
    local.plan("faulty-once", "fine 1", pin="worker-1")
    local.fleet(local.hosts(1)).run()
    assert local.statuses() == {"faulty-once": "LOST", "fine-1": "LOST"}
    assert all("XID 79" in (reason or "") for reason in local.reasons().values())


def test_a_trial_that_ignores_its_deadline_is_stopped_from_outside(
    local: LocalFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "DEADLINE_MARGIN_SEC", 0.1)
    local.plan("hang", workers=1, deadline_sec=5.0)  # on a busy machine, its first step may take seconds
    local.fleet(local.hosts(1), limits=replace(QUICK_LIMITS, grace_sec=0.2)).run()
    assert local.statuses() == {"hang": "TIMED_OUT"}
    assert str(local.reasons()["hang"]).endswith(" in phase measure, step 1 of 2")


def test_an_invalid_progress_file_does_not_disturb_the_run(local: LocalFleet) -> None:
    local.plan("slow", workers=1)

    def launch(*arguments: object) -> Command:
        folder = str(arguments[3])
        return Command(argv=("sh", "-c", f"mkdir -p {folder}/out; echo 17 > {folder}/out/progress.json; kill -9 $$"))

    local.fleet(local.hosts(1), launch=launch).run()
    assert local.statuses() == {"slow": "LOST"}


# --- lost hosts -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def requeued_trial(local: LocalFleet) -> Iterator[tuple[CuttableHost, CuttableHost]]:
    """Run a trial that has started on a worker that is now lost, and on another one; it must succeed."""
    local.plan("slow", workers=2)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    with local.running(local.fleet(wires)):
        wait_for(lambda: local.bench_log_lines("started"), "the first start")
        lost, other = wires if wires[0].name in local.bench_log_lines("started")[0] else reversed(wires)
        lost.plugged = False
        wait_for(lambda: len(local.bench_log_lines("started")) == 2, "a start on the other worker")
        yield lost, other
    assert local.statuses() == {"slow": "SUCCEEDED"}


def result_of(wire: CuttableHost, attempt: int) -> Path:
    return Path(wire.workdir, "runs", "r1", f"slow.{attempt}", "out", "result.json")


def test_a_lost_workers_trial_goes_to_another(local: LocalFleet) -> None:
    with requeued_trial(local) as (_, other):
        local.release_slow_trials()
    assert local.winner("slow") == (2, other.name)


def test_a_worker_that_comes_back_too_late_is_cancelled(local: LocalFleet) -> None:
    with requeued_trial(local) as (lost, _):
        lost.plugged = True
        wait_for(result_of(lost, 1).exists, "the first attempt's end")
        assert TrialResult.read(result_of(lost, 1)).status.value == "CANCELLED"
        local.release_slow_trials()
    assert local.winner("slow")[0] == 2
    assert len(local.bench_log_lines("succeeded")) == 1


def test_a_worker_that_comes_back_with_a_result_wins_and_the_copy_is_cancelled(local: LocalFleet) -> None:
    with requeued_trial(local) as (lost, other):
        local.release_slow_trials(attempt=1)
        wait_for(lambda: local.bench_log_lines("succeeded"), "the first attempt's success")
        lost.plugged = True
    assert local.winner("slow") == (1, lost.name)
    assert TrialResult.read(result_of(other, 2)).status.value == "CANCELLED"


def test_a_requeued_trial_is_not_lost_when_its_first_worker_is_given_up(local: LocalFleet) -> None:
    local.plan("slow 1", "slow 2", workers=2)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    with local.running(local.fleet(wires, limits=replace(QUICK_LIMITS, reconnect_timeout_sec=0.3))) as fleet:
        wait_for(lambda: len(local.bench_log_lines("started")) == 2, "both starts")
        wires[0].plugged = False
        threads = {thread.name: thread for thread in threading.enumerate()}
        wait_for(lambda: not threads[wires[0].name].is_alive(), "the first worker given up")
        assert fleet.ledger.open_trials() == ["slow-1", "slow-2"]
        local.release_slow_trials()
    assert set(local.statuses().values()) == {"SUCCEEDED"}


def test_a_pinned_trial_waits_for_its_own_worker(local: LocalFleet) -> None:
    local.plan("fine", workers=2, replicate=True)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    wires[1].plugged = False

    def on_event(event: FleetEvent) -> None:
        if event.kind is EventType.WORKER_LOST:
            wires[1].plugged = True

    local.fleet(wires, on_event=on_event).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    assert local.winner("fine.worker-2")[1] == "worker-2"


def test_a_pinned_trial_is_lost_when_its_worker_is_given_up(local: LocalFleet) -> None:
    local.plan("fine", workers=2, replicate=True)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    wires[1].plugged = False
    local.fleet(wires, limits=replace(QUICK_LIMITS, lost_after_sec=0.1, reconnect_timeout_sec=0.2)).run()
    assert local.statuses() == {"fine.worker-1": "SUCCEEDED", "fine.worker-2": "LOST"}
    assert "within 0.2 s" in (local.reasons()["fine.worker-2"] or "")
    assert "unplugged" in (local.reasons()["fine.worker-2"] or "")


@pytest.mark.parametrize("broken", ["python", "workdir"])
def test_a_broken_host_does_not_fail_the_queued_trials(local: LocalFleet, broken: str) -> None:
    local.plan(*[f"fine {number}" for number in range(3)])
    broken_host = local.host("worker-1")
    if broken == "python":
        broken_host = LocalHost(name="worker-1", workdir=broken_host.workdir, python=("/no/such/python",))
    else:
        Path(broken_host.workdir).parent.mkdir()
        Path(broken_host.workdir).write_text("a file where the folder should be")
    local.fleet([broken_host, local.host("worker-2")]).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    assert {line.split()[3] for line in local.bench_log_lines("started")} == {"worker-2"}


def test_a_job_with_a_killed_supervisor_is_retried(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    with local.running(local.fleet(local.hosts(1))):
        wait_for(lambda: local.bench_log_lines("started"), "the first start")
        folder = Path(local.host().workdir, "runs", "r1", "slow.1")
        os.kill(local_fleet.supervisor_pid(folder), signal.SIGKILL)
        wait_for(lambda: len(local.bench_log_lines("started")) == 2, "another start")
        local.release_slow_trials()
    assert local.statuses() == {"slow": "SUCCEEDED"}
    assert local.winner("slow")[0] == 2


# --- the operator's own machine ---------------------------------------------------------------------------------------


def test_a_deleted_results_folder_ends_the_run_and_the_job_continues(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    with pytest.raises((OSError, LedgerError)), local.running(local.fleet(local.hosts(1))):  # noqa: PT012 - one run
        wait_for(lambda: local.bench_log_lines("started"), "the start")
        local.run_folder.rename(local.folder / "elsewhere")
        local.release_slow_trials()
    assert local.bench_log_lines("succeeded")
    assert not local.run_folder.exists()
    (local.folder / "elsewhere").rename(local.run_folder)
    local.fleet(local.hosts(1)).run()
    assert local.statuses() == {"slow": "SUCCEEDED"}
    assert len(local.bench_log_lines("started")) == 1
