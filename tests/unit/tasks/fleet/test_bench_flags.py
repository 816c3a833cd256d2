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
