"""Figures: their numbers, unusual data, and text that stays within them."""

from dataclasses import replace

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.records.status import TrialStatus
from reports.comparison.compare import compare
from reports.figures import (
    cost,
    diagnostic,
    distributed,
    executive_summary,
    hardware,
    inference,
    loading,
    loss,
    memory,
    run_comparison,
    step_times,
)
from reports.figures.drawing import row_chart, style
from reports.figures.drawing.layout import WIDTH_IN, Header, Mark, MarkGroup, Panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ELLIPSIS, text_width_in
from reports.read import reference_results
from reports.read.run_folder import load
from reports.statistics import per_config
from reports.summary.prices import Pricing
from reports.summary.summarize import summarize
from tests.support.reports import showcase, synthetic


def marks_by_row(figure, *, group=0, panel=0):
    """Map a row's name to its mark."""
    return dict(zip(figure.groups[group].names, figure.groups[group].panels[panel].marks, strict=True))


def panels_by_title(figure):
    return {panel.title: panel for group in figure.groups for panel in group.panels}


@pytest.mark.parametrize(
    ("figure", "group", "panel", "published"),
    [
        (executive_summary, 0, 1, {"optimized": (1.46,), "baseline": (0.69, 0.67)}),
        (hardware, 1, 0, {"within the GPU's memory": (475.0,)}),
        (loading, 0, 0, {"load, cached": (4.03,)}),
        (loading, 1, 0, {"4 bit (NF4), after loading": (4.69,), "16 bit (bf16), after loading": (15.04,)}),
        (inference, 0, 0, {"4 bit, batch 1": (7.81,), "4 bit, batch 8": (49.1,)}),
        (distributed, 1, 0, {"2 ranks, table A": (98.0,), "4 ranks, table A": (94.0,), "4 ranks, run B": (99.7,)}),
    ],
)
def test_published_values_stand_beside_what_measured_the_same(a10, figure, group, panel, published):
    marks = marks_by_row(figure.gather(*a10), group=group, panel=panel)
    assert {name: mark.published for name, mark in marks.items() if mark.published} == published


def test_more_configurations_than_a_figure_holds_are_said_to_be_left_out(folder):
    trials = tuple(synthetic.trial(f"rank-{rank}", lora_rank=rank) for rank in range(1, 21))
    synthetic.write_run(folder, synthetic.record(trials, workers=1))
    run = load(folder)
    figure = executive_summary.gather(summarize(run), run)
    assert len(figure.groups[0].names) == 14
    assert any("14 of 20" in fact for fact in figure.header.facts)


def test_published_results_do_not_match_a_run_of_another_model_or_profile(tmp_path):
    showcase.write(tmp_path / "gpu")
    run = load(tmp_path / "gpu")
    assert reference_results.matching_results(run) is not None
    other = {**run.results[-1].fingerprint, "model_parameters": 1_000}
    synthetic.write_result(tmp_path / "gpu", replace(run.results[-1], fingerprint=other))
    assert reference_results.matching_results(load(tmp_path / "gpu")) is None
    synthetic.write_run(tmp_path / "tiny")
    assert reference_results.matching_results(load(tmp_path / "tiny")) is None


def test_hardware_shows_each_types_largest_product_with_the_chips_own_figure_as_its_limit(a10):
    figure = hardware.gather(*a10)
    bf16 = marks_by_row(figure)["bf16, 8,192"]
    assert bf16.limit == pytest.approx(100 * bf16.value / 70.0)


def test_inference_has_a_row_for_each_precision_and_batch_and_its_caption_the_cost_of_every_path(a10):
    summary, run = a10
    figure = inference.gather(summary, run)
    marks = marks_by_row(figure)
    assert list(marks)[:7] == [*(f"4 bit, batch {batch}" for batch in (1, 2, 4, 8, 16, 32)), "16 bit, batch 1"]
    assert marks["4 bit, batch 1"].limit == pytest.approx(0.9 * marks["4 bit, batch 1"].value, rel=0.02)
    figure = inference.gather(summarize(run, Pricing(usd_per_gpu_hour=3.6, source="a list")), run)
    marks = marks_by_row(figure)
    costs = [f"${1000 / marks[f'4 bit, batch {batch}'].value:,.2f} at batch {batch}" for batch in (1, 8)]
    assert f"4 bit, base: {', '.join(costs)}" in figure.caption  # a tenth of a cent per second
    assert "$" not in inference.gather(summarize(run, Pricing(table=None)), run).caption


