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
    def run(outcome: Outcome) -> None:
        planned = [SimpleNamespace(trial_id="baseline")]
        run = SimpleNamespace(run_id="20261122-080000-quick", suite="quick", planned=planned)

        def fleet(_plan, ledger):
            ledger.record_start("baseline", 1, "worker-0", "/w/baseline.1")
            end = ("baseline", outcome, 1)
            yield SimpleNamespace(stop=lambda: None, run=lambda: ledger.record_end(*end))

        settings = SimpleNamespace(results_folder=tmp_path)
        monkeypatch.setattr(bench, "load", lambda _: settings)
        monkeypatch.setattr(bench, "open_run", lambda *_: (run, tmp_path))
        monkeypatch.setattr(bench, "run_hosts", lambda *_: [])
        monkeypatch.setattr(bench.plan, "plan_fleet", lambda *_: None)
        monkeypatch.setattr(bench.runner, "make_fleets", fleet)
        bench.cancel_run(SimpleNamespace(), None)  # type: ignore[arg-type]
        assert Ledger(tmp_path / LEDGER_FILE).entries["baseline"].status is outcome.status

    return run


def test_a_trial_that_was_stopped_is_cancelled(cancel, capsys):
    cancel(Outcome.of(ReasonCode.CANCELLED, ""))
    assert "`inv bench --resume=20261122-080000-quick`" in capsys.readouterr().out


def test_a_trial_that_had_succeeded_is_not_called_cancelled(cancel, capsys):
    cancel(Outcome(TrialStatus.SUCCEEDED))
    assert capsys.readouterr().out.startswith("run 20261122-080000-quick: nothing to cancel: 1 of 1 succeeded; ")


def test_an_unreachable_worker_is_not_a_success(cancel):
    with pytest.raises(RetryableError, match=r"\b1 trial\b.*no route.*`inv bench --resume=.*`inv cancel --run="):
        cancel(Outcome.of(ReasonCode.CANCEL_UNCONFIRMED, "no route to host"))
