"""Frames as CSV: complete, not averaged, and safe for spreadsheets."""

import csv
import dataclasses
import io

import pandas as pd

from bench.records import Trial
from reports.output.data_files import costs, to_csv, with_run_id, with_settings
from reports.read.run_folder import load
from reports.summary.prices import Pricing
from reports.summary.summarize import summarize
from tests.support.reports import synthetic

HOSTILE = '=HYPERLINK("http://x")'


def read_csv(content):
    return list(csv.DictReader(io.StringIO(content.decode())))


def test_no_cell_of_a_frames_csv_can_be_read_as_a_formula(tmp_path):
    trials = (synthetic.trial(HOSTILE), synthetic.trial("-1+1", lora_rank=8))
    synthetic.write_run(tmp_path / "a", synthetic.record(trials, run_id="a"))
    run = load(tmp_path / "a")
    for frame in (run.trials, run.steps):
        rows = read_csv(to_csv(frame))
        assert len(rows) == len(frame)
        assert {row["configuration"] for row in rows} == {f"'{HOSTILE}", "'-1+1"}
        assert not [cell for row in rows for cell in row.values() if cell[:1] in ("=", "+", "@", "\t")]


def test_numbers_of_a_csv_are_those_of_the_frame_and_missing_is_empty(tmp_path):
    synthetic.write_run(tmp_path / "a")
    run = load(tmp_path / "a")
    rows = read_csv(to_csv(run.trials))
    assert [float(row["step_time_sec"]) for row in rows] == run.trials["step_time_sec"].tolist()
    assert {row["peak_vram_bytes"] for row in rows} == {""}
    assert {row["reason"] for row in rows} == {""}


def test_files_of_two_runs_can_be_concatenated_and_have_every_setting(tmp_path):
    for name in ("a", "b"):
        synthetic.write_run(tmp_path / name, synthetic.record(run_id=name))
    runs = [load(tmp_path / name) for name in ("a", "b")]
    frame = pd.concat(pd.read_csv(io.BytesIO(to_csv(with_run_id(run, with_settings(run))))) for run in runs)
    assert (frame.columns[0], frame["run_id"].nunique(), len(frame)) == ("run_id", 2, 16)
    assert set(frame[frame["configuration"] == "optimized"]["micro_batch_size"]) == {8}
    assert {field.name for field in dataclasses.fields(Trial)} <= {*frame.columns, "name"}


def test_costs_have_one_line_per_configuration_price_and_number_of_gpus(tmp_path):
    synthetic.write_run(tmp_path / "a")
    summary = summarize(load(tmp_path / "a"), Pricing(shape="VM.GPU.A10.1"))
    frame = costs(summary)
    assert not frame.duplicated(["run_id", "configuration", "name", "gpus"]).any()
    assert len(frame) == 2 * 3 * 3
    row, plan = frame.iloc[0], summary.rows[0].cost.fine_tunings[0]
    assert (row["usd"], row["usd_low"], row["training_sec"]) == (plan.usd.value, plan.usd.low, plan.training_sec.value)
    assert frame["source"].str.len().min() > 10
    assert costs(summarize(load(tmp_path / "a"))).empty
