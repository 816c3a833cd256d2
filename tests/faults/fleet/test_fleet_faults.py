"""Faults of a run: trials that fail in every way, hosts that are lost and return, a deleted results folder."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from remote.fleet.events import EventType
from remote.fleet.ledger import LedgerError
from remote.hosts.command import Command
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import QUICK_LIMITS, CuttableHost, LocalFleet, wait_for


def test_a_worker_with_a_full_disk_is_lost_once_and_named_as_the_reason(local: LocalFleet, small_disk: Path) -> None:
    local.plan("fine 1", workers=1)
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
    "killed": ("LOST", 2, "killed by SIGKILL"),
    "preempted-once": ("SUCCEEDED", 2, None),
    "torn-result": ("LOST", 2, "result.json: "),
}


def test_only_transient_failures_are_retried(local: LocalFleet) -> None:
    local.plan(*ENDS)
    local.fleet(local.hosts(2)).run()
    statuses, reasons = local.statuses(), local.reasons()
    for name, (end, attempts, token) in ENDS.items():
        assert statuses[name] == end
        assert len(local.bench_log_lines("started", name)) == attempts, name
        assert reasons[name] is None if token is None else token in (reasons[name] or "")


def test_the_trials_of_a_worker_with_a_faulty_gpu_are_lost_with_that_cause(local: LocalFleet) -> None:
    local.plan("faulty-once", "fine 1", "fine 2")
    local.fleet(local.hosts(2)).run()
    assert local.statuses() == {"faulty-once": "LOST", "fine-1": "SUCCEEDED", "fine-2": "LOST"}
    lost = [reason for trial_id, reason in local.reasons().items() if trial_id != "fine-1"]
    assert all("XID 79" in (reason or "") for reason in lost)
    (event,) = local.events_of(EventType.WORKER_FAULTY)
    assert (event.worker, event.reason) == ("worker-1", "GPU 0: XID 79")


def test_an_invalid_progress_file_does_not_disturb_the_run(local: LocalFleet) -> None:
    local.plan("slow", workers=1)

    def launch(*arguments: object) -> Command:
        folder = str(arguments[3])
        return Command(argv=("sh", "-c", f"mkdir -p {folder}/out; echo 17 > {folder}/out/progress.json; kill -9 $$"))

    local.fleet(local.hosts(1), launch=launch).run()
    assert local.statuses() == {"slow": "LOST"}


# --- lost hosts -------------------------------------------------------------------------------------------------------


def test_the_trial_of_a_lost_worker_goes_on_when_it_is_back(local: LocalFleet) -> None:
    local.plan("slow", "fine")
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    with local.running(local.fleet(wires)):
        wait_for(lambda: local.events_of(EventType.PROGRESS, "worker-1"), "its progress")
        wires[0].plugged = False
        wait_for(lambda: local.events_of(EventType.WORKER_LOST), "its loss noticed")
        local.release_slow_trials()
        wait_for(lambda: local.bench_log_lines("succeeded", "slow"), "its success, unseen")
        wires[0].plugged = True
    assert set(local.statuses().values()) == {"SUCCEEDED"}
    assert local.winner("slow") == (1, "worker-1")
    assert len(local.bench_log_lines("started")) == 2


def test_the_trials_of_a_worker_that_is_given_up_are_lost_and_no_others(local: LocalFleet) -> None:
    local.plan("fine 1", "fine 2", "fine 3")
    host = CuttableHost(host=local.host("worker-1"), plugged=False)
    limits = replace(QUICK_LIMITS, lost_after_sec=0.1, reconnect_timeout_sec=0.2)
    local.fleet([host, local.host("worker-2")], limits=limits).run()
    assert local.statuses() == {"fine-1": "LOST", "fine-2": "SUCCEEDED", "fine-3": "LOST"}
    assert "within 0.2 s" in (local.reasons()["fine-3"] or "")
    assert "unplugged" in (local.reasons()["fine-3"] or "")


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
