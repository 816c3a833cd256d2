"""An operator who stops a run, dies in it, or comes back to it: what ran goes on, and nothing is run twice."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.paths import LEDGER_FILE
from remote.fleet.events import EventType, FleetEvent
from remote.fleet.ledger import Ledger
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from remote.jobs.job import Job, JobSpec
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import QUICK, CuttableHost, LocalFleet, wait_for

# --- an operator who stops, and comes back ----------------------------------------------------------------------------


def test_stopping_cancels_everywhere_and_leaves_nothing_running(local: LocalFleet) -> None:
    local.plan("slow 1", "slow 2", "slow 3", "slow 4")
    with local.running(local.fleet(local.hosts(2))) as fleet:
        wait_for(lambda: len(local.noted("started")) == 2, "two starts")
        fleet.stop()
    assert set(local.ends().values()) == {"CANCELLED"}
    begun = {line.split()[1] for line in local.noted("started")}
    never = {trial_id for trial_id, reason in local.reasons().items() if reason == "cancelled before it started"}
    assert (len(begun), never) == (2, local.reasons().keys() - begun)
    assert local_fleet.processes_under(local.folder) == {}

    local.say_go()
    local.fleet(local.hosts(2)).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}


def test_a_trial_that_had_succeeded_when_it_was_stopped_has_succeeded(local: LocalFleet) -> None:
    local.plan("success-then-lingers", workers=1)
    with local.running(local.fleet(local.hosts(1))) as fleet:
        wait_for(lambda: local.noted("succeeded"), "its result")
        fleet.stop()
    assert local.ends() == {"success-then-lingers": "SUCCEEDED"}


def test_a_success_cancelled_before_the_operator_died_is_not_repeated(local: LocalFleet) -> None:
    plan = local.plan("success-then-lingers", workers=1)
    host = local.host()
    job = begin_attempt(local, host, f"{host.workdir}/runs/r1/success-then-lingers.1", 1)
    wait_for(lambda: local.noted("succeeded"), "its result")
    assert job.cancel(grace_sec=5.0).why == "cancelled"
    local.fleet([host]).run()
    assert local.ends() == {plan.planned[0].trial_id: "SUCCEEDED"}
    assert len(local.noted("started")) == 1


def test_a_worker_that_cannot_be_told_to_stop_is_found_again_on_resume(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    wire = CuttableHost(host=local.host())
    with local.running(local.fleet([wire], limits=replace(QUICK, lost_after_sec=30.0))) as fleet:
        wait_for(lambda: local.noted("started"), "the start")
        wire.plugged = False
        fleet.stop()
    assert local.ends() == {"slow": "CANCELLED"}
    assert "could not be asked to stop it" in (local.reasons()["slow"] or "")

    wire.plugged = True
    with local.running(local.fleet([wire])):
        local.say_go()
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert len(local.noted("started")) == 1


def test_a_lost_trial_leaves_no_result_of_an_earlier_end_behind(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    for attempt, number, end in ((1, signal.SIGTERM, "PREEMPTED"), (2, signal.SIGKILL, "LOST")):
        with local.running(local.fleet(local.hosts(1), limits=replace(QUICK, max_attempts=1))):
            wait_for(lambda n=attempt: len(local.noted("started")) == n, f"start {attempt}")
            os.kill(local_fleet.supervisor_of(Path(local.host().workdir, "runs", "r1", f"slow.{attempt}")), number)
        assert local.ends() == {"slow": end}  # and ends() has checked that no result contradicts it


# --- resuming with more than one earlier attempt ----------------------------------------------------------------------


def begin_attempt(local: LocalFleet, host: LocalHost, folder: str, number: int) -> Job:
    """An attempt that an operator, dead by now, has started."""
    ledger = Ledger(local.run_folder / LEDGER_FILE)
    (planned,) = local_fleet.RunRecord.read(local.run_folder / "run.json").planned
    ledger.started(planned.trial_id, number, host.name, folder)
    job = Job(local_fleet.Agent(host), folder, slot=f"{host.workdir}/slot")
    spec = JobSpec(
        command=local.launch(host, planned, number, folder),
        deadline_sec=60.0,
        files={local_fleet.TRIAL_FILE: planned.trial.to_text()},
    )
    job.start(spec)
    return job


@pytest.mark.parametrize("second", ["succeeded", "running", "absent"])
def test_a_second_attempt_not_yet_looked_at_keeps_the_first_from_being_repeated(local: LocalFleet, second: str) -> None:
    """Attempt 1 was cancelled as the late one; attempt 2 is elsewhere, on a worker that is slow to answer."""
    local.plan("slow", workers=2)
    first, other = local.hosts(2)
    job = begin_attempt(local, first, f"{first.workdir}/runs/r1/slow.1", 1)
    wait_for(lambda: local.noted("started"), "attempt 1")
    job.cancel()
    folder = f"{other.workdir}/runs/r1/slow.2"
    if second == "absent":
        Ledger(local.run_folder / LEDGER_FILE).started("slow", 2, other.name, folder)
        local.say_go()
    else:
        begin_attempt(local, other, folder, 2)
        wait_for(lambda: len(local.noted("started")) == 2, "attempt 2")
        if second == "succeeded":
            local.say_go()
            wait_for(lambda: local.noted("succeeded"), "attempt 2's success")

    def hold_back(_: Command) -> None:
        # The second worker answers only after the first one's attempt is known to have come to nothing.
        wait_for(lambda: local.heard_of(EventType.RETRYING), "attempt 1 found cancelled")

    with local.running(local.fleet([first, CuttableHost(host=other, before=hold_back)])):
        wait_for(lambda: local.heard_of(EventType.RETRYING), "attempt 1 found cancelled")
        local.say_go()
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow") == (2, other.name)
    assert len(local.noted("started")) == 2


def test_an_attempt_on_a_worker_that_left_the_fleet_is_made_again(local: LocalFleet) -> None:
    local.plan("fine", workers=2)
    Ledger(local.run_folder / LEDGER_FILE).started("fine", 1, "worker-9", "/gone")
    local.fleet(local.hosts(1)).run()
    assert local.ends() == {"fine": "SUCCEEDED"}
    assert local.winner("fine") == (2, "worker-1")


def test_a_trial_pinned_to_a_worker_that_left_the_fleet_is_lost(local: LocalFleet) -> None:
    local.plan("fine", workers=2, replicate=True)
    local.fleet(local.hosts(1)).run()
    assert local.ends() == {"fine.worker-1": "SUCCEEDED", "fine.worker-2": "LOST"}
    assert local.reasons()["fine.worker-2"] == "worker-2 is not in this fleet"


def test_a_worker_that_forgot_its_job_makes_a_new_attempt(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    wire = CuttableHost(host=local.host())
    folder = Path(wire.workdir, "runs", "r1", "slow.1")

    def hear(event: FleetEvent) -> None:
        if event.happening is EventType.WORKER_LOST:
            local.sweep()
            folder.rename(folder.with_name("gone"))
            wire.plugged = True

    with local.running(local.fleet([wire], on_event=hear)):
        wait_for(lambda: local.noted("started"), "the start")
        wire.plugged = False
        wait_for(lambda: len(local.noted("started")) == 2, "another start")
        local.say_go()
    assert local.ends() == {"slow": "SUCCEEDED"}
    assert local.winner("slow")[0] == 2
