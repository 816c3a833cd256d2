"""The forecast of hours from an earlier run's steps. The worker's answer is made here, the results are files."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest

from bench.records import Trial, schema
from remote.hosts.local import LocalHost
from tasks.fleet import trial_spec
from tasks.settings.load import Settings
from tasks.settings.schema import CostSection
from tasks.train import forecast as forecast_module
from tests.support.reports import synthetic, training_run
from tests.unit.tasks.train import test_check
from tests.unit.tasks.train.conftest import MakeSettings

SLOW, STEPS, ROWS = 0.5, 40, 4  # seconds of one slow step; steps and rows a step of the training


@pytest.fixture
def trial(settings: Callable[..., Settings]) -> Trial:
    return trial_spec.make_trial(settings(max_steps=STEPS, rows_per_step=ROWS), None, workers=1, max_hours=None)


def make_probe(**fields: Any) -> forecast_module.ProbeResult:
    probe = test_check.make_probe(**fields)
    return dataclasses.replace(probe, data=dataclasses.replace(probe.data, rows=1000))


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
    assert predicted.step_sec is not None
    assert math.isclose(predicted.step_sec, ROWS * 0.12 - (ROWS - 1) * 0.02, rel_tol=1e-6)


def test_the_trial_and_the_forecast_name_the_limit_that_is_reached_first(settings: MakeSettings) -> None:
    priced = settings(max_steps=STEPS, rows_per_step=ROWS, budget_usd=3.0, max_hours=5.0)
    priced = dataclasses.replace(priced, cost=CostSection(price_usd_per_gpu_hour=2.0, price_source="a quote"))
    trial = forecast_module.cap_steps(priced, trial_spec.make_trial(priced, None, workers=1, max_hours=5.0), "")
    assert trial.training is not None
    assert (trial.training.max_hours, trial.training.limited_by) == (1.5, "train.budget_usd")
    assert forecast_module.predict(priced, trial, make_probe()).limiting_setting == "train.budget_usd"


def test_the_steps_are_those_that_the_worker_counted_in_the_order_of_training(
    settings: MakeSettings, trial: Trial
) -> None:
    assert forecast_module.predict(settings(), trial, make_probe()).steps == STEPS
    assert forecast_module.predict(settings(), trial, make_probe(steps=25)).steps == 25


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


def test_the_plan_has_the_digest_of_every_input(trial: Trial) -> None:
    probe = make_probe()
    pinned = forecast_module.pin_inputs(trial, probe).training
    assert pinned is not None
    files = {file.path: file.sha256 for file in probe.data.files}
    assert pinned.input_digests == {trial.model: probe.forecast.model_sha256, **files}
    assert files


def test_workers_are_probed_without_the_planned_digests(
    settings: MakeSettings, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would reject changed data that the operator is about to confirm."""
    probe, probed = make_probe(), list[Trial]()

    def reply(_settings: Settings, _hosts: object, probed_trial: Trial) -> list[object]:
        probed.append(probed_trial)
        return [schema.to_json(dataclasses.replace(probe.forecast, data=probe.data))]

    monkeypatch.setattr(forecast_module, "forecast", reply)
    host = LocalHost(name="worker-0", workdir=str(settings().results_folder))
    forecast_module.probe_workers(settings(), [host], forecast_module.pin_inputs(trial, probe))
    assert probed == [trial]
