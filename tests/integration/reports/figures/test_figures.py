"""Figures, in tests that start processes or write files."""

import re

import pytest

from bench.records.status import TrialStatus
from reports.figures import CHARTS
from reports.figures.drawing import style
from reports.figures.drawing.style import inline_svg
from reports.figures.memory import MEMORY
from reports.output.write_report import build
from reports.summary.prices import Pricing
from tests.support.reports import synthetic
from tests.support.reports.fixtures import REAL_PNG


def test_every_drawn_colour_is_a_variable_of_the_page(a10):
    summary, run = a10
    gathered = [(chart, data) for chart in CHARTS if (data := chart.gather(summary, run)) is not None]
    assert len(gathered) == len(CHARTS) - 1  # nothing to compare with
    for chart, data in gathered:
        with style.figure_style():
            drawn = style.to_svg(data.draw(), "w")
        assert set(re.findall(r"#[0-9a-f]{6}\b", inline_svg(drawn))) == set(), chart.name


def test_a_figures_png_is_wide_enough_for_a_slide(a10):
    with style.figure_style():
        drawn = REAL_PNG(MEMORY.gather(*a10).draw())
    assert drawn.startswith(b"\x89PNG")
    assert int.from_bytes(drawn[16:20], "big") == 1320


@pytest.mark.parametrize("kind", ["training", "hardware", "loading", "inference", "distributed"])
def test_one_trial_of_one_step_on_one_node_is_enough_for_every_figure(tmp_path, kind):
    trial = synthetic.trial("single", kind=kind, measured_steps=1, warmup_steps=0)
    synthetic.write_run(tmp_path, synthetic.record((trial,), workers=1), exact=True)
    report = build(tmp_path, pricing=Pricing(usd_per_gpu_hour=2.0, source="a list"))
    assert report.values.exit_code == 0
    assert report.values.counts == {TrialStatus.SUCCEEDED: 1}
