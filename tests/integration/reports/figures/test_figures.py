"""What of this subject starts a process."""

import re
from dataclasses import replace

import pytest

from bench.records.result import TrialStatus
from reports.figures import CHARTS, renderer
from reports.figures.drawing import style
from reports.figures.drawing.inline_svg import inline_svg
from reports.figures.drawing.layout import WIDE
from reports.figures.renderer import FigurePool, RenderJob
from reports.figures.worker_map import WORKER_MAP
from reports.output.build import build
from reports.summary.prices import Pricing
from tests.support.reports import showcase, synthetic
from tests.support.reports.fixtures import REAL_PNG


def job_of(chart, summary, run):
    return RenderJob(chart=chart, drawing=chart.gather(summary, run))


def draw_one(job):
    return renderer.draw_picture(job.chart.name, job.chart.title, job.drawing)


def test_every_colour_that_is_drawn_is_the_pages_own_in_dark_mode(a10):
    summary, run = a10
    for chart in CHARTS[:-1]:
        with style.figure_style():
            drawn = style.to_svg(chart.gather(summary, run).draw(WIDE))
        assert set(re.findall(r"#[0-9a-f]{6}\b", inline_svg(drawn, "w"))) == set(), chart.name


def test_a_figures_png_is_wide_enough_for_a_slide(a10):
    with style.figure_style():
        drawn = REAL_PNG(WORKER_MAP.gather(*a10).draw(WIDE))
    assert drawn.startswith(b"\x89PNG")
    assert int.from_bytes(drawn[16:20], "big") == 1320


@pytest.fixture
def two_jobs(a10, monkeypatch):
    """For a studio of two processes."""
    monkeypatch.setattr(renderer, "MAX_PROCESSES", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return [job_of(chart, *a10) for chart in CHARTS[1:3]]


def test_figures_drawn_in_other_processes_are_the_same_bytes(two_jobs):
    here = [draw_one(job) for job in two_jobs]
    with FigurePool() as processes:
        there = processes.draw(two_jobs)
    # Pixels are left out: this process makes none for the tests' sake.
    assert [one.svg for one in there] == [one.svg for one in here]
    assert [one.narrow_svg for one in there] == [one.narrow_svg for one in here]


def test_what_a_process_that_died_was_to_draw_is_drawn_all_the_same(two_jobs):
    with FigurePool() as processes:
        for process in processes._pool._processes.values():
            process.kill()
            process.join(60)
        pictures = processes.draw(two_jobs)
    assert [picture.name for picture in pictures] == [job.chart.name for job in two_jobs]


def test_an_inline_drawing_keeps_its_words_and_loses_what_nobody_sees(h200):
    picture = draw_one(job_of(CHARTS[0], *h200))
    words = re.findall(r"<text[^>]*>([^<]+)</text>", picture.svg.decode())
    assert re.findall(r"<text[^>]*>([^<]+)</text>", picture.wide_svg) == words
    assert len(picture.wide_svg) < len(picture.svg) / 1.5
    assert inline_svg(picture.svg, "w01") == picture.wide_svg


HOSTILE = "=cmd|' /C calc'!A0 <b onload=x> ]]> &amp; --> $y$"


def test_hostile_names_are_text_in_every_figure(tmp_path):
    trials = tuple(
        replace(one, name=f"{HOSTILE} {number}"[:80], reason=HOSTILE)
        for number, one in enumerate(synthetic.other_kinds())
    )
    trials = (*synthetic.quick(), synthetic.trial(HOSTILE, lora_rank=8), *trials)
    run = synthetic.record(trials, workers=1)
    synthetic.write_run(tmp_path, run)
    for plan in run.planned:
        showcase.write_telemetry(tmp_path / "trials" / plan.trial_id / "telemetry.csv", plan.trial)
    made = build(tmp_path, pricing=Pricing(usd_per_gpu_hour=2.0, source=HOSTILE))
    for path in made.files:
        if path.suffix == ".svg":
            assert "<b onload" not in path.read_text(), path.name
    page = made.index.read_text()
    assert "<b onload" not in page
    assert "<b onload" not in (made.index.parent / "report.md").read_text()


@pytest.mark.parametrize("kind", ["training", "hardware", "loading", "inference", "distributed"])
def test_one_trial_of_one_step_on_one_node_is_enough_for_every_figure(tmp_path, kind):
    trial = synthetic.trial("alone", kind=kind, measured_steps=1, warmup_steps=0)
    run = synthetic.record((trial,), workers=1)
    synthetic.write_run(tmp_path, run, exact=True)
    made = build(tmp_path, pricing=Pricing(usd_per_gpu_hour=2.0, source="a list"))
    assert made.exit_code == 0
    assert made.counts == {TrialStatus.SUCCEEDED: 1}
