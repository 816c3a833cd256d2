"""Files of a report: complete frames, safe for spreadsheets; one rate everywhere; failures in groups."""

import csv
import dataclasses
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from bench.records import Trial
from bench.records.status import ReasonCode, TrialStatus
from reports import formatting
from reports.output import benchmark, markdown
from reports.output.data_files import to_csv, with_run_id, with_settings
from reports.read.run_folder import load
from reports.summary.rows import group_similar
from reports.summary.summarize import summarize
from tasks.reports.report import terminal_table
from tests.benchmarks.statistics_power import QUICK
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


def test_files_of_two_runs_can_be_concatenated_and_have_every_setting(tmp_path):
    for name in ("a", "b"):
        synthetic.write_run(tmp_path / name, synthetic.record(run_id=name))
    runs = [load(tmp_path / name) for name in ("a", "b")]
    frame = pd.concat(pd.read_csv(io.BytesIO(to_csv(with_run_id(run, with_settings(run))))) for run in runs)
    assert (frame.columns[0], frame["run_id"].nunique(), len(frame)) == ("run_id", 2, 16)
    assert frame["step_time_sec"].tolist() == [*runs[0].trials["step_time_sec"], *runs[1].trials["step_time_sec"]]
    assert frame["peak_vram_bytes"].isna().all()
    assert set(frame[frame["configuration"] == "optimized"]["micro_batch_size"]) == {8}
    assert {field.name for field in dataclasses.fields(Trial)} <= {*frame.columns, "name"}


def test_a_configuration_has_one_rate_everywhere() -> None:
    summary = summarize(replace(QUICK, slow=0.2).run(np.random.default_rng(1)))
    row = summary.best_row
    assert row is not None
    assert row.measured is not None
    elapsed, of_median = row.measured.elapsed_useful_tokens_per_sec, row.measured.steady_useful_tokens_per_sec
    assert of_median.value > 1.05 * elapsed.value
    shown, hidden = formatting.number(elapsed.value), formatting.number(of_median.value)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(terminal_table(benchmark.make(summary).brief_tables[0][1]))
    document = benchmark.make(summary)
    texts = [document.tiles[0].value, markdown.render(document), capture.get()]
    assert [(shown in text, hidden in text) for text in texts] == [(True, False)] * 3
    total = row.measured.elapsed_tokens_per_sec
    assert total.value * (1.0 - row.measured.padding_percent / 100.0) == pytest.approx(elapsed.value)


def test_failures_are_grouped_by_cause_and_phase_not_by_their_text(tmp_path: Path) -> None:
    run = synthetic.record((synthetic.trial("large"),), workers=4)
    synthetic.write_run(tmp_path, run)
    phases = ({"load": 1.0}, {"load": 1.0}, {"load": 1.0, "measure": 2.0}, {"load": 1.0})
    codes = (ReasonCode.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY, ReasonCode.OUT_OF_MEMORY, ReasonCode.UNKNOWN)
    for number, (plan, timed, code) in enumerate(zip(run.planned, phases, codes, strict=True)):
        changes = {"phases": timed, "reason_code": code, "reason": f"{'abc'[number % 3]} of {number} bytes"}
        synthetic.rewrite(tmp_path, plan, status=TrialStatus.OUT_OF_MEMORY, steps=0, **changes)
    groups = group_similar(summarize(load(tmp_path)).failures)
    assert [len(group) for group in groups] == [2, 1, 1]
