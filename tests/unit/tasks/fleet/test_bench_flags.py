"""Flags of `inv bench` that are checked before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial
from tasks.clients.workers import BenchProgram
from tasks.commands import BenchOptions
from tasks.errors import UsageError
from tasks.fleet import bench
from tasks.fleet.plan import plan_fleet
from tasks.settings.layers import load
from tests.support.reports import synthetic


def test_the_flag_workers_limits_the_fleet(context: Callable[..., Context], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BenchProgram, "inspect", lambda *_: {})
    for workers, expected in ((None, 4), (3, 3), (4, 4)):
        answer = bench.run_bench(
            context(text="fleet: {size: 4}"), BenchOptions(workers=workers, only="baseline", dry_run=True)
        )
        assert answer is not None
        assert len(answer.data["workers"]) == expected


def test_a_number_of_workers_that_the_fleet_does_not_have_is_refused(context: Callable[..., Context]) -> None:
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
