"""Measurements of trials of every kind: data frame, tables, files, and rejected values."""

import json
import re
from pathlib import Path

import pytest

from bench.records.bootstrap import Interval
from bench.records.result import Measurement
from bench.records.status import TrialStatus
from reports.document import MAX_ROWS, Cell, Table
from reports.output.write_report import build
from reports.read import measurements
from reports.read.run_folder import load
from reports.summary import tables
from tests.support.reports import synthetic
from tests.support.reports.fixtures import page_text, read_report_file


def run_of(folder: Path, *trials, workers: int = 1):
    """Write a run of successful trials with the synthetic measurements of their kinds."""
    return synthetic.write_run(folder, synthetic.record(trials, workers=workers), exact=True)


def load_measured(folder: Path, *values: Measurement, kind: str = "hardware", **changed):
    """Load a run of one trial with only these measurements."""
    run = run_of(folder, synthetic.trial("one", kind=kind))
    synthetic.rewrite(folder, run.planned[0], measurements=list(values), **changed)
    return load(folder)


def rejection_reason(run) -> str:
    (rejected,) = run.rejected
    return rejected.reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("hardware", " no measurement"),
        ("distributed", " no measured step"),
    ],
)
def test_a_trial_succeeds_only_with_what_its_kind_measures(folder, kind, reason):
    run = run_of(folder, synthetic.trial("one", kind=kind))
    assert load(folder).rejected == ()
    measured = [] if "measurement" in reason else [synthetic.measurement("x_sec", 1.0)]
    synthetic.rewrite(folder, run.planned[0], measurements=measured, steps=0)
    assert rejection_reason(load(folder)).endswith(reason)


INVERTED = Interval(median=2.0, low=3.0, high=1.0, n=5)


@pytest.mark.parametrize(
    ("name", "value", "interval", "reason"),
    [
        ("matmul_tflops", -1.0, None, "measurement 1, 'matmul_tflops', is -1.0"),
        (" ", 1.0, None, "measurement 1 has no name"),
        ("copy_gb_per_sec", 2.0, INVERTED, "measurement 1, 'copy_gb_per_sec', has the interval 3 to 1 over 5 values"),
    ],
)
def test_an_impossible_value_is_rejected_with_its_reason(folder, name, value, interval, reason):
    measurement = Measurement(name=name, value=value, interval=interval)
    assert rejection_reason(load_measured(folder, measurement)).startswith(reason)


def test_the_frame_has_a_row_per_measurement_and_a_column_per_context_key(folder):
    run_of(folder, *synthetic.other_kinds(), workers=2)
    table = measurements.frame(load(folder))
    assert len(table) == 2 * sum(len(synthetic.measurements_of(other_kind)) for other_kind in synthetic.other_kinds())
    row = table[(table["name"] == "matmul_tflops") & (table["context.dtype"] == "bf16")].iloc[0]
    assert (row["value"], row["low"], row["n"], row["share_percent"]) == (346.5, pytest.approx(339.57), 5, 35.0)
    assert json.loads(row["context"]) == {"dtype": "bf16", "size": 2048}
    assert row["context.size"] == 2048
    assert set(table["section"]) == {"hardware", "loading", "inference", "distributed"}


def test_the_number_of_context_columns_is_limited_and_no_key_is_lost(folder):
    run = load_measured(folder, *(synthetic.measurement("x_sec", 1.0, **{f"key_{number}": 1}) for number in range(100)))
    frame = measurements.frame(run)
    columns = [name for name in frame.columns if name.startswith("context.")]
    assert len(columns) == measurements.MAX_CONTEXT_COLUMNS
    assert json.loads(frame["context"].iloc[99]) == {"key_99": 1}


def tables_of(folder: Path) -> list[Table]:
    run = load(folder)
    return [table for made in tables.build_tables(run.results, run.label_of).values() for table in made]


def labels(table: Table) -> list[str]:
    return [column.label for column in table.columns]


