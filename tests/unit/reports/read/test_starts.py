"""Start times of attempts from the fleet's ledger."""

import dataclasses

import pytest

from bench.records.paths import LEDGER_FILE, RESULT_FILE
from bench.records.result import TrialResult
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from reports.read import attempts
from reports.read.run_folder import load
from tests.support.reports import synthetic


def test_the_report_reads_starts_from_the_ledger_that_a_fleet_writes(tmp_path):
    ledger = Ledger.create(tmp_path / LEDGER_FILE, ["a", "b"])
    ledger.record_start("a", 1, "worker-1", "/jobs/a.1")
    ledger.record_retry("a", 1, Outcome(TrialStatus.LOST, reason="the pod was gone; it had started"))
    ledger.record_start("a", 2, "worker-2", "/jobs/a.2")
    ledger.record_end("a", Outcome(TrialStatus.SUCCEEDED), 2)
    assert attempts.ledger_fault(tmp_path, [("a", 1), ("a", 2)]) is None
    assert "1 of 2 results" in (attempts.ledger_fault(tmp_path, [("a", 2), ("b", 1)]) or "")


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
    ("content", "token"),
    [
        ("".join(LINES).encode()[:-30], "1 of 4 lines"),
        ((LINES[0] + '{"event": "started", "trial_id": "b"}\n["started"]\n').encode(), "2 of 3 lines"),
        ("".join(LINES + LINES[:2]).encode(), "2 lines are repeated"),
        ("".join(LINES[:2]).encode() + b"\xff\x00 not JSON\n" + LINES[2].encode(), "1 of 4 lines"),
        (b"", "is empty"),
    ],
)
def test_a_damaged_ledger_is_named_and_read_as_far_as_possible(content, token, tmp_path):
    (tmp_path / LEDGER_FILE).write_bytes(content)
    assert token in attempts.ledger_fault(tmp_path, [("a", 1)])


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
