"""Flags of `inv bench` that are checked before anything starts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial
from tasks.commands import BenchOptions
from tasks.errors import UsageError
from tasks.fleet import bench
from tasks.settings.load import load
from tests.support.reports import synthetic


def test_the_flag_workers_limits_the_fleet(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def plan(settings: Any, *_: object) -> tuple[None, list[Any]]:
        sizes.append(settings.fleet.size)
        return None, []

    monkeypatch.setattr(bench, "_plan", plan)
    monkeypatch.setattr(bench, "_plan_answer", lambda *_: None)
    for workers in (None, 3, 4):
        bench.run_bench(context(text="fleet: {size: 4}"), BenchOptions(workers=workers, dry_run=True))
    assert sizes == [4, 3, 4]


def test_a_number_of_workers_that_the_fleet_does_not_have_is_refused(context: Callable[..., Context]) -> None:
    with pytest.raises(UsageError, match=r"^bench: --workers: expected a whole number from 1 to fleet\.size, 4, found"):
        bench.run_bench(context(text="fleet: {size: 4}"), BenchOptions(workers=5, dry_run=True))


def test_a_line_break_in_a_trial_file_forges_no_line_of_the_plan(
    context: Callable[..., Context], make_trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    trial = make_trial(reason="odd\nforged: \x1b[2J")
    settings = load(context())
    bench._plan_answer(settings, replace(synthetic.record((trial,), workers=1), settings=settings.public()))
    assert "odd\\nforged: \\x1b[2J" in capsys.readouterr().out


@pytest.mark.parametrize("changes", [{"workers": 2}, {"trial_file": "t.json"}])
def test_a_resumed_run_has_the_workers_and_trials_of_its_plan(
    changes: dict[str, Any], context: Callable[..., Context]
) -> None:
    with pytest.raises(UsageError, match=r"^bench: --resume .* --trial-file, .* --workers"):
        bench.run_bench(context(), BenchOptions(resume="r", **changes))


def test_a_plan_counts_only_the_trials_that_are_not_reused(
    context: Callable[..., Context], make_trial: Callable[..., Trial], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load(context())
    run = replace(synthetic.record((make_trial(),), workers=3), settings=settings.public())
    first, second, third = run.planned
    sources = {first.trial_id: "old/first", second.trial_id: "old/second"}
    plans = [bench._plan_answer(settings, replace(run, provenance={"reused": reused})).data for reused in ({}, sources)]
    assert [plan["expected_sec"] for plan in plans] == [None, None]
    rows = {row["trial_id"]: (row["expected_sec"], row["reused"]) for row in plans[1]["trials"]}
    assert rows == {
        first.trial_id: (0.0, "old/first"),
        second.trial_id: (0.0, "old/second"),
        third.trial_id: (None, None),
    }
    assert capsys.readouterr().out.count(f"on {third.worker}\n") == 1
    everything = replace(run, provenance={"reused": {**sources, third.trial_id: "old/third"}})
    assert bench._plan_answer(settings, everything).data["expected_sec"] == 0.0
