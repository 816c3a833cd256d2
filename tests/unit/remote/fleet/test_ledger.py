"""The ledger: torn tails, second ends, damaged lines, full disks, many threads; each trial has one end at most."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from bench.records.result import TrialStatus
from remote.fleet.ledger import Ledger, LedgerError

IDS = ["one", "two", "three"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def one_of_each(path: Path) -> Ledger:
    """A ledger in which everything that can be said has been said."""
    ledger = Ledger.create(path, IDS)
    ledger.started("one", 1, "worker-1", "/w/one.1")
    ledger.retried("one", 1, "killed by SIGKILL")
    ledger.started("one", 2, "wörker-2", "/w/one.2")
    ledger.ended("one", TrialStatus.SUCCEEDED, None, 2)
    ledger.started("two", 1, "worker-1", "/w/two.1")
    ledger.ended("two", TrialStatus.CANCELLED, 'said "stop"\u2028\n', 1)
    ledger.reopened("two")
    ledger.ended("three", TrialStatus.LOST, "no worker is left", None)
    return ledger


def test_what_was_written_is_read_back(path: Path) -> None:
    written = one_of_each(path)
    assert Ledger(path).entries == written.entries
    assert written.open_trials() == ["two"]
    one = written.entries["one"]
    assert one.winner is not None
    assert (one.end, one.winner.number, [attempt.reason for attempt in one.attempts]) == (
        TrialStatus.SUCCEEDED,
        2,
        ["killed by SIGKILL", None],
    )
    assert (written.entries["two"].spent, written.entries["two"].end) == (1, None)


def test_a_ledger_cut_at_any_byte_is_read_up_to_its_last_whole_line_and_goes_on(path: Path) -> None:
    one_of_each(path)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        ledger = Ledger(path)
        whole = content[:size].count(b"\n")
        assert path.read_bytes() == content[:size], "looking at a ledger must not change it"
        known = [json.loads(line)["trial_id"] for line in content.splitlines()[:whole]]
        assert list(ledger.entries) == list(dict.fromkeys(known))
    for size in (1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        ledger = Ledger.create(path, [*IDS, "four"])
        ledger.started("four", 1, "w", "/f")
        assert Ledger(path).entries == ledger.entries
        assert path.read_bytes().startswith(content[: content.rfind(b"\n", 0, size) + 1])


def test_creating_again_after_a_crash_plans_only_what_is_missing(path: Path) -> None:
    Ledger.create(path, IDS[:2])
    Ledger.create(path, IDS)
    assert [json.loads(line)["trial_id"] for line in path.read_text().splitlines()] == IDS


def test_the_first_end_stands(path: Path) -> None:
    ledger = Ledger.create(path, IDS)
    assert ledger.ended("one", TrialStatus.FAILED, "boom") is True
    before = path.read_bytes()
    assert ledger.ended("one", TrialStatus.SUCCEEDED, None) is False
    assert path.read_bytes() == before
    assert Ledger(path).entries["one"].end is TrialStatus.FAILED


def test_what_failed_is_opened_again_with_something_changed_alone(path: Path) -> None:
    ledger = Ledger.create(path, IDS)
    ledger.ended("one", TrialStatus.FAILED, "the loss is nan")
    with pytest.raises(LedgerError, match="cannot be reopened"):
        ledger.reopened("one")
    ledger.reopened("one", ["train.learning_rate: 0.1 as planned, 0.01 now"])
    assert Ledger(path).is_open("one")


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda it: it.started("four", 1, "w", "/f"), "trial 'four' was never planned"),
        (lambda it: it.ended("four", TrialStatus.LOST, None), "trial 'four' was never planned"),
        (lambda it: it.reopened("one"), "trial 'one' cannot be reopened"),
        (lambda it: it.reopened("one", ["a setting"]), "trial 'one' cannot be reopened"),
        (lambda it: it.reopened("three"), "trial 'three' cannot be reopened"),
        (lambda it: it.retried("two", 7, "?"), "trial 'two': attempt 7 was never started"),
        (lambda it: it.ended("two", TrialStatus.LOST, None, 7), "trial 'two': attempt 7 was never started"),
        (lambda it: it.started("two", 1, "w", "/f"), "trial 'two': attempt 1 is started twice"),
        (lambda it: it.started("one", 3, "w", "/f"), "trial 'one' has ended as SUCCEEDED; started comes too late"),
        (lambda it: it.retried("one", 1, "?"), "trial 'one' has ended as SUCCEEDED; retried comes too late"),
    ],
)
def test_what_does_not_fit_is_refused_and_not_written(path: Path, say: object, message: str) -> None:
    ledger = Ledger.create(path, IDS)
    ledger.started("one", 1, "w", "/f")
    ledger.ended("one", TrialStatus.SUCCEEDED, None, 1)
    ledger.started("two", 1, "w", "/f")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=message):
        say(ledger)  # type: ignore[operator]
    assert path.read_bytes() == before
    assert Ledger(path).entries == ledger.entries


@pytest.mark.parametrize(
    "line",
    [
        "{not json",
        "17",
        "null",
        '"text"',
        "[]",
        "{}",
        "",
        '{"event": "planned"}',
        '{"event": "planned", "trial_id": "one"}',
        '{"event": "planned", "trial_id": ["list"]}',
        '{"event": "exploded", "trial_id": "one"}',
        '{"event": "started", "trial_id": "one"}',
        '{"event": "started", "trial_id": "four", "attempt": 1, "worker": "w", "folder": "/"}',
        '{"event": "ended", "trial_id": "one", "attempt": null, "end": "MAYBE", "reason": null}',
        '{"event": "ended", "trial_id": "one"}',
        '{"event": "reopened", "trial_id": "one"}',
        "7",
        '["event"]',
        "[" * 100_000,
        '{"event": "started", "trial_id": "one", "attempt": "1", "worker": "w", "folder": "/f"}',
        '{"event": "started", "trial_id": "one", "attempt": true, "worker": "w", "folder": "/f"}',
        '{"event": "started", "trial_id": "one", "attempt": 1, "worker": ["w"], "folder": "/f"}',
        '{"event": "started", "trial_id": "one", "attempt": 1, "worker": "w", "folder": null}',
        '{"event": "ended", "trial_id": "one", "attempt": null, "end": "LOST", "reason": {"a": 1}}',
        '{"event": "planned", "trial_id": {}}',
    ],
)
def test_a_damaged_line_in_the_middle_is_an_error_that_names_the_line(path: Path, line: str) -> None:
    Ledger.create(path, IDS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:1], line, *lines[1:]]) + "\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: line 2: .*; the ledger is damaged"):
        Ledger(path)


def test_a_second_end_in_the_file_is_an_error_never_a_choice(path: Path) -> None:
    ledger = Ledger.create(path, IDS)
    ledger.ended("one", TrialStatus.FAILED, "boom")
    with path.open("a") as file:
        file.write(path.read_text().splitlines()[-1] + "\n")
    with pytest.raises(LedgerError, match="line 5: trial 'one' has ended as FAILED; ended comes too late"):
        Ledger(path)


def test_a_ledger_that_went_away_is_not_begun_anew(path: Path) -> None:
    ledger = Ledger.create(path, IDS)
    path.unlink()
    with pytest.raises(LedgerError, match="cannot be written: No such file or directory"):
        ledger.ended("one", TrialStatus.LOST, None)
    assert not path.exists()
    assert ledger.is_open("one")


def test_a_ledger_without_end_is_not_read_to_its_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_of_each(path)
    monkeypatch.setattr("remote.fleet.ledger.MOST_BYTES", 100)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: cannot be read: it is larger than 100 bytes"):
        Ledger(path)


def test_a_ledger_that_cannot_be_read_is_one_line(path: Path) -> None:
    path.mkdir()
    with pytest.raises(LedgerError, match="cannot be read: it is a folder"):
        Ledger(path)


def test_eight_threads_that_settle_the_same_trials_leave_one_end_each(path: Path) -> None:
    ids = [f"trial-{number}" for number in range(40)]
    ledger, ready = Ledger.create(path, ids), threading.Barrier(8)
    won: list[str] = []

    def settle(number: int) -> None:
        ready.wait()
        won.extend([trial_id for trial_id in ids if ledger.ended(trial_id, TrialStatus.LOST, f"thread {number}")])

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(ids)
    assert Ledger(path).entries == ledger.entries
    assert ledger.open_trials() == []


class LedgerMachine(RuleBasedStateMachine):
    """Anything may be said in any order, with crashes in between; a plain model says what must come of it."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.path = self.folder / f"{len(list(self.folder.iterdir()))}.jsonl"
        self.ledger = Ledger.create(self.path, IDS)
        self.attempts: dict[str, set[int]] = {trial_id: set() for trial_id in IDS}
        self.ends: dict[str, TrialStatus | None] = dict.fromkeys(IDS)

    def said(self, work: object, allowed: bool) -> bool:
        try:
            work()  # type: ignore[operator]
        except LedgerError:
            assert not allowed
            return False
        assert allowed
        return True

    @rule(trial_id=st.sampled_from(IDS), number=st.integers(1, 4))
    def start(self, trial_id: str, number: int) -> None:
        allowed = self.ends[trial_id] is None and number not in self.attempts[trial_id]
        if self.said(lambda: self.ledger.started(trial_id, number, "w", "/f"), allowed):
            self.attempts[trial_id].add(number)

    @rule(trial_id=st.sampled_from(IDS), number=st.integers(1, 4))
    def retry(self, trial_id: str, number: int) -> None:
        allowed = self.ends[trial_id] is None and number in self.attempts[trial_id]
        self.said(lambda: self.ledger.retried(trial_id, number, "again"), allowed)

    @rule(trial_id=st.sampled_from(IDS), end=st.sampled_from(TrialStatus), number=st.none() | st.integers(1, 4))
    def end(self, trial_id: str, end: TrialStatus, number: int | None) -> None:
        if self.ends[trial_id] is not None:
            assert self.ledger.ended(trial_id, end, None, number) is False
            return
        allowed = number is None or number in self.attempts[trial_id]
        if self.said(lambda: self.ledger.ended(trial_id, end, "why", number), allowed):
            self.ends[trial_id] = end

    @rule(trial_id=st.sampled_from(IDS))
    def reopen(self, trial_id: str) -> None:
        end = self.ends[trial_id]
        if self.said(lambda: self.ledger.reopened(trial_id), end is not None and end.is_resumable):
            self.ends[trial_id] = None

    @rule(torn=st.binary(max_size=30).filter(lambda tail: b"\n" not in tail))
    def crash(self, torn: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(torn)
        self.ledger = Ledger(self.path)

    @invariant()
    def agrees_with_the_model(self) -> None:
        for trial_id in IDS:
            entry = self.ledger.entries[trial_id]
            assert entry.end is self.ends[trial_id]
            assert {attempt.number for attempt in entry.attempts} == self.attempts[trial_id]
        assert self.ledger.open_trials() == [trial_id for trial_id in IDS if self.ends[trial_id] is None]

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            assert Ledger(self.path).entries == self.ledger.entries


def test_whatever_is_said_in_whatever_order_each_trial_has_one_end_at_most(tmp_path: Path) -> None:
    LedgerMachine.folder = tmp_path
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=40, stateful_step_count=20, deadline=None))
