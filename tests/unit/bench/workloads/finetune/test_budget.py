"""A budget counts the time for which the workers are held; a limit in hours counts the training's own time."""

import dataclasses

import pytest

from bench.records.paths import HELD_VARIABLE
from bench.workloads.finetune.resume import max_training_sec
from tests.support.reports.training_run import TRIAL


@pytest.mark.parametrize(
    ("limited_by", "held", "expected"),
    [
        ("train.budget_usd", "600.5", 3399.5),
        ("train.budget_usd", "300", 3600.0),  # a checkpoint of another machine's clock
        ("train.budget_usd", None, 3600.0),
        ("train.budget_usd", "nan", 3600.0),
        ("train.budget_usd", "soon", 3600.0),
        ("train.max_hours", "600.5", 3600.0),
    ],
)
def test_a_budget_counts_waits_for_lost_workers(limited_by: str, held: str | None, expected: float) -> None:
    assert TRIAL.training is not None
    training = dataclasses.replace(TRIAL.training, max_hours=1.0, limited_by=limited_by)
    environment = {} if held is None else {HELD_VARIABLE: held}
    assert max_training_sec(training, 400.0, environment) == expected
    assert max_training_sec(TRIAL.training, 400.0, environment) == float("inf")
