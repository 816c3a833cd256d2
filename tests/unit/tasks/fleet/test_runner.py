"""`runner.resume`: the trials that a resumed run reopens. Not covered: the fleet itself (tests/faults/fleet)."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.errors import SomeTrialsFailed
from tasks.fleet import runner
from tasks.settings.layers import Settings
from tests.support.reports import synthetic

FAILURES = {TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.TIMED_OUT}


@pytest.mark.parametrize("retries_failures", [True, False])
@pytest.mark.parametrize("status", TrialStatus)
def test_a_benchmark_tries_again_whatever_did_not_succeed_and_a_search_what_did_not_end_by_itself(
    status: TrialStatus, retries_failures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, opened = Settings(root=tmp_path), list[Any]()
    run = runner.write_plan(settings.results_folder, synthetic.record(workers=1))
    ledger = Ledger(settings.results_folder / run.run_id / LEDGER_FILE)
    for trial_id in ledger.entries:
        ledger.record_end(trial_id, Outcome(status, reason="it ended"))
    monkeypatch.setattr(runner, "run_trials", lambda _plan, ledger, **_: opened.extend(ledger.open_trials()))
    with contextlib.suppress(SomeTrialsFailed):  # a search goes on without them
        runner.resume(settings, run.run_id, [], plain=True, retries_failures=retries_failures)
    is_done = status is TrialStatus.SUCCEEDED or (status in FAILURES and not retries_failures)
    assert opened == ([] if is_done else [planned.trial_id for planned in run.planned])
