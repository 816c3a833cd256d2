"""Exports of runs. In tests/integration/reports/exports, the other tools read them."""

import dataclasses
import hashlib

import pytest

from reports.exports import log_model
from reports.exports.log_model import read_logged_runs
from tests.support.reports import synthetic, training_run


@pytest.fixture
def bench(tmp_path):
    synthetic.write_run(tmp_path / "bench", synthetic.record(workers=1))
    return tmp_path / "bench"


@pytest.fixture
def trained(tmp_path):
    return training_run.write_run(tmp_path / "trained")


def test_every_trial_has_its_settings_its_steps_and_its_end(bench):
    first, *_ = read_logged_runs(bench)
    assert (first.run_id, first.name, first.configuration) == (synthetic.RUN_ID, "baseline.worker-1", "baseline")
    assert (first.worker, first.status) == ("worker-1", "SUCCEEDED")
    assert first.settings["lora_rank"] == 16
    assert [point.step for point in first.points] == list(range(1, 19))
    assert ["train/loss" in point.values for point in first.points] == [False] * 3 + [True] * 15
    assert {"step_time_sec", "peak_rss_bytes", "samples_per_sec"} <= first.results.keys()


def test_a_trainings_held_out_losses_are_at_the_steps_they_were_measured_after(trained):
    (training,) = read_logged_runs(trained)
    losses = [
        (point.step, point.values.get("train/loss"), point.values.get("held_out/loss")) for point in training.points
    ]
    assert losses == [(0, None, 2.0), (1, 2.0, None), (2, 1.0, 1.5)]
    assert training.results["held_out_loss"] == 1.5
    assert training.results["usd"] == pytest.approx(4.0)
    assert training.settings["training.data.max_seq_len"] == 64


def test_a_long_chat_template_is_exported_as_its_digest():
    trial = training_run.TRIAL
    data = dataclasses.replace(trial.training.data, chat_template="{{ messages }}" * 9999)
    settings = log_model._flatten_settings(
        dataclasses.replace(trial, training=dataclasses.replace(trial.training, data=data))
    )
    digest = hashlib.sha256(data.chat_template.encode()).hexdigest()
    assert settings["training.data.chat_template_sha256"] == digest
    assert all(len(str(value)) < 1000 for value in settings.values())


def test_measurements_of_other_workloads_are_final_values_whose_names_stay_in_their_folder(tmp_path):
    run = synthetic.record((synthetic.trial("gpu", kind="hardware"),), workers=1)
    hostile = synthetic.measurement("../../x_sec", 1.0, where="../" * 90)
    synthetic.write_run(tmp_path, run)
    measurements = [synthetic.measurement("matmul_tflops", 90.0, dtype="bf16", size=8192), hostile]
    synthetic.rewrite(tmp_path, run.planned[0], measurements=measurements)
    (trial,) = read_logged_runs(tmp_path)
    assert trial.results["measured/matmul_tflops.dtype_bf16.size_8192"] == 90.0
    assert all(name.count("/") <= 1 and ".." not in name for name in trial.results)
