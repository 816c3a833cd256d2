"""Markdown report: its rates are those of the headline, and its failures are in groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bench.records.status import ReasonCode, TrialStatus
from reports import formatting
from reports.output import benchmark, markdown
from reports.read.run_folder import load
from reports.summary.rows import group_failures
from reports.summary.summarize import summarize
from tasks.reports.report import terminal_table
from tests.benchmarks.statistics_power import QUICK
from tests.support.reports import synthetic


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
    groups = group_failures(summarize(load(tmp_path)).failures)
    assert [len(group) for group in groups] == [2, 1, 1]
