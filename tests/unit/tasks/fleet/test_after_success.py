"""`fleet.after_success: teardown`: torn down after a collected success only, by the code of `inv teardown`."""

import dataclasses
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from invoke import Context

from bench.records.paths import LEDGER_FILE, QUALITY_FILE
from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import HostError
from remote.hosts.local import LocalHost
from tasks.cluster import deploy
from tasks.commands import BenchOptions
from tasks.errors import ConfirmationRequired, RetryableError, SomeTrialsFailed, TaskFailed, UsageError
from tasks.fleet import bench, collect, plan, runner
from tasks.settings.layers import load
from tests.support.reports import synthetic

Make = Callable[..., Context]
PODS = "fleet: {kind: pods, size: 1, after_success: teardown}"


class GoneHost(LocalHost):
    """Worker that does not answer: what is here was collected before."""

    def run(self, *_: object, **__: object) -> NoReturn:
        raise HostError("worker-0: gone")


class Bench:
    """`inv bench` whose trials end as they are told to; `teardowns` are the calls of `inv teardown`."""

    def __init__(self, make: Make) -> None:
        self.folder, self.make = load(make()).results_folder / "r", make
        self.run = synthetic.write_run(
            self.folder, dataclasses.replace(synthetic.record(run_id="r", workers=1), settings=load(make()).public())
        )
        self.failure: TaskFailed | None = None
        self.teardowns: list[dict[str, bool]] = []

    def act(self, *_: object, **__: object) -> None:
        if self.failure is not None:
            raise self.failure

    def inv(self, *, text: str = PODS, **options: Any) -> Any:
        return bench.run_bench(self.make(text=text), BenchOptions(only="baseline", **options))


@pytest.fixture
def benching(context: Make, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(context)
    ledger = Ledger.create(made.folder / LEDGER_FILE, [planned.trial_id for planned in made.run.planned])
    for planned in made.run.planned:
        ledger.record_start(planned.trial_id, 1, "worker-0", f"/gone/{planned.trial_id}")
        ledger.record_end(planned.trial_id, Outcome(TrialStatus.SUCCEEDED), 1)
    collect._write_checksums(made.folder)
    hosts = [GoneHost(name="worker-0", workdir="/gone")]
    monkeypatch.setattr(bench, "fleet_hosts", lambda _: hosts)
    monkeypatch.setattr(bench, "inspect", lambda *_: {})
    monkeypatch.setattr(plan, "cluster_location", lambda _: {})
    monkeypatch.setattr(plan, "resolve_target", lambda _: None)
    monkeypatch.setattr(runner, "refuse_busy_workers", lambda *_: None)
    monkeypatch.setattr(runner, "write_plan", lambda *_: made.run)
    monkeypatch.setattr(runner, "act", made.act)
    monkeypatch.setattr(bench, "resolve_target", lambda _: None)
    monkeypatch.setattr(bench, "confirm_production", lambda *_, **__: None)
    monkeypatch.setattr(deploy, "delete_fleet", lambda _context, **flags: made.teardowns.append(flags))
    return made


def test_a_success_that_was_collected_is_torn_down(benching: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    benching.inv()
    assert benching.teardowns == [{"dry_run": False, "yes": True, "discard_results": False}]
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("fleet.after_success: ")]) == 1
    benching.inv(text="fleet: {kind: pods, size: 1}")
    assert len(benching.teardowns) == 1


def test_a_failed_trial_keeps_the_fleet(benching: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    benching.failure = SomeTrialsFailed("run r: 1 OUT_OF_MEMORY of 2")
    with pytest.raises(SomeTrialsFailed):
        benching.inv()
    assert benching.teardowns == []
    assert "nothing is torn down: run r: 1 OUT_OF_MEMORY of 2\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "error"),
    [("absent", RetryableError), ("changed", RetryableError), ("quality", ConfirmationRequired)],
)
def test_what_was_not_collected_keeps_the_fleet(
    fault: str, error: type[TaskFailed], benching: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    result = benching.folder / "trials" / benching.run.planned[0].trial_id / "result.json"
    if fault == "absent":
        result.unlink()
    elif fault == "changed":
        result.write_text(result.read_text() + " ")
    else:
        (benching.folder / QUALITY_FILE).write_text("{")
    with pytest.raises(error):
        benching.inv()
    assert benching.teardowns == []
    assert "nothing is torn down: " in capsys.readouterr().out


def test_a_dry_run_shows_the_teardown_and_makes_none(benching: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert benching.inv(dry_run=True).data["after_success"] == "teardown"
    assert "`inv teardown`" in capsys.readouterr().out
    assert benching.teardowns == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_local_fleet_has_nothing_to_tear_down(dry_run: bool, context: Make) -> None:
    with pytest.raises(UsageError, match=r"^fleet\.after_success: teardown: fleet\.kind is local"):
        bench.run_bench(context(text="fleet: {after_success: teardown}"), BenchOptions(dry_run=dry_run))


def test_a_cluster_that_looks_like_production_is_confirmed_before_the_run(
    benching: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, yes: bool) -> None:
        if not yes:
            raise ConfirmationRequired("it looks like production")

    monkeypatch.setattr(bench, "confirm_production", refuse)
    monkeypatch.setattr(runner, "act", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(ConfirmationRequired):
        benching.inv()
    monkeypatch.setattr(runner, "act", benching.act)
    benching.inv(yes=True)
    assert len(benching.teardowns) == 1
