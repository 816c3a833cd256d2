"""The learning rate as a function of the step's number."""

import pytest

from bench.records.training import SCHEDULES, Training, TrainingData
from bench.workloads.finetune.steps import learning_rate_factor

DATA = TrainingData(files=["d"], weights=[1.0], max_seq_len=8)


def rates(schedule: str, steps: int, warmup: float = 0.0) -> list[float]:
    training = Training(data=DATA, rows_per_step=1, schedule=schedule, warmup_share=warmup)
    return [learning_rate_factor(training, step, steps) for step in range(1, steps + 1)]


def test_each_schedule_has_its_curve():
    assert rates("constant", 4) == [1.0] * 4
    assert rates("linear", 4) == [1.0, 0.75, 0.5, 0.25]
    assert rates("cosine", 4) == pytest.approx([1.0, 0.8535534, 0.5, 0.1464466])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warm_up_is_linear_up_to_the_peak(schedule):
    assert rates(schedule, 10, 0.3)[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("warmup", [0.0, 0.03, 0.9])
def test_no_step_is_without_a_rate_and_none_is_above_the_peak(schedule, steps, warmup):
    assert all(0.0 < rate <= 1.0 for rate in rates(schedule, steps, warmup))