def test_the_diagnosis_compares_each_factor_with_the_centre_and_shows_out_of_memory(a10):
    effect = marks_by_row(diagnostic.gather(*a10))
    assert len(effect) == 11
    assert effect["sequence 512 \N{RIGHTWARDS ARROW} 256"].value == pytest.approx(0.527 / 0.294, rel=0.01)
    off = effect["checkpointing on \N{RIGHTWARDS ARROW} off"]
    assert (off.value, off.text) == (None, f"out of memory  {style.PUBLISHED} out of memory published")
    assert effect["LoRA rank 16 \N{RIGHTWARDS ARROW} 8"].published == (1.0,)
    rows = {row.label: row.measured for row in a10[0].rows}
    one_of_all = per_config.ratio(rows["rank-8"], rows["optimized"], "samples", comparisons=11)
    assert effect["LoRA rank 16 \N{RIGHTWARDS ARROW} 8"].low == one_of_all.low


def predicting(run, predict):
    """Return the run with these predictions of memory."""

    def changed(result):
        measured = [
            replace(each, value=predict(result)) if each.name == memory.PREDICTED_PEAK else each
            for each in result.measurements
        ]
        return replace(result, measurements=measured)

    return replace(run, results=tuple(map(changed, run.results)))


def test_cost_is_drawn_at_one_price_beside_published_dollars_only_at_the_published_price(a10):
    summary, run = a10
    figure = cost.gather(summary, run)
    titles = [title for title in panels_by_title(figure) if "$" in title]
    assert len(titles) == 2
    assert all(title.endswith("$2.00") for title in titles)
    assert any("0.60" in fact for fact in figure.header.facts)
    assert not any(mark.published for mark in panels_by_title(figure)["10,000 samples at $2.00"].marks)
    figure = cost.gather(summarize(run, Pricing(usd_per_gpu_hour=0.60, source="a list")), run)
    marks = panels_by_title(figure)["10,000 samples at $0.60"].marks
    assert marks[figure.groups[1].names.index("optimized, 4 GPUs")].published == (1.14, 1.24)


def test_the_title_has_the_cost_of_the_recommended_not_of_a_cheaper_configuration_that_ran_out_of_memory(a10):
    summary, run = a10
    assert cost.gather(summary, run).header.title.startswith("train is cheapest: $0.3")
    usual = tuple(row for row in summary.rows if not row.trial.is_usual)
    summary = replace(summary, rows=usual)
    assert cost.gather(summary, run).header.title.startswith("packed is cheapest: $0.7")
    figure = cost.gather(out_of_memory_on(summary, "packed", 9), run)
    assert figure.header.title.startswith("seq-256 costs $1.")
    assert figure.groups[1].names[0] == "seq-256, 1 GPU"


def out_of_memory_on(summary, label, amount):
    """Add `amount` trials of `label` that ran out of memory."""
    rows = tuple(
        replace(row, planned=row.planned + amount, ends={**row.ends, TrialStatus.OUT_OF_MEMORY: amount})
        if row.label == label
        else row
        for row in summary.rows
    )
    return replace(summary, rows=rows)


def test_memory_shows_the_capacity_and_configurations_out_of_memory_without_a_prediction(a10):
    summary, run = a10
    exact = marks_by_row(memory.gather(summary, predicting(run, lambda result: 0.98 * result.metrics.peak_vram_bytes)))
    assert exact["train"].text.split("predicted, ")[1] == "-2 %"
    without = memory.gather(out_of_memory_on(summary, "packed", 9), predicting(run, lambda _: None))
    assert without.groups[0].panels[0].reference == pytest.approx(23.68)
    marks = marks_by_row(without)
    assert {mark.limit for mark in marks.values()} == {None}
    assert marks["seq-2048"].is_hollow
    assert "23.7 GB" in marks["seq-2048"].text
    assert "9 of 11 trials" in marks["packed"].text


