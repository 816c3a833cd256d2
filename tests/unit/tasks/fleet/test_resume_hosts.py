"""Workers of a resumed run when the fleet is smaller now: those that still run a trial are kept."""

from collections.abc import Callable
from pathlib import Path

import pytest
from invoke.context import Context

from bench.records import Trial
from bench.records.paths import LEDGER_FILE
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from tasks.commands import BenchOptions
from tasks.fleet import bench, runner
from tasks.settings.layers import load
from tests.support.reports import synthetic


def test_a_worker_beyond_the_fleet_is_kept_while_it_runs_a_trial(
    context: Callable[..., Context], make_trial: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(context(text="fleet: {size: 2}"))
    workers = [f"worker-{index}" for index in range(5)]
    planned = [PlannedTrial(trial_id=name, trial=make_trial(), worker=name) for name in workers]
    folder: Path = settings.results_folder / "r"
    folder.mkdir(parents=True)
    synthetic.record(run_id="r", suite="quick", workers=workers, planned=planned).write(folder)
    ledger = Ledger.create(folder / LEDGER_FILE, workers)
    for name in workers[1:]:
        ledger.record_start(name, 1, name, "/job")
    ledger.record_end("worker-2", Outcome(TrialStatus.SUCCEEDED), 1)
    ledger.record_retry("worker-4", 1, Outcome.of(ReasonCode.WORKER_LOST, "its worker is gone"))
    names: list[str] = []
    monkeypatch.setattr(runner, "act", lambda plan, **_: names.extend(host.name for host in plan.hosts))
    bench._resume(settings, BenchOptions(resume="r", plain=True))
    assert names == ["worker-0", "worker-1", "worker-3"]
