"""History of a results folder: series, changed conditions, steps, and runs that cannot be read."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np

from bench.records.paths import ENVIRONMENT_FILE, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from reports.history.page import headline
from reports.history.series import find_steps, read_history
from tests.support.reports import history, synthetic, training_run


def test_a_step_is_found_at_the_run_whose_driver_changed(tmp_path: Path) -> None:
    history.write_history(tmp_path)
    read = read_history(tmp_path)
    series = {each.name: each for each in read.series}
    assert [len(series[name].points) for name in ("baseline", "optimized", "m")] == [history.RUNS, history.RUNS, 1]
    (step,) = series["baseline"].steps
    assert step is series["baseline"].points[history.CHANGED]
    assert -16.0 < (step.step_percent or 0.0) < -10.0
    assert step.changes == (f"driver: {history.BEFORE} to {history.AFTER}",)
    assert not series["optimized"].steps
    assert step.run_id in headline(read)


def test_equal_runs_have_no_step(tmp_path: Path) -> None:
    collected = history.write_benchmarks(tmp_path, changed=history.RUNS)[2]
    environment = json.dumps({"kind": "environment", "packages": {"a": "1"}})
    for trial in (collected / TRIALS_FOLDER).iterdir():
        (trial / ENVIRONMENT_FILE).write_text(environment)
    read = read_history(tmp_path)
    assert not [step for series in read.series for step in series.steps]
    assert not [change for series in read.series for point in series.points for change in point.changes]


def test_false_steps_are_rare_and_true_ones_found() -> None:
    random = np.random.default_rng(1)
    equal = [random.normal(0.0, 0.01, 10) for _ in range(200)]
    assert sum(bool(list(find_steps(logs.tolist()))) for logs in equal) <= 12
    slower = [logs - 0.05 * (np.arange(10) >= 6) for logs in equal]
    assert sum(6 in dict(find_steps(logs.tolist())) for logs in slower) >= 170
    assert not [steps for value in equal[0] for count in range(4, 20) if (steps := list(find_steps([value] * count)))]


def test_runs_that_cannot_be_read_are_named_and_the_others_shown(tmp_path: Path) -> None:
    folders = history.write_benchmarks(tmp_path, 5)
    text = (folders[0] / RUN_FILE).read_text()
    (folders[0] / RUN_FILE).write_text(text.replace("quick", "quack", 1))
    (folders[1] / RUN_FILE).write_text(text.replace('"schema_version": 1', '"schema_version": 2'))
    for result in (folders[2] / TRIALS_FOLDER).glob(f"*/{RESULT_FILE}"):
        result.write_text(result.read_text() + " ")
        result.write_text(result.read_text().replace("SUCCEEDED", "SUCCEEDEd", 1))
    (tmp_path / "latest").symlink_to(folders[4].name)
    shutil.copytree(folders[4], tmp_path / "copy")
    read = read_history(tmp_path)
    assert sorted(rejected.file for rejected in read.rejected) == [*(folder.name for folder in folders[:3]), "copy"]
    assert {point.run_id for series in read.series for point in series.points} == {folders[3].name, folders[4].name}


def test_one_run_and_no_run_have_no_step(tmp_path: Path) -> None:
    assert not read_history(tmp_path).series
    history.write_benchmarks(tmp_path, 1)
    read = read_history(tmp_path)
    assert [len(series.points) for series in read.series] == [1, 1]
    assert "No step is shown" in headline(read)


def test_trainings_of_the_same_data_are_one_series_and_changed_settings_a_mark(tmp_path: Path) -> None:
    training_run.write_run(tmp_path / "1-train")
    training_run.write_run(tmp_path / "2-train", dataclasses.replace(training_run.RECORD, run_id="2-train"))
    run = synthetic.RunRecord.read(tmp_path / "2-train" / RUN_FILE)
    planned = dataclasses.replace(run.planned[0], trial=dataclasses.replace(run.planned[0].trial, learning_rate=1e-3))
    dataclasses.replace(run, run_id="2-train", planned=[planned]).write(tmp_path / "2-train")
    (series,) = read_history(tmp_path).series
    assert (series.kind, series.detail, [point.value for point in series.points]) == ("loss", "d.jsonl", [1.5, 1.5])
    (change,) = series.points[1].changes
    assert change.startswith("settings: ")
    assert series.points[1].step_percent is None
    shutil.rmtree(tmp_path / "2-train")
    assert len(read_history(tmp_path).series[0].points) == 1
