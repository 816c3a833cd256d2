"""Exports of runs. In tests/integration/reports/exports, the other tools read them."""

import dataclasses
import hashlib
import json
import struct
from importlib.util import find_spec

import pytest

from bench.records.paths import STEPS_FILE
from reports.exports import export, log_model
from reports.exports.log_model import read_logged_runs
from reports.read.loaded_run import ReportError, ReportWriteError
from tests.support.reports import synthetic, training_run


@pytest.fixture
def bench(tmp_path):
    synthetic.write_run(tmp_path / "bench", synthetic.record(workers=1))
    return tmp_path / "bench"


@pytest.fixture
def trained(tmp_path):
    return training_run.write_run(tmp_path / "trained")


needs_tensorboard = pytest.mark.skipif(find_spec("tensorboard") is None, reason="tensorboard is not installed")


def event_file(folder, name):
    (path,) = (folder / "report" / "tensorboard" / name).iterdir()
    return path


def count_records(content):
    """Count the records of an event file: length, its checksum, body, its checksum."""
    count, offset = 0, 0
    while offset < len(content):
        (length,) = struct.unpack("<Q", content[offset : offset + 8])
        count, offset = count + 1, offset + 16 + length
    return count


def write_partial_steps(folder, *lines):
    """Make the training one in progress: replace its training.json by measured lines."""
    trial_folder = folder / "trials" / "train"
    (trial_folder / "training.json").unlink(missing_ok=True)
    (trial_folder / STEPS_FILE).write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )


def step_line(number, **changed):
    amounts = {"targets": 5, "tokens": 10, "samples": 1, "step_time_sec": 2.0}
    return {"step": number, "loss": 2.0 / number, "learning_rate": 0.1, "gradient_norm": 1.0, **amounts, **changed}


HELD_OUT = {"step": 0, "loss": 2.5, "low": 2.4, "high": 2.6, "rows": 9, "targets": 50, "is_best": False}


def test_every_trial_has_its_settings_its_steps_and_its_end(bench):
    first, *_ = read_logged_runs(bench)
    assert (first.run_id, first.name, first.configuration) == (synthetic.RUN_ID, "baseline.worker-1", "baseline")
    assert (first.worker, first.status) == ("worker-1", "SUCCEEDED")
    assert first.settings["lora_rank"] == 16
    assert [point.step for point in first.points] == list(range(1, 19))
    assert [point.phase for point in first.points] == ["warmup"] * 3 + ["train"] * 15
    assert {"step_time_sec", "peak_rss_bytes", "samples_per_sec"} <= first.results.keys()


def test_a_trainings_held_out_losses_come_after_the_steps_they_were_measured_at(trained):
    (training,) = read_logged_runs(trained)
    assert [(point.step, point.phase) for point in training.points] == [
        *((0, "held_out"), (1, "train")),
        *((2, "train"), (2, "held_out")),
    ]
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


@needs_tensorboard
def test_new_steps_are_appended_to_the_event_file_and_a_truncated_one_is_completed(trained):
    write_partial_steps(trained, {"evaluation": HELD_OUT}, step_line(1))
    export(trained, ["tensorboard"])
    path = event_file(trained, "train")
    inode, before = path.stat().st_ino, path.read_bytes()
    write_partial_steps(trained, {"evaluation": HELD_OUT}, step_line(1), step_line(2))
    export(trained, ["tensorboard"])
    assert path.stat().st_ino == inode
    assert path.read_bytes().startswith(before)
    assert count_records(path.read_bytes()) == count_records(before) + 1
    complete = path.read_bytes()
    path.write_bytes(complete[:-7])
    export(trained, ["tensorboard"])
    assert path.read_bytes() == complete


@needs_tensorboard
def test_steps_that_a_restart_repeats_come_in_a_new_file(trained):
    write_partial_steps(trained, step_line(1), step_line(2))
    export(trained, ["tensorboard"])
    before = event_file(trained, "train")
    write_partial_steps(trained, step_line(1), step_line(2, step_time_sec=3.0))
    export(trained, ["tensorboard"])
    assert before.suffix == ".000001"
    assert event_file(trained, "train").suffix == ".000002"


def test_truncated_and_foreign_lines_of_steps_are_skipped(trained):
    write_partial_steps(
        trained, step_line(1), "[]\n", "null\n", step_line(2, loss="x"), step_line(3), json.dumps(step_line(4))[:-9]
    )
    (training,) = read_logged_runs(trained)
    assert [point.step for point in training.points] == [1, 3]
    assert training.status is None


@needs_tensorboard
def test_tensorboard_has_the_settings_before_the_first_step_and_no_value_too_large_for_it(trained):
    write_partial_steps(trained)
    export(trained, ["tensorboard"])
    assert count_records(event_file(trained, "train").read_bytes()) == 3
    write_partial_steps(trained, step_line(1, loss=1e308, step_time_sec=1e30))
    assert read_logged_runs(trained)[0].points[-1].time < 2**32
    export(trained, ["tensorboard"])
    content = event_file(trained, "train").read_bytes()
    assert b"train/step_time_sec" in content
    assert b"train/loss" not in content


def test_measurements_of_other_workloads_are_final_values_whose_names_stay_in_their_folder(tmp_path):
    run = synthetic.record((synthetic.trial("gpu", kind="hardware"),), workers=1)
    hostile = synthetic.measurement("../../x_sec", 1.0, where="../" * 90)
    synthetic.write_run(tmp_path, run)
    measurements = [synthetic.measurement("matmul_tflops", 90.0, dtype="bf16", size=8192), hostile]
    synthetic.rewrite(tmp_path, run.planned[0], measurements=measurements)
    (trial,) = read_logged_runs(tmp_path)
    assert trial.results["measured/matmul_tflops.dtype_bf16.size_8192"] == 90.0
    assert all(name.count("/") <= 1 and ".." not in name for name in trial.results)


@needs_tensorboard
def test_errors_name_an_invalid_run_and_a_folder_that_cannot_be_written(trained):
    (trained / "report").write_text("no folder")
    with pytest.raises(ReportWriteError, match=r"report\b.*File exists"):
        export(trained, ["tensorboard"])
    (trained / "run.json").write_text("{")
    with pytest.raises(ReportError, match=r"run\.json"):
        export(trained, ["tensorboard"])
