"""Start times of attempts from the fleet's ledger."""

import dataclasses
import time

import pytest

from bench.records.paths import LEDGER_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from reports.read import attempts
from reports.read.run_folder import load
from tests.support.reports import synthetic


def test_the_report_reads_starts_from_the_ledger_that_a_fleet_writes(tmp_path):
    before = time.time()
    ledger = Ledger.create(tmp_path / LEDGER_FILE, ["a", "b"])
    ledger.record_start("a", 1, "worker-1", "/jobs/a.1")
    ledger.record_retry("a", 1, Outcome(TrialStatus.LOST, reason="the pod was gone; it had started"))
    ledger.record_start("a", 2, "worker-2", "/jobs/a.2")
    ledger.record_end("a", Outcome(TrialStatus.SUCCEEDED), 2)
    starts = attempts.read_starts(tmp_path).starts
    assert list(starts) == [("a", 1), ("a", 2)]
    assert before - 0.002 <= starts["a", 1] <= starts["a", 2] <= time.time()  # written in whole milliseconds


def test_a_trial_that_was_cancelled_before_it_started_lacks_no_start(tmp_path):
    record = synthetic.write_run(tmp_path, synthetic.record(workers=2))
    ledger = Ledger.create(tmp_path / LEDGER_FILE, [plan.trial_id for plan in record.planned])
    for plan in record.planned[1:]:
        ledger.record_start(plan.trial_id, 1, plan.worker, "/jobs")
    first = tmp_path / "trials" / record.planned[0].trial_id
    result = TrialResult.read(first / RESULT_FILE)
    assert [rejected.file for rejected in load(tmp_path).rejected] == [LEDGER_FILE]
    dataclasses.replace(
        result, status=TrialStatus.CANCELLED, reason_code=ReasonCode.CANCELLED, written_by="collect", started_at=None
    ).write(first)
    assert list(load(tmp_path).rejected) == []


LINES = [
    f'{{"time": "2026-03-01T10:00:0{number}.500+00:00", "event": "started", "trial_id": "{name}", "attempt": 1}}\n'
    for number, name in enumerate("abcd")
]


@pytest.mark.parametrize(
    ("content", "read", "token"),
    [
        ("".join(LINES).encode()[:-30], 3, "1 of 4 lines"),
        ((LINES[0] + '{"event": "started", "trial_id": "b"}\n["started"]\n').encode(), 1, "2 of 3 lines"),
        ("".join(LINES + LINES[:2]).encode(), 4, "2 lines are repeated"),
        ("".join(LINES[:2]).encode() + b"\xff\x00 not JSON\n" + LINES[2].encode(), 3, "1 of 4 lines"),
        (b"", 0, "is empty"),
    ],
)
def test_a_damaged_ledger_is_named_and_read_as_far_as_possible(content, read, token, tmp_path):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    ledger = attempts.read_starts(tmp_path)
    assert len(ledger.starts) == read
    assert token in ledger.fault


def test_a_trial_folder_that_is_a_link_is_rejected(tmp_path):
    record = synthetic.write_run(tmp_path / "run")
    folder = tmp_path / "run" / "trials" / record.planned[0].trial_id
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    run = load(tmp_path / "run")
    assert [(entry.file, "symbolic link" in entry.reason) for entry in run.rejected] == [
        (f"trials/{folder.name}/result.json", True)
    ]
    assert [missing.trial_id for missing in run.missing] == [folder.name]


def test_a_clock_that_disagrees_is_measured_against_the_ledger_the_plan_and_this_machine(tmp_path):
    record = synthetic.write_run(tmp_path)
    first, *others = load(tmp_path).results
    created, day = attempts.timestamp(record.created_at), 86_400.0
    assert attempts.clock_faults(record.created_at, [first, *others], {}, created + 3600.0) == []

    def ahead_days(started_at, starts):
        result = dataclasses.replace(first, started_at=started_at, worker="w")
        (fault,) = attempts.clock_faults(record.created_at, [result, *others], starts, created + 3600.0)
        assert (fault.worker, fault.trial_id) == ("w", first.trial_id)
        return round(fault.ahead_sec / day)

    assert ahead_days("2099-01-01T00:00:00+00:00", {}) > 26_000
    assert ahead_days("1970-01-02T00:00:00+00:00", {}) < -20_000
    starts = {(first.trial_id, first.attempt): attempts.timestamp(first.started_at) - 20 * day}
    assert ahead_days(first.started_at, starts) == 20
