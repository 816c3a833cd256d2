"""Workers that share a volume: what a dead one left there counts, is not run again, and is no other attempt's."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.layout import RESULT_FILE
from bench.records.run import PlannedTrial, RunRecord
from remote.fleet.attempt import OUT_FOLDER, TRIAL_FILE
from remote.fleet.fleet import Fleet
from remote.fleet.shared_volume import on_shared_volume, place_of
from remote.hosts.command import Command
from remote.hosts.host import Host
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec
from tests.support.hosts.local_fleet import QUICK, CuttableHost, LocalFleet, wait_for


def trial_files(record: RunRecord) -> dict[str, str]:
    return {TRIAL_FILE: record.planned[0].trial.to_text()}


class Volume(LocalFleet):
    """Local hosts that share a folder."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        place = place_of(str(self.shared), "r1", planned.trial_id, attempt)
        command = super().launch(host, planned, attempt, folder)
        return on_shared_volume(command, host.python, place, f"{folder}/{OUT_FOLDER}", RESULT_FILE)

    def sharing_fleet(self, wires: list[CuttableHost]) -> Fleet:
        return self.fleet(wires, limits=replace(QUICK, max_attempts=3), shared=str(self.shared))

    def pod_dies(self, wire: CuttableHost) -> None:
        """The worker with everything in it; the volume stays."""
        wire.plugged = False
        self.sweep()
        shutil.rmtree(wire.workdir)


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Volume]:
    with Volume(tmp_path) as local:
        yield local


def test_a_finished_trial_of_a_dead_worker_is_not_run_again_by_another(local: Volume) -> None:
    local.plan("success-then-lingers", workers=2)
    first, second = (CuttableHost(host=host) for host in local.hosts(2))
    second.plugged = False
    with local.running(local.sharing_fleet([first, second])):
        wait_for(lambda: local.noted("succeeded"), "the trial is done on the first worker")
        local.pod_dies(first)
        second.plugged = True
    assert local.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert local.winner("success-then-lingers") == (1, "worker-1")
    assert len(local.noted("started")) == 1


def test_a_finished_trial_of_a_replaced_worker_is_not_run_again_by_its_replacement(local: Volume) -> None:
    local.plan("success-then-lingers", workers=1, pin="worker-1")
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    with local.running(local.sharing_fleet([wire])):
        wait_for(lambda: local.noted("succeeded"), "the trial is done")
        local.pod_dies(wire)
        wire.plugged = True
    assert local.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert local.winner("success-then-lingers") == (1, "worker-1")
    assert len(local.noted("started")) == 1


def test_an_unfinished_trial_of_a_dead_worker_is_run_again_and_writes_elsewhere(local: Volume) -> None:
    local.plan("slow", workers=1, pin="worker-1")
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    with local.running(local.sharing_fleet([wire])):
        wait_for(lambda: local.noted("started"), "the trial has started")
        local.pod_dies(wire)
        wire.plugged = True
        local.say_go(attempt=2)
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, "worker-1")
    assert (local.shared / "r1" / "slow.2" / "result.json").exists()
    assert not (local.shared / "r1" / "slow.1" / "result.json").exists()


def test_a_torn_result_on_the_volume_is_not_believed(local: Volume) -> None:
    local.plan("slow", workers=1, pin="worker-1")
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    with local.running(local.sharing_fleet([wire])):
        wait_for(lambda: local.noted("started"), "the trial has started")
        local.pod_dies(wire)
        (local.shared / "r1" / "slow.1" / "result.json").write_text('{"status": "SUCCEEDED"')
        wire.plugged = True
        local.say_go(attempt=2)
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, "worker-1")


def test_a_volume_that_is_not_there_is_the_workers_fault_and_not_the_trials(local: Volume) -> None:
    local.plan("fine", workers=1)
    local.shared.write_text("a file where the mount should be")
    local.sharing_fleet([CuttableHost(host=host) for host in local.hosts(1)]).run()
    assert local.ends() == {"fine": "LOST"}
    assert "shared" in str(local.reasons()["fine"])
    assert not local.noted("started")


def test_a_replacement_told_to_start_the_same_attempt_again_does_not_run_it_again(local: Volume) -> None:
    record = local.plan("fine", workers=1)
    host, folder = local.host(), f"{local.host().workdir}/runs/r1/fine.1"
    job = Job(Agent(host), folder)
    for _ in range(2):
        job.start(
            JobSpec(
                command=local.launch(host, record.planned[0], 1, folder), deadline_sec=60.0, files=trial_files(record)
            )
        )
        assert job.watch(lambda _: None, every_sec=0.05).exit_code == 0
        shutil.rmtree(host.workdir)
    assert len(local.noted("started")) == 1


def test_a_replacement_does_not_write_where_a_first_copy_may_still_be_writing(local: Volume) -> None:
    record = local.plan("fine", workers=1)
    host, folder = local.host(), f"{local.host().workdir}/runs/r1/fine.1"
    (local.shared / "r1" / "fine.1").mkdir(parents=True)
    job = Job(Agent(host), folder)
    job.start(
        JobSpec(command=local.launch(host, record.planned[0], 1, folder), deadline_sec=60.0, files=trial_files(record))
    )
    assert job.watch(lambda _: None, every_sec=0.05).exit_code == 127
    assert "begun by another worker" in job.log_tail()[-1]
    assert not local.noted("started")
