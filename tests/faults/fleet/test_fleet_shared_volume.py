"""Workers that share a volume: what a dead one left there counts, is not run again, and is no other attempt's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.layout import RESULT_FILE
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.attempt import OUT_FOLDER, TRIAL_FILE
from remote.fleet.fleet import Fleet
from remote.fleet.shared_volume import place_of, sheltered
from remote.hosts.command import Command
from remote.hosts.host import Host
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec
from tests.support.hosts.hostyard import QUICK, Wire, Yard, wait_for


def trial_files(record: RunRecord) -> dict[str, str]:
    return {TRIAL_FILE: record.planned[0].trial.to_text()}


class Volume(Yard):
    """A yard whose hosts share a folder."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        place = place_of(str(self.shared), "r1", planned.trial_id, attempt)
        command = super().launch(host, planned, attempt, folder)
        return sheltered(command, host.python, place, f"{folder}/{OUT_FOLDER}", RESULT_FILE)

    def sharing_fleet(self, wires: list[Wire]) -> Fleet:
        fleet = self.fleet(wires, limits=replace(QUICK, max_attempts=3))
        fleet.shared = str(self.shared)
        return fleet

    def pod_dies(self, wire: Wire) -> None:
        """The worker with everything in it; the volume stays."""
        wire.plugged = False
        self.sweep()
        shutil.rmtree(wire.workdir)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Volume]:
    with Volume(tmp_path) as yard:
        yield yard


def test_a_finished_trial_of_a_dead_worker_is_not_run_again_by_another(yard: Volume) -> None:
    yard.plan("success-then-lingers", workers=2)
    first, second = (Wire(host=host) for host in yard.hosts(2))
    second.plugged = False
    with yard.running(yard.sharing_fleet([first, second])):
        wait_for(lambda: yard.noted("succeeded"), "the trial is done on the first worker")
        yard.pod_dies(first)
        second.plugged = True
    assert yard.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert yard.winner("success-then-lingers") == (1, "worker-1")
    assert len(yard.noted("started")) == 1


def test_a_finished_trial_of_a_replaced_worker_is_not_run_again_by_its_replacement(yard: Volume) -> None:
    yard.plan("success-then-lingers", workers=1, pin="worker-1")
    (wire,) = (Wire(host=host) for host in yard.hosts(1))
    with yard.running(yard.sharing_fleet([wire])):
        wait_for(lambda: yard.noted("succeeded"), "the trial is done")
        yard.pod_dies(wire)
        wire.plugged = True
    assert yard.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert yard.winner("success-then-lingers") == (1, "worker-1")
    assert len(yard.noted("started")) == 1


def test_an_unfinished_trial_of_a_dead_worker_is_run_again_and_writes_elsewhere(yard: Volume) -> None:
    yard.plan("slow", workers=1, pin="worker-1")
    (wire,) = (Wire(host=host) for host in yard.hosts(1))
    with yard.running(yard.sharing_fleet([wire])):
        wait_for(lambda: yard.noted("started"), "the trial has started")
        yard.pod_dies(wire)
        wire.plugged = True
        yard.say_go(attempt=2)
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert yard.winner("slow") == (2, "worker-1")
    assert (yard.shared / "r1" / "slow.2" / "result.json").exists()
    assert not (yard.shared / "r1" / "slow.1" / "result.json").exists()


def test_a_torn_result_on_the_volume_is_not_believed(yard: Volume) -> None:
    yard.plan("slow", workers=1, pin="worker-1")
    (wire,) = (Wire(host=host) for host in yard.hosts(1))
    with yard.running(yard.sharing_fleet([wire])):
        wait_for(lambda: yard.noted("started"), "the trial has started")
        yard.pod_dies(wire)
        (yard.shared / "r1" / "slow.1" / "result.json").write_text('{"status": "SUCCEEDED"')
        wire.plugged = True
        yard.say_go(attempt=2)
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert yard.winner("slow") == (2, "worker-1")


def test_a_volume_that_is_not_there_is_the_workers_fault_and_not_the_trials(yard: Volume) -> None:
    yard.plan("fine", workers=1)
    yard.shared.write_text("a file where the mount should be")
    yard.sharing_fleet([Wire(host=host) for host in yard.hosts(1)]).run()
    assert yard.ends() == {"fine": "LOST"}
    assert "shared" in str(yard.reasons()["fine"])
    assert not yard.noted("started")


def test_a_replacement_told_to_start_the_same_attempt_again_does_not_run_it_again(yard: Volume) -> None:
    record = yard.plan("fine", workers=1)
    host, folder = yard.host(), f"{yard.host().workdir}/runs/r1/fine.1"
    job = Job(Agent(host), folder)
    for _ in range(2):
        job.start(
            JobSpec(
                command=yard.launch(host, record.planned[0], 1, folder), deadline_sec=60.0, files=trial_files(record)
            )
        )
        assert job.watch(lambda _: None, every_sec=0.05).exit_code == 0
        shutil.rmtree(host.workdir)
    assert len(yard.noted("started")) == 1


def test_a_replacement_does_not_write_where_a_first_copy_may_still_be_writing(yard: Volume) -> None:
    record = yard.plan("fine", workers=1)
    host, folder = yard.host(), f"{yard.host().workdir}/runs/r1/fine.1"
    (yard.shared / "r1" / "fine.1").mkdir(parents=True)
    job = Job(Agent(host), folder)
    job.start(
        JobSpec(command=yard.launch(host, record.planned[0], 1, folder), deadline_sec=60.0, files=trial_files(record))
    )
    assert job.watch(lambda _: None, every_sec=0.05).exit_code == 127
    assert "begun by another worker" in job.log_tail()[-1]
    assert not yard.noted("started")
