"""The ledger: truncated lines, second ends, damaged lines, full disks, threads; each trial has at most one end."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from bench.records.status import Outcome, TrialStatus
from bench.records.version import VERSION
from remote.fleet.ledger import Ledger, LedgerError
from tests.support.cases import Case, load_cases

IDS = ["one", "two", "three"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def ledger_with_every_event(path: Path) -> Ledger:
    """Create a ledger with every kind of event."""
    ledger = Ledger.create(path, IDS)
    ledger.record_start("one", 1, "worker-1", "/w/one.1")
    ledger.record_retry("one", 1, Outcome(TrialStatus.LOST, reason="killed by SIGKILL"))
    ledger.record_start("one", 2, "wörker-2", "/w/one.2")
    ledger.record_end("one", Outcome(TrialStatus.SUCCEEDED), 2)
    ledger.record_start("two", 1, "worker-1", "/w/two.1")
    ledger.record_end("two", Outcome(TrialStatus.CANCELLED, reason='said "stop"\u2028\n'), 1)
    ledger.reopen("two")
    ledger.record_end("three", Outcome(TrialStatus.LOST, reason="no worker is left"))
    return ledger


def test_what_was_written_is_read_back(path: Path) -> None:
    written = ledger_with_every_event(path)
    assert Ledger(path).entries == written.entries
    assert written.open_trials() == ["two"]
    entry = written.entries["one"]
    assert entry.winner is not None
    assert (entry.status, entry.winner.number, [attempt.reason for attempt in entry.attempts]) == (
        TrialStatus.SUCCEEDED,
        2,
        ["killed by SIGKILL", None],
    )
    assert (written.entries["two"].attempts_before_reopening, written.entries["two"].status) == (1, None)


def test_a_ledger_cut_at_any_byte_is_read_up_to_its_last_whole_line_and_goes_on(path: Path) -> None:
    ledger_with_every_event(path)
    content = path.read_bytes()
    ends = [size for size, byte in enumerate(content) if byte == ord("\n")]
    for size in sorted({*range(0, len(content), 31), *ends, *(end + 1 for end in ends[:-1])}):
        path.write_bytes(content[:size])
        ledger = Ledger(path)
        whole = content[:size].count(b"\n")
        assert path.read_bytes() == content[:size], "reading a ledger must not change it"
        known = [json.loads(line)["trial_id"] for line in content.splitlines()[:whole]]
        assert list(ledger.entries) == list(dict.fromkeys(known))
    for size in (1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        ledger = Ledger.create(path, [*IDS, "four"])
        ledger.record_start("four", 1, "w", "/f")
        assert Ledger(path).entries == ledger.entries
        assert path.read_bytes().startswith(content[: content.rfind(b"\n", 0, size) + 1])


@pytest.mark.parametrize("status", [status for status in TrialStatus if status is not TrialStatus.SUCCEEDED])
def test_whatever_did_not_succeed_is_reopened_and_a_failure_does_not_count_again(
    path: Path, status: TrialStatus
) -> None:
    ledger = Ledger.create(path, IDS)
    ledger.record_start("one", 1, "w", "/f")
    ledger.record_end("one", Outcome(status, reason="it ended"), 1)
    ledger.reopen("one")
    for known in (ledger, Ledger(path)):
        (attempt,) = known.entries["one"].attempts
        assert known.is_open("one")
        assert attempt.has_failed == (attempt.reason is not None) == status.is_failure


@pytest.mark.parametrize("case", load_cases(__file__, "damaged_lines.yaml"))
def test_a_damaged_line_in_the_middle_is_an_error_that_names_the_line(path: Path, case: Case) -> None:
    Ledger.create(path, IDS)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:1], case["line"], *lines[1:]]) + "\n")
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: line 2 "):
        Ledger(path)


@pytest.mark.parametrize(("version", "problem"), [('"1.0.0"', "1.x"), ("null", "unknown"), ('"3.1.0"', "3.x")])
def test_a_ledger_of_another_version_is_refused_by_name(path: Path, version: str, problem: str) -> None:
    Ledger.create(path, IDS)
    path.write_text(path.read_text().replace(f'"{VERSION}"', version))
    with pytest.raises(LedgerError, match=rf"ledger\.jsonl: written by .*{problem}.*; this is "):
        Ledger(path)


def test_a_deleted_ledger_is_not_created_again(path: Path) -> None:
    ledger = Ledger.create(path, IDS)
    path.unlink()
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: .*No such file or directory"):
        ledger.record_end("one", Outcome(TrialStatus.LOST))
    assert not path.exists()
    assert ledger.is_open("one")


def test_a_ledger_that_cannot_be_read_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger_with_every_event(path)
    monkeypatch.setattr("remote.fleet.ledger.MAX_LEDGER_BYTES", 100)
    with pytest.raises(LedgerError, match=r"ledger\.jsonl: [^\n]*100 bytes[^\n]*\Z"):
        Ledger(path)


def test_eight_threads_that_end_the_same_trials_leave_one_end_each(path: Path) -> None:
    ids = [f"trial-{number}" for number in range(40)]
    ledger, ready = Ledger.create(path, ids), threading.Barrier(8)
    won: list[str] = []

    def end_all(number: int) -> None:
        ready.wait()
        won.extend(
            [
                trial_id
                for trial_id in ids
                if ledger.record_end(trial_id, Outcome(TrialStatus.LOST, reason=f"thread {number}"))
            ]
        )

    threads = [threading.Thread(target=end_all, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(ids)
    assert Ledger(path).entries == ledger.entries


class LedgerMachine(RuleBasedStateMachine):
    """Events in any order, with crashes in between, compared with a simple model."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.path = self.folder / f"{len(list(self.folder.iterdir()))}.jsonl"
        self.ledger = Ledger.create(self.path, IDS)
        self.attempts: dict[str, set[int]] = {trial_id: set() for trial_id in IDS}
        self.ends: dict[str, TrialStatus | None] = dict.fromkeys(IDS)

    def is_accepted(self, work: object, allowed: bool) -> bool:
        before = self.path.read_bytes()
        try:
            work()  # type: ignore[operator]
        except LedgerError:
            assert not allowed
            assert self.path.read_bytes() == before
            return False
        assert allowed
        return True

    @rule(trial_id=st.sampled_from(IDS), number=st.integers(1, 4))
    def start(self, trial_id: str, number: int) -> None:
        allowed = self.ends[trial_id] is None and number not in self.attempts[trial_id]
        if self.is_accepted(lambda: self.ledger.record_start(trial_id, number, "w", "/f"), allowed):
            self.attempts[trial_id].add(number)

    @rule(trial_id=st.sampled_from(IDS), number=st.integers(1, 4))
    def retry(self, trial_id: str, number: int) -> None:
        allowed = self.ends[trial_id] is None and number in self.attempts[trial_id]
        self.is_accepted(
            lambda: self.ledger.record_retry(trial_id, number, Outcome(TrialStatus.LOST, reason="again")), allowed
        )

    @rule(trial_id=st.sampled_from(IDS), end=st.sampled_from(TrialStatus), number=st.none() | st.integers(1, 4))
    def end(self, trial_id: str, end: TrialStatus, number: int | None) -> None:
        if self.ends[trial_id] is not None:
            assert self.ledger.record_end(trial_id, Outcome(end), number) is False
            return
        allowed = number is None or number in self.attempts[trial_id]
        if self.is_accepted(lambda: self.ledger.record_end(trial_id, Outcome(end, reason="why"), number), allowed):
            self.ends[trial_id] = end

    @rule(trial_id=st.sampled_from(IDS))
    def reopen(self, trial_id: str) -> None:
        end = self.ends[trial_id]
        if self.is_accepted(lambda: self.ledger.reopen(trial_id), end not in (None, TrialStatus.SUCCEEDED)):
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
            assert entry.status is self.ends[trial_id]
            assert {attempt.number for attempt in entry.attempts} == self.attempts[trial_id]
        assert self.ledger.open_trials() == [trial_id for trial_id in IDS if self.ends[trial_id] is None]

    def teardown(self) -> None:
        if hasattr(self, "ledger"):
            assert Ledger(self.path).entries == self.ledger.entries


def test_events_in_any_order_leave_each_trial_at_most_one_end(tmp_path: Path) -> None:
    LedgerMachine.folder = tmp_path
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=40, stateful_step_count=20, deadline=None))
