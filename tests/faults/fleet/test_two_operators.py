"""Two operators, one set of workers: a slot lets in one trial at a time; who finds it taken waits and loses nothing.

Two fleets in one process stand for two operators; tests/system/test_two_operators_pods.py has two whole `inv bench`.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.records.run import RunRecord
from remote.fleet.events import EventType
from remote.fleet.retry_policy import RetryLimits
from tests.support.hosts.local_fleet import QUICK, LocalFleet, wait_for

pytestmark = pytest.mark.usefixtures("no_patience")

# Far shorter than another operator's trial lasts: whoever takes a busy worker for a lost one gives it up.
HASTY = replace(QUICK, lost_after_sec=0.2, give_up_after_sec=0.3)


def second_run(local: LocalFleet, folder: Path, *names: str, **options: bool) -> LocalFleet:
    """Another operator's run over the same workers: a folder of its own, the same hosts, the same bench's log."""
    other = LocalFleet(folder)
    folder.mkdir()
    record: RunRecord = other.plan(*names, **options)
    replace(record, run_id="r2").write(other.run_folder)
    other.log = local.log
    other.host = local.host  # type: ignore[method-assign]
    return other


def test_a_worker_at_anothers_trial_is_waited_for_however_long_and_is_not_lost(local: LocalFleet) -> None:
    local.plan("fine", workers=1, replicate=True)
    theirs = local.occupied()
    with local.running(local.fleet(local.hosts(1), limits=HASTY)) as fleet:
        # Longer than the fleet would wait for a worker that is lost.
        wait_for(lambda: local.heard_of(EventType.WORKER_BUSY), "it is said")
        assert not fleet.ledger.entries["fine.worker-1"].end
        theirs.cancel(grace_sec=1.0)
    assert local.ends() == {"fine.worker-1": "SUCCEEDED"}
    assert local.winner("fine.worker-1") == (1, "worker-1")
    assert local.heard_of(EventType.WORKER_LOST) == []
    said = str(local.heard_of(EventType.WORKER_BUSY)[0].reason)
    assert "worker-1: busy with" in said
    assert "theirs/other.1" in said


def test_a_slot_held_longer_than_any_trial_may_last_is_given_up_and_its_holder_named(local: LocalFleet) -> None:
    local.plan("fine", workers=1, replicate=True, deadline_sec=1.0)
    theirs = local.occupied("leftover.1")
    local.fleet(local.hosts(1), limits=HASTY).run()
    assert local.ends() == {"fine.worker-1": "LOST"}
    assert "theirs/leftover.1" in (local.reasons()["fine.worker-1"] or "")
    theirs.cancel(grace_sec=1.0)


def test_a_trial_that_any_worker_may_run_does_not_wait_for_the_busy_one(local: LocalFleet) -> None:
    local.plan("fine 1", "fine 2", "fine 3", workers=2)
    theirs = local.occupied()
    local.fleet(local.hosts(2), limits=HASTY).run()
    assert set(local.ends().values()) == {"SUCCEEDED"}
    assert {line.split()[3] for line in local.noted("started")} == {"worker-2"}
    theirs.cancel(grace_sec=1.0)


def test_stopping_while_waiting_for_a_turn_ends_at_once_and_leaves_the_others_trial_alone(local: LocalFleet) -> None:
    local.plan("fine", workers=1, replicate=True)
    theirs = local.occupied()
    with local.running(local.fleet(local.hosts(1), limits=HASTY)) as fleet:
        wait_for(lambda: local.heard_of(EventType.WORKER_BUSY), "it waits")
        fleet.stop()
    assert local.ends() == {"fine.worker-1": "CANCELLED"}
    assert theirs.status().state.value == "running"
    theirs.cancel(grace_sec=1.0)


@pytest.mark.parametrize("limits", [HASTY, RetryLimits(every_sec=0.05)])
def test_two_runs_at_once_take_turns_and_both_end_with_exactly_their_trials(
    local: LocalFleet, tmp_path: Path, limits: RetryLimits
) -> None:
    local.plan("steps 1", "fine 2", "steps 3", workers=2, replicate=True)
    other = second_run(local, tmp_path / "other", "steps 4", "fine 5", "steps 6", replicate=True)
    fleets = [each.fleet(local.hosts(2), limits=limits) for each in (local, other)]
    with local.running(fleets[0]), other.running(fleets[1]):
        pass
    for run in (local, other):
        assert len(run.ends()) == 6
        assert set(run.ends().values()) == {"SUCCEEDED"}
        assert run.ledger_lines("retried") == []
    lines = [line.split() for line in local.log.read_text().splitlines()]
    for worker in ("worker-1", "worker-2"):
        words = [f"{word} {trial_id}" for word, trial_id, _, where in lines if where == worker]
        # Nobody starts before the one that runs has succeeded.
        assert len(words) == 12
        for begun, done in zip(words[::2], words[1::2], strict=True):
            assert (begun.split()[0], done) == ("started", f"succeeded {begun.split()[1]}")
