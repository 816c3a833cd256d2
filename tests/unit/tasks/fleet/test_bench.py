"""`inv bench`: flags that are checked before anything starts; trials and workers of a resumed run."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial
from bench.records.paths import LEDGER_FILE, RUN_FILE
from bench.records.run import PlannedTrial
from bench.records.status import Outcome, ReasonCode, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.local import LocalHost
from remote.jobs.job import Agent
from tasks.clients.workers import BenchProgram, bench_program
from tasks.commands import BenchOptions
from tasks.errors import RetryableError, SomeTrialsFailed, UsageError
from tasks.fleet import bench, runner
from tasks.fleet.plan import plan_fleet
from tasks.settings.layers import Settings, load
from tests.support.reports import synthetic


def test_the_flag_workers_limits_the_fleet(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchProgram, "inspect", lambda *_: {})
    for workers, expected in ((None, 4), (3, 3), (4, 4)):
        answer = bench.run_bench(
            context(text="fleet: {size: 4}"), BenchOptions(workers=workers, only="baseline", dry_run=True)
        )
        assert answer is not None
        assert len(answer.data["workers"]) == expected
    with pytest.raises(UsageError, match=r"^bench: --workers: expected a whole number from 1 to fleet\.size, 4, found"):
        bench.run_bench(context(text="fleet: {size: 4}"), BenchOptions(workers=5, dry_run=True))


def test_a_line_break_in_a_trial_file_forges_no_line_of_the_plan(
    context: Callable[..., Context], make_trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial(reason="odd\nforged: \x1b[2J")
    settings = load(context())
    fleet_plan = plan_fleet(settings, synthetic.record((trial,), workers=1), settings.results_folder, [])
    bench._show_plan(fleet_plan, 1)
    assert "odd\\nforged: \\x1b[2J" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"workers": 2}, {"trial_file": "t.json"}])
def test_a_resumed_run_has_the_workers_and_trials_of_its_plan(
    changes: dict[str, Any], context: Callable[..., Context]
) -> None:
    with pytest.raises(UsageError, match=r"^bench: --resume .* --trial-file, .* --workers"):
        bench.run_bench(context(), BenchOptions(resume="r", **changes))


@pytest.mark.parametrize("status", TrialStatus)
def test_a_resumed_run_tries_again_whatever_did_not_succeed(
    status: TrialStatus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, opened = Settings(root=tmp_path), list[Any]()
    run = runner.write_plan(settings.results_folder, synthetic.record(workers=1))
    ledger = Ledger(settings.results_folder / run.run_id / LEDGER_FILE)
    for trial_id in ledger.entries:
        ledger.record_end(trial_id, Outcome(status, reason="it ended"))
    monkeypatch.setattr(runner, "run_trials", lambda _plan, ledger: opened.extend(ledger.open_trials()))
    with contextlib.suppress(SomeTrialsFailed):
        fleet_plan = plan_fleet(settings, run, settings.results_folder / run.run_id, [])
        runner.act(fleet_plan)
    assert opened == ([] if status is TrialStatus.SUCCEEDED else [planned.trial_id for planned in run.planned])


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
    monkeypatch.setattr(runner, "act", lambda plan: names.extend(host.name for host in plan.hosts))
    bench._resume(settings, BenchOptions(resume="r"))
    assert names == ["worker-0", "worker-1", "worker-3"]


@pytest.mark.parametrize(("is_known", "command"), [(True, "inv bench --resume=2-quick"), (False, "inv monitor")])
def test_workers_that_are_busy_with_another_run_are_refused_with_its_name(
    is_known: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = [LocalHost(name=f"worker-{number}", workdir=str(tmp_path)) for number in range(2)]
    holders = {"worker-0": None, "worker-1": "/w/runs/2-quick/baseline.1"}
    monkeypatch.setattr(Agent, "holder", lambda agent, _: holders[agent.host.name])
    if is_known:
        (tmp_path / "2-quick").mkdir()
        (tmp_path / "2-quick" / RUN_FILE).touch()
    with pytest.raises(RetryableError, match=r"^worker-1 .* baseline\.1 of run 2-quick") as refused:
        runner.refuse_busy_workers(tmp_path, bench_program(Settings(root=tmp_path)), hosts)
    assert command in str(refused.value.remedy)
