"""An operator process that stops a run, is killed, or resumes it: jobs continue, and no trial runs twice."""

import os
import signal
from dataclasses import replace
from pathlib import Path

from bench.records.status import ReasonCode
from tests.support.hosts import local_fleet
from tests.support.hosts.local_fleet import QUICK_LIMITS, CuttableHost, LocalFleet, wait_for

# --- an operator who stops, and comes back ----------------------------------------------------------------------------


def test_stopping_cancels_everywhere_and_leaves_nothing_running(local: LocalFleet) -> None:
    local.plan("slow 1", "slow 2", "slow 3", "slow 4")
    with local.running(local.fleet(local.hosts(2))) as fleet:
        wait_for(lambda: len(local.bench_log_lines("started")) == 2, "two starts")
        fleet.stop()
    assert set(local.statuses().values()) == {"CANCELLED"}
    started_ids = {line.split()[1] for line in local.bench_log_lines("started")}
    never_started = {
        trial_id for trial_id, reason in local.reasons().items() if reason == "cancelled before it started"
    }
    assert (len(started_ids), never_started) == (2, local.reasons().keys() - started_ids)
    assert local_fleet.processes_under(local.folder) == {}

    local.release_slow_trials()
    local.fleet(local.hosts(2)).run()
    assert set(local.statuses().values()) == {"SUCCEEDED"}


def test_a_trial_that_had_succeeded_when_it_was_stopped_has_succeeded(local: LocalFleet) -> None:
    local.plan("success-then-lingers", workers=1)
    with local.running(local.fleet(local.hosts(1))) as fleet:
        wait_for(lambda: local.bench_log_lines("succeeded"), "its result")
        fleet.stop()
    assert local.statuses() == {"success-then-lingers": "SUCCEEDED"}


def test_a_success_cancelled_before_the_operator_was_killed_is_not_repeated(local: LocalFleet) -> None:
    plan = local.plan("success-then-lingers", workers=1)
    host = local.host()
    job, spec = local.first_attempt(host)
    job.start(spec)
    wait_for(lambda: local.bench_log_lines("succeeded"), "its result")
    assert job.cancel(grace_sec=5.0).why == "cancelled"
    local.fleet([host]).run()
    assert local.statuses() == {plan.planned[0].trial_id: "SUCCEEDED"}
    assert len(local.bench_log_lines("started")) == 1


def test_a_worker_that_cannot_be_cancelled_is_resumed_later(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    wire = CuttableHost(host=local.host())
    with local.running(local.fleet([wire], limits=replace(QUICK_LIMITS, lost_after_sec=30.0))) as fleet:
        wait_for(lambda: local.bench_log_lines("started"), "the start")
        wire.plugged = False
        fleet.stop()
    assert local.statuses() == {"slow": "CANCELLED"}
    (ended,) = local.ledger_lines("ended")
    assert ended["reason_code"] == ReasonCode.CANCEL_UNCONFIRMED

    wire.plugged = True
    with local.running(local.fleet([wire])):
        local.release_slow_trials()
    assert local.statuses() == {"slow": "SUCCEEDED"}
    assert len(local.bench_log_lines("started")) == 1


def test_a_lost_trial_leaves_no_result_of_an_earlier_end_behind(local: LocalFleet) -> None:
    local.plan("slow", workers=1)
    for attempt, number, end in ((1, signal.SIGTERM, "PREEMPTED"), (2, signal.SIGKILL, "LOST")):
        with local.running(local.fleet(local.hosts(1), limits=replace(QUICK_LIMITS, max_attempts=1))):
            wait_for(lambda n=attempt: len(local.bench_log_lines("started")) == n, f"start {attempt}")
            os.kill(local_fleet.supervisor_pid(Path(local.host().workdir, "runs", "r1", f"slow.{attempt}")), number)
        assert local.statuses() == {"slow": end}  # and ends() has checked that no result contradicts it


def test_a_trial_of_a_worker_that_left_the_fleet_is_lost(local: LocalFleet) -> None:
    local.plan("fine 1", "fine 2", workers=2)
    local.fleet(local.hosts(1)).run()
    assert local.statuses() == {"fine-1": "SUCCEEDED", "fine-2": "LOST"}
    assert local.reasons()["fine-2"] == "worker-2 is not in this fleet"
