"""An operator who stops a run, dies in it, or comes back to it: what ran goes on, and nothing is run twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.layout import LEDGER_FILE
from remote.fleet.events import FleetEvent, Happening
from remote.fleet.ledger import Ledger
from remote.hosts.command import Command
from remote.hosts.local import LocalHost
from remote.jobs.job import Job, JobSpec
from tests.support.hosts import hostyard
from tests.support.hosts.hostyard import QUICK, Wire, Yard, wait_for

# --- an operator who stops, and comes back ----------------------------------------------------------------------------


def test_stopping_cancels_everywhere_and_leaves_nothing_running(yard: Yard) -> None:
    yard.plan("slow 1", "slow 2", "slow 3", "slow 4")
    with yard.running(yard.fleet(yard.hosts(2))) as fleet:
        wait_for(lambda: len(yard.noted("started")) == 2, "two starts")
        fleet.stop()
    assert set(yard.ends().values()) == {"CANCELLED"}
    assert len(yard.noted("started")) == 2
    assert hostyard.processes_under(yard.folder) == {}

    yard.say_go()
    yard.fleet(yard.hosts(2)).run()
    assert set(yard.ends().values()) == {"SUCCEEDED"}


def test_an_interrupt_at_the_terminal_ends_trials_as_cancelled(yard: Yard) -> None:
    yard.plan("slow 1", "slow 2", "slow 3")
    operator = subprocess.Popen([sys.executable, "-B", hostyard.__file__, str(yard.folder), "2", "0"])
    wait_for(lambda: len(yard.noted("started")) == 2, "two starts")
    operator.send_signal(signal.SIGINT)
    assert operator.wait(hostyard.PATIENCE_SEC) == 0
    assert set(yard.ends().values()) == {"CANCELLED"}


def test_a_trial_that_had_succeeded_when_it_was_stopped_has_succeeded(yard: Yard) -> None:
    yard.plan("success-then-lingers", workers=1)
    with yard.running(yard.fleet(yard.hosts(1))) as fleet:
        wait_for(lambda: yard.noted("succeeded"), "its result")
        fleet.stop()
    assert yard.ends() == {"success-then-lingers": "SUCCEEDED"}


def test_a_success_cancelled_before_the_operator_died_is_not_repeated(yard: Yard) -> None:
    plan = yard.plan("success-then-lingers", workers=1)
    host = yard.host()
    folder = f"{host.workdir}/runs/r1/success-then-lingers.1"
    job = begin_attempt(yard, host, folder, 1)
    wait_for(lambda: yard.noted("succeeded"), "its result")
    assert job.cancel(grace_sec=5.0).why == "cancelled"
    yard.fleet([host]).run()
    assert yard.ends() == {plan.planned[0].trial_id: "SUCCEEDED"}
    assert len(yard.noted("started")) == 1


def test_a_worker_that_cannot_be_told_to_stop_is_found_again_on_resume(yard: Yard) -> None:
    yard.plan("slow", workers=1)
    wire = Wire(host=yard.host())
    with yard.running(yard.fleet([wire], limits=replace(QUICK, lost_after_sec=30.0))) as fleet:
        wait_for(lambda: yard.noted("started"), "the start")
        wire.plugged = False
        fleet.stop()
    assert yard.ends() == {"slow": "CANCELLED"}
    assert "could not be told" in (yard.reasons()["slow"] or "")

    wire.plugged = True
    with yard.running(yard.fleet([wire])):
        yard.say_go()
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert len(yard.noted("started")) == 1


def test_a_lost_trial_leaves_no_result_of_an_earlier_end_behind(yard: Yard) -> None:
    yard.plan("slow", workers=1)
    with yard.running(yard.fleet(yard.hosts(1), limits=replace(QUICK, max_attempts=1))):
        wait_for(lambda: yard.noted("started"), "the start")
        os.kill(hostyard.supervisor_of(Path(yard.host().workdir, "runs", "r1", "slow.1")), signal.SIGTERM)
    assert yard.ends() == {"slow": "PREEMPTED"}

    with yard.running(yard.fleet(yard.hosts(1), limits=replace(QUICK, max_attempts=1))):
        wait_for(lambda: len(yard.noted("started")) == 2, "the second start")
        os.kill(hostyard.supervisor_of(Path(yard.host().workdir, "runs", "r1", "slow.2")), signal.SIGKILL)
    assert yard.ends() == {"slow": "LOST"}  # and ends() has checked that no result contradicts it


# --- resuming with more than one earlier attempt ----------------------------------------------------------------------


def begin_attempt(yard: Yard, host: LocalHost, folder: str, number: int) -> Job:
    """An attempt that an operator, dead by now, has started."""
    ledger = Ledger(yard.run_folder / LEDGER_FILE)
    (planned,) = hostyard.RunRecord.read(yard.run_folder / "run.json").planned
    ledger.started(planned.trial_id, number, host.name, folder)
    job = Job(hostyard.Agent(host), folder, slot=f"{host.workdir}/slot")
    spec = JobSpec(
        command=yard.launch(host, planned, number, folder),
        deadline_sec=60.0,
        files={hostyard.TRIAL_FILE: planned.trial.to_text()},
    )
    job.start(spec)
    return job


@pytest.mark.parametrize("second", ["succeeded", "running", "absent"])
def test_a_second_attempt_not_yet_looked_at_keeps_the_first_from_being_repeated(yard: Yard, second: str) -> None:
    """Attempt 1 was cancelled as the late one; attempt 2 is elsewhere, on a worker that is slow to answer."""
    yard.plan("slow", workers=2)
    first, other = yard.hosts(2)
    job = begin_attempt(yard, first, f"{first.workdir}/runs/r1/slow.1", 1)
    wait_for(lambda: yard.noted("started"), "attempt 1")
    job.cancel()
    folder = f"{other.workdir}/runs/r1/slow.2"
    if second == "absent":
        Ledger(yard.run_folder / LEDGER_FILE).started("slow", 2, other.name, folder)
        yard.say_go()
    else:
        begin_attempt(yard, other, folder, 2)
        wait_for(lambda: len(yard.noted("started")) == 2, "attempt 2")
        if second == "succeeded":
            yard.say_go()
            wait_for(lambda: yard.noted("succeeded"), "attempt 2's success")

    retried: list[FleetEvent] = []

    def hear(event: FleetEvent) -> None:
        if event.happening is Happening.RETRYING:
            retried.append(event)

    def hold_back(_: Command) -> None:
        # The second worker answers only after the first one's attempt is known to have come to nothing.
        wait_for(lambda: retried, "attempt 1 found cancelled")

    with yard.running(yard.fleet([first, Wire(host=other, before=hold_back)], on_event=hear)):
        wait_for(lambda: retried, "attempt 1 found cancelled")
        yard.say_go()
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert yard.winner("slow") == (2, other.name)
    assert len(yard.noted("started")) == 2


def test_an_attempt_on_a_worker_that_left_the_fleet_is_made_again(yard: Yard) -> None:
    yard.plan("fine", workers=2)
    Ledger(yard.run_folder / LEDGER_FILE).started("fine", 1, "worker-9", "/gone")
    yard.fleet(yard.hosts(1)).run()
    assert yard.ends() == {"fine": "SUCCEEDED"}
    assert yard.winner("fine") == (2, "worker-1")


def test_a_trial_pinned_to_a_worker_that_left_the_fleet_is_lost(yard: Yard) -> None:
    yard.plan("fine", workers=2, replicate=True)
    yard.fleet(yard.hosts(1)).run()
    assert yard.ends() == {"fine.worker-1": "SUCCEEDED", "fine.worker-2": "LOST"}
    assert yard.reasons()["fine.worker-2"] == "worker-2 is not in this fleet"


def test_a_worker_that_forgot_its_job_makes_a_new_attempt(yard: Yard) -> None:
    yard.plan("slow", workers=1)
    wire = Wire(host=yard.host())
    folder = Path(wire.workdir, "runs", "r1", "slow.1")

    def hear(event: FleetEvent) -> None:
        if event.happening is Happening.WORKER_LOST:
            yard.sweep()
            folder.rename(folder.with_name("gone"))
            wire.plugged = True

    with yard.running(yard.fleet([wire], on_event=hear)):
        wait_for(lambda: yard.noted("started"), "the start")
        wire.plugged = False
        wait_for(lambda: len(yard.noted("started")) == 2, "another start")
        yard.say_go()
    assert yard.ends() == {"slow": "SUCCEEDED"}
    assert yard.winner("slow")[0] == 2
