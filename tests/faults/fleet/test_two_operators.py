"""Two operators with the same workers: a slot admits one trial at a time; the other operator waits and loses nothing.

Two fleets in one process represent two operators; tests/system/fleet/test_inv_bench_pods_shared.py has two whole
`inv bench`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.run import RunRecord
from remote.fleet.events import EventType
from tests.support.hosts.local_fleet import QUICK_LIMITS, LocalFleet, wait_for

pytestmark = pytest.mark.usefixtures("short_claim_timeout")

# Far shorter than another operator's trial: a fleet that took a busy worker for a lost one would give it up.
SHORT_TIMEOUTS = replace(QUICK_LIMITS, lost_after_sec=0.2, reconnect_timeout_sec=0.3)


def second_run(local: LocalFleet, folder: Path, *names: str) -> LocalFleet:
    """Plan another operator's run over the same workers: its own folder, but the same hosts and bench log."""
    other = LocalFleet(folder)
    folder.mkdir()
    record: RunRecord = other.plan(*names)
    replace(record, run_id="r2").write(other.run_folder)
    other.log = local.log
    other.host = local.host  # type: ignore[method-assign]
    return other


def test_a_worker_busy_with_another_operators_trial_is_waited_for_and_not_lost(local: LocalFleet) -> None:
    local.plan("fine", workers=1)
    other_job = local.start_other_job()
    with local.running(local.fleet(local.hosts(1), limits=SHORT_TIMEOUTS)) as fleet:
        # Longer than the fleet would wait for a lost worker.
        wait_for(lambda: local.events_of(EventType.WORKER_BUSY), "the event")
        assert not fleet.ledger.entries["fine"].status
        other_job.cancel(grace_sec=1.0)
    assert local.statuses() == {"fine": "SUCCEEDED"}
    assert local.winner("fine") == (1, "worker-1")
    assert local.events_of(EventType.WORKER_LOST) == []
    reason = str(local.events_of(EventType.WORKER_BUSY)[0].reason)
    assert "worker-1: " in reason
    assert "theirs/other.1" in reason


def test_a_slot_held_longer_than_any_trial_may_last_is_given_up_and_its_holder_named(local: LocalFleet) -> None:
    local.plan("fine", workers=1, deadline_sec=1.0)
    other_job = local.start_other_job("leftover.1")
    local.fleet(local.hosts(1), limits=SHORT_TIMEOUTS).run()
    assert local.statuses() == {"fine": "LOST"}
    assert "theirs/leftover.1" in (local.reasons()["fine"] or "")
    other_job.cancel(grace_sec=1.0)


def test_stopping_while_a_worker_is_busy_ends_at_once_and_keeps_the_other_trial(local: LocalFleet) -> None:
    local.plan("fine", workers=1)
    other_job = local.start_other_job()
    with local.running(local.fleet(local.hosts(1), limits=SHORT_TIMEOUTS)) as fleet:
        wait_for(lambda: local.events_of(EventType.WORKER_BUSY), "it waits")
        fleet.stop()
    assert local.statuses() == {"fine": "CANCELLED"}
    assert other_job.status().state.value == "running"
    other_job.cancel(grace_sec=1.0)


def test_two_runs_at_once_take_turns_and_both_end_with_exactly_their_trials(local: LocalFleet, tmp_path: Path) -> None:
    local.plan("steps 1", "steps 2", "fine 3", "fine 4", "steps 5", "steps 6")
    other = second_run(local, tmp_path / "other", "steps 7", "steps 8", "fine 9", "fine 10", "steps 11", "steps 12")
    fleets = [each.fleet(local.hosts(2), limits=SHORT_TIMEOUTS) for each in (local, other)]
    with local.running(fleets[0]), other.running(fleets[1]):
        pass
    for run in (local, other):
        assert len(run.statuses()) == 6
        assert set(run.statuses().values()) == {"SUCCEEDED"}
        assert run.ledger_lines("retried") == []
    lines = [line.split() for line in local.log.read_text().splitlines()]
    for worker in ("worker-1", "worker-2"):
        events = [f"{event} {trial_id}" for event, trial_id, _, host in lines if host == worker]
        # No trial starts before the running one has succeeded.
        assert len(events) == 12
        for start, done in zip(events[::2], events[1::2], strict=True):
            assert (start.split()[0], done) == ("started", f"succeeded {start.split()[1]}")
