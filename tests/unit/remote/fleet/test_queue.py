"""Who may have which trial, and when: without hosts, so that every order of events can be written down."""

import threading
from pathlib import Path

import pytest

from bench.records.result import TrialStatus
from bench.records.run import PlannedTrial
from remote.fleet.ledger import Ledger
from remote.fleet.queue import OpenTrial, TrialQueue
from tests.support.hosts.local_fleet import PATIENCE_SEC, make_trial


class Bench:
    """A queue over a ledger of three trials: `free`, `other` and `pinned` (to worker b)."""

    def __init__(self, folder: Path) -> None:
        planned = [
            PlannedTrial(trial_id=name, trial=make_trial(name), worker="b" if name == "pinned" else None)
            for name in ("free", "other", "pinned")
        ]
        self.ledger = Ledger.create(folder / "ledger.jsonl", [one.trial_id for one in planned])
        self.free, self.other, self.pinned = trials = [OpenTrial(planned=one, budget=2) for one in planned]
        self.queue = TrialQueue(self.ledger, {trial.trial_id: trial for trial in trials})

    def end(self, *trials: OpenTrial) -> None:
        for trial in trials:
            self.ledger.ended(trial.trial_id, TrialStatus.SUCCEEDED, None)
        self.queue.settle()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_trials_are_taken_in_the_order_they_were_put_and_a_pinned_one_by_its_worker_alone(bench: Bench) -> None:
    for trial in (bench.pinned, bench.other, bench.free):
        bench.queue.put(trial)
    assert [bench.queue.take("a"), bench.queue.take("b"), bench.queue.take("a")] == [
        bench.other,
        bench.pinned,
        bench.free,
    ]


def test_who_waits_is_sent_home_when_nothing_is_left_for_it(bench: Bench) -> None:
    took: list[OpenTrial | None] = []
    thread = threading.Thread(target=lambda: took.append(bench.queue.take("a")))
    thread.start()
    bench.end(bench.free, bench.other)
    thread.join(PATIENCE_SEC)
    assert took == [None]
    assert bench.queue.is_open_for("b")
    assert not bench.queue.is_open_for("a")


def test_a_closed_queue_hands_out_nothing(bench: Bench) -> None:
    bench.queue.put(bench.free)
    bench.queue.close()
    assert bench.queue.take("a") is None
    assert not bench.queue.is_open_for("a")


def test_a_released_trial_is_only_for_the_worker_that_had_it(bench: Bench) -> None:
    bench.end(bench.other, bench.pinned)
    bench.queue.release(bench.free, "a")
    bench.queue.close()  # so that nobody waits here for ever
    assert bench.queue.take("b") is None
    assert bench.queue.claim(bench.free)
    assert not bench.queue.claim(bench.free)


def test_a_trial_passed_on_is_for_the_next_and_its_old_worker_may_still_claim_it_first(bench: Bench) -> None:
    bench.queue.release(bench.free, "a")
    bench.queue.pass_on(bench.free, "a")
    assert bench.queue.claim(bench.free)
    bench.queue.release(bench.free, "a")
    bench.queue.pass_on(bench.free, "a")
    assert bench.queue.take("b") == bench.free
    assert not bench.queue.claim(bench.free)


def test_a_trial_with_two_earlier_attempts_waits_until_both_are_known(bench: Bench) -> None:
    bench.queue.release(bench.free, "a")
    bench.queue.release(bench.free, "b")
    assert bench.queue.claim(bench.free)  # a looks: its attempt came to nothing
    bench.queue.put(bench.free)
    bench.queue.pass_on(bench.free, "a")
    bench.queue.put(bench.other)
    assert bench.queue.take("c") == bench.other
    bench.queue.pass_on(bench.free, "b")
    assert bench.queue.take("c") == bench.free


def test_giving_up_ends_a_trial_only_when_nobody_else_is_left_to_ask(bench: Bench) -> None:
    bench.queue.release(bench.free, "a")
    bench.queue.release(bench.free, "b")
    assert not bench.queue.give_up(bench.free, "a")
    assert bench.queue.give_up(bench.free, "b")
    bench.queue.release(bench.other, "a")
    bench.queue.pass_on(bench.other, "a")
    assert not bench.queue.give_up(bench.other, "a"), "it waits for another worker"


def test_a_trial_that_has_ended_is_neither_taken_nor_claimed(bench: Bench) -> None:
    bench.queue.put(bench.free)
    bench.queue.release(bench.other, "a")
    bench.end(bench.free, bench.other)
    assert not bench.queue.claim(bench.free)
    assert not bench.queue.claim(bench.other)
    bench.queue.put(bench.pinned)
    assert bench.queue.take("b") == bench.pinned
    assert bench.queue.open_trials() == [bench.pinned]