def texts(table: Table) -> list[list[str | None]]:
    return [[None if cell is None else cell.text for cell in row.cells] for row in table.rows]


def test_a_table_has_a_row_per_context_and_names_what_all_rows_share(folder):
    run_of(folder, synthetic.other_kinds()[0])
    matmul, _, pinned = tables_of(folder)
    assert labels(matmul) == ["dtype", "size", "matmul, TFLOP/s"]
    assert [row[:2] for row in texts(matmul)[1:3]] == [["fp32", "8192"], ["bf16", "2048"]]
    assert matmul.rows[2].cells[2] == Cell(value="346", details=("340 to 353", "35 % of the chip's peak"))
    assert texts(matmul)[-1] == ["fp8", "8192", "none; the chip has no fp8"]
    # Quantities with the same context are columns of one table.
    assert labels(pinned) == ["configuration", "host to device, GB/s", "device to host, GB/s"]
    assert pinned.caption == "All rows: bytes 1.074 GB, pinned yes."


def test_several_workers_give_their_median_and_their_range_and_a_failed_trial_is_marked(folder):
    run = run_of(folder, synthetic.trial("one", kind="hardware"), workers=3)
    for plan, speed in zip(run.planned, (1.0, 2.0, 9.0), strict=True):
        synthetic.rewrite(folder, plan, measurements=[synthetic.measurement("copy_gb_per_sec", speed)])
    (table,) = tables_of(folder)
    assert texts(table) == [["one", "2.00; 1.00 to 9.00 over 3 workers"]]
    failed = {"status": TrialStatus.OUT_OF_MEMORY, "reason": "batch 8 did not fit"}
    synthetic.rewrite(folder, run.planned[1], measurements=[synthetic.measurement("copy_gb_per_sec", 1.0)], **failed)
    assert [row[0] for table in tables_of(folder) for row in texts(table)] == ["one", "one (OUT_OF_MEMORY)"]


@pytest.mark.usefixtures("without_figures")
def test_more_rows_than_a_page_holds_are_counted_and_all_in_the_csv(folder):
    load_measured(folder, *(synthetic.measurement("x_sec", 1.0, a=number) for number in range(MAX_ROWS + 7)))
    made = build(folder)
    assert "7 more rows are in measurements.csv" in page_text(made)
    assert len(read_report_file(made, "measurements.csv").splitlines()) == 1 + MAX_ROWS + 7


@pytest.mark.usefixtures("without_figures")
def test_other_kinds_are_in_no_training_table_and_are_reported_if_training_failed(folder):
    run = run_of(folder, *synthetic.quick(), *synthetic.other_kinds())
    made = build(folder).values
    assert [row.label for row in made.rows] == ["baseline", "optimized"]
    assert [other.kind for other in made.others] == ["hardware", "loading", "inference", "distributed"]
    assert made.counts[TrialStatus.SUCCEEDED] == len(run.planned)
    for plan in run.planned[:2]:
        synthetic.rewrite(folder, plan, status=TrialStatus.FAILED, reason="no luck")
    failed = build(folder)
    assert re.match(r"No training trial succeeded \(2 FAILED\).* Measured hardware", failed.document.headline)
    assert failed.values.exit_code == 1
    assert "none the chip has no fp8" in page_text(failed)
    assert "## Hardware measurements" in read_report_file(failed, "report.md")


def test_telemetry_of_every_kind_is_in_one_table(folder):
    run = run_of(folder, synthetic.trial(), synthetic.other_kinds()[1])
    for plan in run.planned:
        values = [*synthetic.measurements_of(plan.trial), *synthetic.telemetry()]
        synthetic.rewrite(folder, plan, measurements=values)
    table = tables_of(folder)[-1]
    assert table.caption == "All rows: window measure."
    assert [row[0] for row in texts(table)] == ["baseline", "load-nf4"]
    assert [column.unit for column in table.columns[1:]] == ["%", "GB", "W", "MHz", "°C"]
