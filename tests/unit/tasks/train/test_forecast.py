"""The forecast of hours from an earlier run's steps. The worker's answer is made here, the results are files."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from bench.records import Trial, schema
from bench.records.run import Progress
from bench.records.score import TrainingTime
from remote.hosts.local import LocalHost
from reports.training.training_facts import CHECKPOINTS, EVALUATIONS, START
from tasks.clients.workers import BenchProgram
from tasks.fleet import trial_spec
from tasks.fleet.training_progress import StepPace
from tasks.settings.layers import Settings
from tasks.train import forecast as forecast_module
from tests.support.reports import synthetic, training_run
from tests.unit.tasks.train import test_check
from tests.unit.tasks.train.conftest import MakeSettings

SLOW, STEPS, ROWS = 0.5, 40, 4  # seconds of one slow step; steps and rows a step of the training


@pytest.fixture
def trial(settings: Callable[..., Settings]) -> Trial:
    return trial_spec.make_trial(settings(max_steps=STEPS, rows_per_step=ROWS), 1)


def make_probe(**fields: Any) -> forecast_module.ProbeResult:
    data = dataclasses.replace(test_check.REPORT, rows=1000)
    return test_check.make_probe(**{"steps": STEPS, "data": data} | fields)


def write_measured_run(settings: Settings, trial: Trial, **changed: Any) -> None:
    """A run with one process that measured this configuration, a row a step: 0.1 s each, and one slow step."""
    measured_trial = dataclasses.replace(trial, kind="training", name="same", training=None, measured_steps=20)
    (plan,) = synthetic.planned((measured_trial,), ["worker-0"])
    steps = synthetic.measured_steps(measured_trial, 20, step_time_sec=0.1, exact=True)
    steps.step_time_sec[7] = SLOW
    result = dataclasses.replace(synthetic.result(plan, run_id="1-trials"), steps=steps, **changed)
    synthetic.write_result(settings.results_folder / "1-trials", result)


def test_hours_are_the_sum_of_all_steps_so_slow_ones_count(settings: Callable[..., Settings], trial: Trial) -> None:
    write_measured_run(settings(), trial, measurements=[])
    (settings().results_folder / "latest").symlink_to("1-trials")  # which counts once
    predicted = forecast_module.predict(settings(), trial, make_probe())
    assert predicted.seconds is not None
    assert math.isclose(predicted.seconds.value, STEPS * ROWS * (19 * 0.1 + SLOW) / 20, rel_tol=1e-6)
    assert predicted.basis.startswith("from 20 steps measured on CPU (run 1-trials)")


def test_rows_of_one_step_share_its_optimizer_step(settings: Callable[..., Settings], trial: Trial) -> None:
    write_measured_run(settings(), trial, measurements=[synthetic.measurement("step_optimizer_sec", 0.02)])
    predicted = forecast_module.predict(settings(), trial, make_probe())
    assert predicted.seconds is not None
    assert math.isclose(predicted.seconds.value, STEPS * (ROWS * 0.12 - (ROWS - 1) * 0.02), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("change", "is_used"),
    [({}, True), ({"seed": 7}, True), ({"max_seq_len": 128}, False), ({"world_size": 2}, False)],
)
def test_hours_come_from_the_same_training(
    settings: MakeSettings, trial: Trial, change: dict[str, Any], is_used: bool
) -> None:
    trained = dataclasses.replace(trial, **change)
    folder = settings().results_folder / "20260101-000000-train"
    (plan,) = synthetic.planned((trained,), ["worker-0"])
    synthetic.write_result(folder, synthetic.result(plan, run_id=folder.name))
    dataclasses.replace(training_run.RECORD, run_id=folder.name).write(folder / "trials" / plan.trial_id)
    predicted = forecast_module.predict(settings(), trial, make_probe())
    assert (predicted.seconds is not None) == is_used
    if predicted.seconds is not None:
        assert math.isclose(predicted.seconds.value, STEPS * 1800.0)
        assert folder.name in predicted.basis


def write_training(settings: Settings, trial: Trial, steps: list[float], *, wall_sec: float, number: int = 1) -> None:
    """A training of these steps, one evaluation of ten examples in 2 s, and the rest of `wall_sec` for its start."""
    folder = settings.results_folder / f"2026010{number}-000000-train"
    (plan,) = synthetic.planned((trial,), ["worker-0"])
    synthetic.write_result(folder, synthetic.result(plan, run_id=folder.name, wall_time_sec=wall_sec))
    evaluation = dataclasses.replace(training_run.RECORD.evaluations[0], rows=10)
    done = dataclasses.replace(training_run.RECORD.steps, step_time_sec=steps)
    time = TrainingTime(loading_sec=1.0, evaluation_sec=2.0)
    record = dataclasses.replace(training_run.RECORD, run_id=folder.name, evaluations=[evaluation], restarts=[])
    dataclasses.replace(record, steps=done, time=time).write(folder / "trials" / plan.trial_id)


def test_start_up_and_evaluations_are_those_of_earlier_trainings_and_scale_with_what_is_held_out(
    settings: MakeSettings, trial: Trial
) -> None:
    assert forecast_module.predict(settings(), trial, make_probe()).parts == {START: forecast_module.STARTUP}
    write_training(settings(), trial, [3.0] + 9 * [1.0], wall_sec=12.0 + 2.0 + 7.0)
    probe = make_probe()
    held_out = dataclasses.replace(probe, data=dataclasses.replace(probe.data, validation_examples=30))
    predicted = forecast_module.predict(settings(), trial, held_out)
    assert predicted.seconds is not None
    assert math.isclose(predicted.seconds.value, STEPS * 1.0)  # the slow first step counts in one window of five
    parts = {name: part.value for name, part in predicted.parts.items()}
    assert parts == pytest.approx({START: 7.0, EVALUATIONS: 2 * 30 * 0.2, CHECKPOINTS: 0.0}, abs=0.01)
    assert predicted.total is not None
    assert math.isclose(predicted.total.value, predicted.seconds.value + predicted.other.value)
    assert predicted.total.low > predicted.seconds.low + predicted.other.low  # not all of them are as short at once
    assert "from 10 steps trained on CPU (run 20260101-000000-train)" in predicted.basis
    limited = dataclasses.replace(predicted, max_hours=39.0 / 3600.0)
    assert limited.steps_within_limit == STEPS * (39 - 19.001) // 40


def test_the_interval_is_of_the_next_training_and_shrinks_with_equal_ones() -> None:
    def width(values: list[float]) -> float:
        amount = forecast_module._next_value(values, 0.1)
        assert amount.low is not None
        assert math.isclose(amount.value / amount.low, (amount.high or 0.0) / amount.value)
        return amount.value / amount.low

    assert width([4.0, 4.0, 4.0]) < width([4.0]) < width([2.0, 4.0, 8.0])
    assert forecast_module._next_value([1.0, 2.0, 40.0], 0.1).value == 2.0


def test_the_time_left_is_that_of_this_attempts_steps_without_its_start() -> None:
    pace = StepPace()

    def left(attempt: int, step: int, elapsed_sec: float) -> float | None:
        pace.update(attempt, Progress(phase="train", step=step, steps=100, elapsed_sec=elapsed_sec))
        return pace.remaining_sec

    assert [left(1, 0, 1.0), left(1, 1, 60.0), left(1, 3, 64.0)] == [None, None, 97 * 2.0]
    assert left(1, 4, 100.0) == 96 * 19.0  # with an evaluation; the median of two
    assert left(1, 5, 102.0) == 95 * 2.0
    assert left(1, 5, 150.0) == 95 * 2.0  # nothing new
    assert [left(2, 4, 1.0), left(2, 6, 90.0), left(2, 8, 94.0)] == [None, None, 92 * 2.0]
    assert left(2, 100, 300.0) is None


def test_workers_are_probed_without_the_planned_digests(
    settings: MakeSettings, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would reject changed data that the operator is about to confirm."""
    probe, probed = make_probe(), list[Trial]()

    def reply(_program: object, _host: object, probed_trial: Trial) -> object:
        probed.append(probed_trial)
        return schema.to_json(probe)

    monkeypatch.setattr(BenchProgram, "forecast", reply)
    host = LocalHost(name="worker-0", workdir=str(settings().results_folder))
    forecast_module.probe_worker(settings(), host, forecast_module.pin_inputs(trial, probe))
    assert probed == [trial]
