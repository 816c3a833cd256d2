"""`inv cancel` reports what it could not stop. Not covered: the fleet itself (tests/faults/fleet)."""

import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.records.paths import LEDGER_FILE
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.errors import RetryableError
from tasks.fleet import bench

RUN = "20261122-080000-quick"


@pytest.mark.parametrize(
    ("outcome", "printed", "error"),
    [
        (Outcome.of(ReasonCode.CANCELLED, ""), f"run {RUN}: cancelled; `inv bench --resume={RUN}`", None),
        (Outcome(TrialStatus.SUCCEEDED), f"run {RUN}: nothing to cancel: 1 of 1 succeeded; ", None),
        (Outcome.of(ReasonCode.CANCEL_UNCONFIRMED, "no route"), "", r"\b1 trial\b.*no route.*`inv cancel --run="),
    ],
)
def test_a_cancelled_run_is_called_what_it_is(
    outcome: Outcome,
    printed: str,
    error: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fleet(_plan, ledger):
        ledger.record_start("baseline", 1, "worker-0", "/w/baseline.1")
        yield SimpleNamespace(stop=lambda: None, run=lambda: ledger.record_end("baseline", outcome, 1))

    run = SimpleNamespace(run_id=RUN, suite="quick", planned=[SimpleNamespace(trial_id="baseline")])
    monkeypatch.setattr(bench, "load", lambda _: SimpleNamespace(results_folder=tmp_path))
    monkeypatch.setattr(bench, "open_run", lambda *_: (run, tmp_path))
    monkeypatch.setattr(bench, "run_hosts", lambda *_: [])
    monkeypatch.setattr(bench.plan, "plan_fleet", lambda *_: None)
    monkeypatch.setattr(bench.runner, "make_fleets", fleet)
    with pytest.raises(RetryableError, match=error) if error else contextlib.nullcontext():
        bench.cancel_run(SimpleNamespace(), None)  # type: ignore[arg-type]
    assert Ledger(tmp_path / LEDGER_FILE).entries["baseline"].status is outcome.status
    assert capsys.readouterr().out.startswith(printed)