def test_distributed_shows_the_share_of_linear_scaling(a10):
    marks = marks_by_row(distributed.gather(*a10), group=1)
    assert marks["4 ranks, against one rank"].value == pytest.approx(100 * 0.576 / 0.598, rel=0.01)


def test_a_loss_that_does_not_fall_is_the_title(folder):
    run = synthetic.write_run(folder)
    rising = synthetic.result(run.planned[0], step_time_sec=0.16)
    losses = replace(rising.steps, loss=sorted(rising.steps.loss))
    for plan in run.planned[:4]:
        again = replace(rising, trial_id=plan.trial_id, worker=plan.worker, steps=losses, warmup=losses)
        synthetic.write_result(folder, again)
    loaded = load(folder)
    data = loss.gather(summarize(loaded), loaded)
    assert "did not fall" in data.header.title
    assert data.header.title.endswith(" baseline")
    assert {curve.name for curve in data.curves if curve.is_falling} == {"optimized"}


def test_a_comparison_starts_with_the_changed_configurations(folder, tmp_path):
    synthetic.write_run(folder)
    slower = synthetic.record(run_id="later")
    synthetic.write_run(tmp_path / "later", slower, speeds={"baseline": 0.2, "optimized": 0.155})
    before, after = load(folder), load(tmp_path / "later")
    data = run_comparison.gather(summarize(after), after, compare([before], [after]))
    assert {*list(marks_by_row(data))[:2]} == {"baseline", "baseline, steady"}
    assert marks_by_row(data)["baseline"].value == pytest.approx(0.8, rel=0.03)
    assert run_comparison.gather(summarize(after), after) is None


def test_names_of_eighty_characters_do_not_leave_the_figure(a10):
    data = loss.gather(*a10)
    data = replace(data, curves=tuple(replace(curve, name="long-" * 16) for curve in data.curves))
    figure = data.draw()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for text in figure.axes[0].get_legend().texts:
        box = text.get_window_extent(canvas.get_renderer())
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1
        assert text.get_text().endswith(" k tokens")


def test_the_title_over_interrupted_steps_fits_the_sheet(tmp_path):
    synthetic.write_run(tmp_path)
    run = load(tmp_path)
    assert run.steps.loc[run.steps["phase"] == "measure", "step_time_sec"].max() < 100.0
    run.steps.loc[run.steps.index[-1], "step_time_sec"] = 100.0
    figure = step_times.gather(summarize(run), run).draw()
    title = figure.axes[0].get_title()
    assert "(60: or more)" in title
    assert figure.axes[0].get_position().x0 * WIDTH_IN + text_width_in(title, 9.5, bold=True) < WIDTH_IN


def test_text_too_wide_for_a_panel_is_drawn_smaller_before_it_is_cut():
    label = 3 * "0.997x (0.986 to 1.009), no effect shown  113 % published"
    axes = Figure(figsize=(WIDTH_IN, 2)).add_axes((0.1, 0.1, 0.86, 0.8))
    for number in (1, 2):
        row_chart.label_mark(axes, number, number * label)
    assert [text.get_fontsize() for text in axes.texts] == [row_chart.MIN_TEXT_SIZE] * 2
    assert [text.get_text() == label for text in axes.texts] == [True, False]
    assert axes.texts[1].get_text().endswith(ELLIPSIS)


def test_bars_begin_at_zero_panels_share_an_axis_and_a_logarithmic_one_leaves_out_zeros():
    bars = [Panel(title=str(value), marks=(Mark(value=value, text=""),)) for value in (5.0, 1.0)]
    dots = tuple(Mark(value=value, text="") for value in (0.0, 2.0, 3.0))
    groups = (
        MarkGroup(names=("a",), panels=tuple(bars), has_one_axis=True),
        MarkGroup(names=("a", "b", "c"), panels=(Panel(title="rate", marks=dots, kind="dots", log=True),)),
    )
    header = Header(title="t", facts=(), note=None)
    first, second, rate = RowFigure(header=header, groups=groups, caption="").draw().axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[0] == 0.0
    assert 1.0 < rate.get_xlim()[0] < 2.0
