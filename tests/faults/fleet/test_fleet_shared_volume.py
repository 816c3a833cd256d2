"""Workers that share a volume: what a dead one left there counts, is not run again, and is no other attempt's."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.records.run import PlannedTrial
from remote.fleet.events import EventType
from remote.fleet.fetch_result import TRIAL_FILE
from remote.fleet.fleet import Fleet
from remote.fleet.shared_volume import on_shared_volume, place_of
from remote.hosts.command import Command
from remote.hosts.host import Host
from remote.jobs.agent import Agent
from remote.jobs.job import Job, JobSpec
from tests.support.hosts.local_fleet import QUICK, CuttableHost, LocalFleet, Looking, started_after_success, wait_for


class Volume(LocalFleet):
    """Local hosts that share a folder."""

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    def launch(self, host: Host, planned: PlannedTrial, attempt: int, folder: str) -> Command:
        place = place_of(str(self.shared), "r1", planned.trial_id, attempt)
        command = super().launch(host, planned, attempt, folder)
        return on_shared_volume(command, host, place, folder)

    def sharing_fleet(self, wires: list[CuttableHost], *, max_attempts: int = 3, **more: Any) -> Fleet:
        limits, looking = replace(QUICK, max_attempts=max_attempts), partial(Looking, log=self.log)
        return self.fleet(wires, limits=limits, shared=str(self.shared), agents=looking, **more)

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


@pytest.mark.parametrize(
    ("max_attempts", "is_noticed"), [(3, False), (1, True)], ids=["at once", "its loss noticed, in its last attempt"]
)
def test_a_finished_trial_of_a_replaced_worker_is_not_run_again_by_its_replacement(
    local: Volume, max_attempts: int, is_noticed: bool
) -> None:
    local.plan("success-then-lingers", workers=1, pin="worker-1")
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    with local.running(local.sharing_fleet([wire], max_attempts=max_attempts)):
        wait_for(lambda: local.noted("succeeded"), "the trial is done")
        local.pod_dies(wire)
        if is_noticed:
            wait_for(lambda: local.heard_of(EventType.WORKER_LOST), "its worker counts as lost")
        wire.plugged = True
    assert local.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert local.winner("success-then-lingers") == (1, "worker-1")
    assert len(local.noted("started")) == 1


def test_a_finished_trial_is_not_run_again_by_a_worker_that_never_began_its_own_attempt(local: Volume) -> None:
    local.plan("success-then-lingers", workers=2)
    wires = [CuttableHost(host=host) for host in local.hosts(2)]
    cut_off: list[CuttableHost] = []

    def cut(wire: CuttableHost, command: Command) -> None:
        if "start" in command.argv and not cut_off:
            wire.plugged = False
            cut_off.append(wire)

    for wire in wires:
        wire.before = partial(cut, wire)
    with local.running(local.sharing_fleet(wires)):
        wait_for(lambda: local.noted("succeeded"), "the trial is done on the worker that was not cut off")
        (first,), (second,) = cut_off, [wire for wire in wires if wire not in cut_off]
        local.pod_dies(second)
        first.plugged = True
    assert local.ends() == {"success-then-lingers": "SUCCEEDED"}
    assert local.winner("success-then-lingers") == (2, second.name)
    assert len(local.noted("started")) == 1


def test_a_success_after_the_look_for_it_costs_a_second_run_and_is_no_repeated_success(local: Volume) -> None:
    """A worker that is cut off may live: nobody can know that its trial will be done while another begins it."""
    local.plan("slow", workers=2)
    wires = {host.name: CuttableHost(host=host) for host in local.hosts(2)}

    def hold(command: Command) -> None:
        if "start" in command.argv:
            local.say_go(attempt=1)
            wait_for(lambda: local.noted("succeeded"), "the first attempt is done, beside the fleet's look and start")

    with local.running(local.sharing_fleet([*wires.values()])):
        wait_for(lambda: local.noted("started"), "the trial has started")
        first = wires.pop(local.noted("started")[0].split()[3])
        (second,) = wires.values()
        second.before = hold
        first.plugged = False
        wait_for(lambda: len(local.noted("started")) == 2, "the second attempt")
        local.say_go(attempt=2)
    assert local.ends() == {"slow": "SUCCEEDED"}
    words = [line.split()[:3] for line in local.log.read_text().splitlines()]
    before_its_end = [["started", "slow", "1"], ["looks", "slow", "1"], ["succeeded", "slow", "1"]]
    assert words[:4] == [*before_its_end, ["started", "slow", "2"]]
    assert local.started_after_success() == []


@pytest.mark.parametrize(
    ("lines", "is_again"),
    [
        ("started t 1 a; succeeded t 1 a; looks t 1 b; started t 2 b", True),
        ("started t 1 a; succeeded t 1 a; started t 2 b", True),
        ("started t 1 a; looks t 1 b; succeeded t 1 a; started t 2 b", False),
        ("started t 1 a; looks t 1 b; succeeded t 1 a; looks t 1 b; started t 3 b", True),
        ("started t 2 b; succeeded t 2 b; started t 1 a", False),  # decided before, and slow on its way
        ("started t 2 b; succeeded t 2 b; looks t 2 a; started t 1 a", True),
        ("started t 1 a; succeeded t 1 a; started u 2 b", False),
    ],
)
def test_a_repeated_success_is_told_from_one_that_came_after_the_look(lines: str, is_again: bool) -> None:
    assert bool(started_after_success(lines.split("; "))) is is_again


@pytest.mark.parametrize("left", [{}, {"result.json": '{"status": "SUCCEEDED"'}], ids=["nothing", "a torn result"])
def test_an_unfinished_trial_of_a_dead_worker_is_run_again_and_writes_elsewhere(
    local: Volume, left: dict[str, str]
) -> None:
    local.plan("slow", workers=1, pin="worker-1")
    (wire,) = (CuttableHost(host=host) for host in local.hosts(1))
    first, second = (local.shared / "r1" / f"slow.{attempt}" for attempt in (1, 2))
    with local.running(local.sharing_fleet([wire])):
        wait_for(lambda: local.noted("started"), "the trial has started")
        local.pod_dies(wire)
        for name, text in left.items():
            (first / name).write_text(text)
        wire.plugged = True
        local.say_go(attempt=2)
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, "worker-1")
    assert (second / "result.json").exists()
    assert {path.name: path.read_text() for path in first.glob("result.json")} == left


def test_a_volume_that_is_not_there_is_the_workers_fault_and_not_the_trials(local: Volume) -> None:
    local.plan("fine", workers=1)
    local.shared.write_text("a file where the mount should be")
    local.sharing_fleet([CuttableHost(host=host) for host in local.hosts(1)]).run()
    assert local.ends() == {"fine": "LOST"}
    assert "shared" in str(local.reasons()["fine"])
    assert not local.noted("started")


def first_attempt(local: Volume) -> tuple[Job, JobSpec]:
    """A job of a planned trial, and what starts it."""
    (planned,) = local.plan("fine", workers=1).planned
    host, folder = local.host(), f"{local.host().workdir}/runs/r1/fine.1"
    command, files = local.launch(host, planned, 1, folder), {TRIAL_FILE: planned.trial.to_text()}
    return Job(Agent(host), folder), JobSpec(command=command, deadline_sec=60.0, files=files)


def test_a_replacement_told_to_start_the_same_attempt_again_does_not_run_it_again(local: Volume) -> None:
    job, spec = first_attempt(local)
    for _ in range(2):
        job.start(spec)
        assert job.watch(lambda _: None, every_sec=0.05).exit_code == 0
        shutil.rmtree(local.host().workdir)
    assert len(local.noted("started")) == 1


def test_a_replacement_does_not_write_where_a_first_copy_may_still_be_writing(local: Volume) -> None:
    job, spec = first_attempt(local)
    (local.shared / "r1" / "fine.1").mkdir(parents=True)
    job.start(spec)
    assert job.watch(lambda _: None, every_sec=0.05).exit_code == 127
    assert "begun by another worker" in job.log_tail()[-1]
    assert not local.noted("started")
