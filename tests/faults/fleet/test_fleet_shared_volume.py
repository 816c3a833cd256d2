"""Workers that share a volume: the result of a lost worker counts, and its trial is not run again."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from remote.fleet.events import EventType
from remote.fleet.fleet import Fleet
from remote.fleet.ledger import Ledger
from remote.fleet.outcome import shared_output_folder, with_shared_output
from remote.hosts.command import Command
from remote.hosts.host_protocol import Host
from tests.support.hosts.local_fleet import (
    QUICK_LIMITS,
    CuttableHost,
    LocalFleet,
    wait_for,
)


class Volume(LocalFleet):
    """Local hosts that share a folder."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        output_folder = shared_output_folder(str(self.shared), "r1", planned.trial_id, attempt)
        command = super().launch(host, planned, attempt, folder)
        return with_shared_output(command, host, output_folder, folder)

    def sharing_fleet(self, wires: list[CuttableHost], *, max_attempts: int = 3, **more: Any) -> Fleet:
        limits = replace(QUICK_LIMITS, max_attempts=max_attempts)
        return self.fleet(wires, limits=limits, shared_folder=str(self.shared), **more)

    def kill_pod(self, wire: CuttableHost) -> None:
        """Delete the worker with everything in it; the volume stays."""
        wire.plugged = False
        self.kill_processes()
        shutil.rmtree(wire.workdir)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Volume]:
    with Volume(tmp_path) as local:
        yield local


@pytest.mark.parametrize(
    ("max_attempts", "is_noticed"), [(3, False), (1, True)], ids=["at once", "its loss noticed, in its last attempt"]
)
def test_a_finished_trial_of_a_replaced_worker_is_not_run_again_by_its_replacement(
    local: Volume, max_attempts: int, is_noticed: bool
) -> None:
    local.plan("success-then-lingers", workers=1)
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    with local.running(local.sharing_fleet([wire], max_attempts=max_attempts)):
        wait_for(lambda: local.bench_log_lines("succeeded"), "the trial is done")
        local.kill_pod(wire)
        if is_noticed:
            wait_for(lambda: local.events_of(EventType.WORKER_LOST), "its worker counts as lost")
        wire.plugged = True
    assert local.statuses() == {"success-then-lingers": "SUCCEEDED"}
    assert local.winner("success-then-lingers") == (1, "worker-1")
    assert len(local.bench_log_lines("started")) == 1


@pytest.mark.parametrize("remaining", [{}, {"result.json": '{"status": "SUCCEEDED"'}], ids=["nothing", "a torn result"])
def test_an_unfinished_trial_of_a_dead_worker_is_run_again_and_writes_elsewhere(
    local: Volume, remaining: dict[str, str]
) -> None:
    local.plan("slow", workers=1)
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    first, second = (local.shared / "r1" / f"slow.{attempt}" for attempt in (1, 2))
    with local.running(local.sharing_fleet([wire])):
        wait_for(lambda: local.bench_log_lines("started"), "the trial has started")
        local.kill_pod(wire)
        for name, text in remaining.items():
            (first / name).write_text(text)
        wire.plugged = True
        local.release_slow_trials(attempt=2)
    assert local.statuses() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, "worker-1")
    assert (second / "result.json").exists()
    assert {path.name: path.read_text() for path in first.glob("result.json")} == remaining


def test_an_ended_attempt_is_not_started_again_on_a_replaced_worker_by_a_new_operator(local: Volume) -> None:
    local.plan("preempted-once", workers=1)
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    (job, spec), output = local.first_attempt(wire.host), local.shared / "r1" / "preempted-once.1"
    job.start(spec)
    wait_for((output / "result.json").exists, "the attempt's result on the volume")
    local.kill_pod(wire)  # with its operator
    wire.plugged = True
    local.sharing_fleet([wire]).run()
    assert local.statuses() == {"preempted-once": "SUCCEEDED"}
    assert local.winner("preempted-once") == (2, "worker-1")
    assert "PREEMPTED" in str(local.ledger_lines("retried")[0]["reason"])
    assert not Path(job.folder).exists()


@pytest.mark.parametrize(("trial_id", "is_shared"), [("oom-once", True), ("faulty-once", False)])
def test_a_reopened_trial_is_run_again_and_its_old_result_does_not_count(
    local: Volume, trial_id: str, is_shared: bool
) -> None:
    local.plan(trial_id, workers=1)
    make_fleet = local.sharing_fleet if is_shared else local.fleet
    make_fleet(local.hosts(1)).run()
    ledger = Ledger(local.run_folder / LEDGER_FILE)
    assert ledger.entries[trial_id].status in (TrialStatus.OUT_OF_MEMORY, TrialStatus.LOST)
    ledger.reopen(trial_id)
    make_fleet(local.hosts(1)).run()
    entry = Ledger(local.run_folder / LEDGER_FILE).entries[trial_id]
    assert (entry.status, [attempt.number for attempt in entry.attempts]) == (TrialStatus.SUCCEEDED, [1, 2])


def test_an_attempt_cancelled_earlier_is_retried_on_a_replaced_worker_by_a_new_operator(local: Volume) -> None:
    local.plan("slow", workers=1)
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    (job, spec), output = local.first_attempt(wire.host), local.shared / "r1" / "slow.1"
    job.start(spec)
    wait_for(lambda: local.bench_log_lines("started"), "the trial has started")
    job.cancel(grace_sec=30.0)
    assert TrialResult.read(output / "result.json").status is TrialStatus.CANCELLED
    local.kill_pod(wire)  # with its operator, who had not recorded the end
    wire.plugged = True
    local.release_slow_trials(attempt=2)
    local.sharing_fleet([wire]).run()
    assert local.statuses() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, "worker-1")


def test_a_missing_volume_is_the_workers_fault_and_not_the_trials(local: Volume) -> None:
    local.plan("fine", workers=1)
    local.shared.write_text("a file where the mount should be")
    local.sharing_fleet([CuttableHost(host=host) for host in local.hosts(1)]).run()
    assert local.statuses() == {"fine": "LOST"}
    assert "shared" in str(local.reasons()["fine"])
    assert not local.bench_log_lines("started")


def test_a_replacement_that_starts_the_same_attempt_again_does_not_run_it_again(local: Volume) -> None:
    local.plan("fine", workers=1)
    job, spec = local.first_attempt(local.host())
    for _ in range(2):
        job.start(spec)
        assert job.watch(lambda _: None, interval_sec=0.05).exit_code == 0
        shutil.rmtree(local.host().workdir)
    assert len(local.bench_log_lines("started")) == 1


def test_a_replacement_does_not_write_where_a_first_copy_may_still_be_writing(local: Volume) -> None:
    local.plan("fine", workers=1)
    job, spec = local.first_attempt(local.host())
    (local.shared / "r1" / "fine.1").mkdir(parents=True)
    job.start(spec)
    assert job.watch(lambda _: None, interval_sec=0.05).exit_code == 127
    assert str(local.shared / "r1" / "fine.1") in job.log_tail()[-1]
    assert not local.bench_log_lines("started")
