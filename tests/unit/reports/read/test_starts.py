"""Start times of attempts from the fleet's ledger."""

import time

from bench.records.paths import LEDGER_FILE
from bench.records.result import TrialStatus
from remote.fleet.ledger import Ledger
from reports.read import attempts
from reports.read.load import load
from reports.summary.summarize import summarize
from tests.support.reports import synthetic


def test_the_report_reads_starts_from_the_ledger_that_a_fleet_writes(tmp_path):
    before = time.time()
    ledger = Ledger.create(tmp_path / LEDGER_FILE, ["a", "b"])
    ledger.record_start("a", 1, "worker-1", "/jobs/a.1")
    ledger.record_retry("a", 1, "the pod was gone; it had started")
    ledger.record_start("a", 2, "worker-2", "/jobs/a.2")
    ledger.record_end("a", TrialStatus.SUCCEEDED, None, 2)
    starts = attempts.read_starts(tmp_path)
    assert list(starts) == [("a", 1), ("a", 2)]
    assert before - 0.002 <= starts["a", 1] <= starts["a", 2] <= time.time()  # written in whole milliseconds


def test_a_truncated_or_invalid_line_is_skipped(tmp_path):
    whole = '{"time": "2026-03-01T10:00:00.500+00:00", "event": "started", "trial_id": "a", "attempt": 1}'
    lines = [whole, '{"event": "started", "trial_id": "b"}', '["started"]', whole.replace('"a"', '"c"')[:-20]]
    (tmp_path / LEDGER_FILE).write_text("\n".join(lines))
    assert attempts.read_starts(tmp_path) == {("a", 1): 1772359200.5}


def test_worker_time_uses_the_ledger_and_names_a_missing_one(tmp_path):
    record = synthetic.write_run(tmp_path)
    assert attempts.read_starts(tmp_path) == {}
    assert "ledger" in summarize(load(tmp_path)).billed.unknown[-1]
    ledger = Ledger.create(tmp_path / LEDGER_FILE, [plan.trial_id for plan in record.planned])
    for plan in record.planned:
        ledger.record_start(plan.trial_id, 1, plan.worker, "/jobs")
    assert "ledger" not in " ".join(summarize(load(tmp_path)).billed.unknown)
