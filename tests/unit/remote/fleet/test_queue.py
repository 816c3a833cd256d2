"""The queue of trials without hosts, so that every order of events can be tested."""

import threading
from pathlib import Path

import pytest

from bench.records.run import PlannedTrial
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from remote.fleet.queue import OpenTrial, TrialQueue
from tests.support.hosts.local_fleet import PATIENCE_SEC, make_trial


class QueueWithTrials:
    """A queue over a ledger of three trials: `free`, `other` and `pinned` (to worker b)."""

    def __init__(self, folder: Path) -> None:
        planned = [
            PlannedTrial(trial_id=name, trial=make_trial(name), worker="b" if name == "pinned" else None)
            for name in ("free", "other", "pinned")
        ]
        self.ledger = Ledger.create(folder / "ledger.jsonl", [planned_trial.trial_id for planned_trial in planned])
        self.free, self.other, self.pinned = trials = [
            OpenTrial(planned=planned_trial, max_attempts=2) for planned_trial in planned
        ]
        self.queue = TrialQueue(self.ledger, {trial.trial_id: trial for trial in trials})

    def end(self, *trials: OpenTrial) -> None:
        for trial in trials:
            self.ledger.record_end(trial.trial_id, Outcome(TrialStatus.SUCCEEDED))
        self.queue.notify()


@pytest.fixture
def trials(tmp_path: Path) -> QueueWithTrials:
    return QueueWithTrials(tmp_path)


def test_trials_are_taken_in_queue_order_and_a_pinned_one_only_by_its_worker(trials: QueueWithTrials) -> None:
    for trial in (trials.pinned, trials.other, trials.free):
        trials.queue.put(trial)
    assert [trials.queue.get("a"), trials.queue.get("b"), trials.queue.get("a")] == [
        trials.other,
        trials.pinned,
        trials.free,
    ]


def test_a_waiting_worker_gets_none_once_no_trial_is_left_for_it(trials: QueueWithTrials) -> None:
    taken: list[OpenTrial | None] = []
    thread = threading.Thread(target=lambda: taken.append(trials.queue.get("a")))
    thread.start()
    trials.end(trials.free, trials.other)
    thread.join(PATIENCE_SEC)
    assert taken == [None]
    assert trials.queue.has_trial_for("b")
    assert not trials.queue.has_trial_for("a")


def test_a_closed_queue_hands_out_nothing(trials: QueueWithTrials) -> None:
    trials.queue.put(trials.free)
    trials.queue.close()
    assert trials.queue.get("a") is None
    assert not trials.queue.has_trial_for("a")


def test_a_released_trial_is_only_for_the_worker_that_had_it(trials: QueueWithTrials) -> None:
    trials.end(trials.other, trials.pinned)
    trials.queue.release(trials.free, "a")
    trials.queue.close()  # so that this test does not wait
    assert trials.queue.get("b") is None
    assert trials.queue.claim(trials.free)
    assert not trials.queue.claim(trials.free)


def test_a_trial_offered_to_others_may_still_be_claimed_first_by_its_old_worker(trials: QueueWithTrials) -> None:
    trials.queue.release(trials.free, "a")
    trials.queue.stop_awaiting(trials.free, "a")
    assert trials.queue.claim(trials.free)
    trials.queue.release(trials.free, "a")
    trials.queue.stop_awaiting(trials.free, "a")
    assert trials.queue.get("b") == trials.free
    assert not trials.queue.claim(trials.free)


def test_a_trial_with_two_earlier_attempts_waits_until_both_are_known(trials: QueueWithTrials) -> None:
    trials.queue.release(trials.free, "a")
    trials.queue.release(trials.free, "b")
    assert trials.queue.claim(trials.free)  # worker a: its attempt has no result
    trials.queue.put(trials.free)
    trials.queue.stop_awaiting(trials.free, "a")
    trials.queue.put(trials.other)
    assert trials.queue.get("c") == trials.other
    trials.queue.stop_awaiting(trials.free, "b")
    assert trials.queue.get("c") == trials.free


def test_giving_up_claims_a_trial_only_if_no_other_worker_may_have_it(trials: QueueWithTrials) -> None:
    trials.queue.release(trials.free, "a")
    trials.queue.release(trials.free, "b")
    assert not trials.queue.give_up(trials.free, "a")
    assert trials.queue.give_up(trials.free, "b")
    trials.queue.release(trials.other, "a")
    trials.queue.stop_awaiting(trials.other, "a")
    assert not trials.queue.give_up(trials.other, "a"), "it waits for another worker"


def test_a_trial_that_has_ended_is_neither_taken_nor_claimed(trials: QueueWithTrials) -> None:
    trials.queue.put(trials.free)
    trials.queue.release(trials.other, "a")
    trials.end(trials.free, trials.other)
    assert not trials.queue.claim(trials.free)
    assert not trials.queue.claim(trials.other)
    trials.queue.put(trials.pinned)
    assert trials.queue.get("b") == trials.pinned
    assert trials.queue.open_trials() == [trials.pinned]
