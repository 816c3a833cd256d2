"""Markdown report: its rates are those of the headline."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from reports import formatting
from reports.output import markdown
from reports.summary import text
from reports.summary.summarize import summarize
from tasks.reports.report import configuration_table
from tests.benchmarks.statistics_power import QUICK


def test_a_configuration_has_one_rate_everywhere() -> None:
    summary = summarize(replace(QUICK, slow=0.2, has_measurements=False).run(np.random.default_rng(1)))
    row = text.best_row(summary)
    assert row is not None
    assert row.measured is not None
    elapsed, of_median = row.measured.elapsed_useful_tokens_per_sec, row.measured.useful_tokens_per_sec
    assert of_median.value > 1.05 * elapsed.value
    shown, hidden = formatting.number(elapsed.value), formatting.number(of_median.value)
    console = Console(width=120)
    with console.capture() as capture:
        console.print(configuration_table(summary))
    texts = [text.tiles(summary)[0].value, markdown.render(summary, []), capture.get()]
    assert [(shown in text, hidden in text) for text in texts] == [(True, False)] * 3
    total = row.measured.elapsed_tokens_per_sec
    assert total.value * (1.0 - row.measured.padding_percent / 100.0) == pytest.approx(elapsed.value)
