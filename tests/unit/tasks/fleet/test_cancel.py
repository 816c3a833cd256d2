"""`inv cancel` reports what it could not stop. Not covered: the fleet itself (tests/faults/fleet)."""

from types import SimpleNamespace

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.errors import RetryableError
from tasks.fleet import bench


@pytest.fixture
def cancel(monkeypatch, tmp_path):
    def run(code: ReasonCode) -> None:
        planned = [SimpleNamespace(trial_id="baseline")]
        run = SimpleNamespace(run_id="20261122-080000-quick", planned=planned, provenance={})

        def fleet(_settings, _run, _folder, ledger, *_):
            ledger.record_start("baseline", 1, "worker-0", "/w/baseline.1")
            end = ("baseline", Outcome.of(code, "no route to host"), 1)
            yield SimpleNamespace(stop=lambda: None, run=lambda: ledger.record_end(*end))

        monkeypatch.setattr(bench, "load", lambda _: SimpleNamespace(results_folder=tmp_path))
        monkeypatch.setattr(bench, "open_run", lambda *_: (run, tmp_path))
        monkeypatch.setattr(bench, "run_hosts", lambda *_: [])
        monkeypatch.setattr(bench.runner, "make_fleets", fleet)
        bench.cancel_run(SimpleNamespace(), None)  # type: ignore[arg-type]
        assert Ledger(tmp_path / LEDGER_FILE).entries["baseline"].status is TrialStatus.CANCELLED

    return run


def test_a_trial_that_was_stopped_is_cancelled(cancel, capsys):
    cancel(ReasonCode.CANCELLED)
    assert "`inv bench --resume=20261122-080000-quick`" in capsys.readouterr().out


def test_an_unreachable_worker_is_not_a_success(cancel):
    with pytest.raises(RetryableError, match=r"\b1 trial\b.*no route.*`inv bench --resume=.*`inv cancel --run="):
        cancel(ReasonCode.CANCEL_UNCONFIRMED)
