"""Placement of text in figures: within the figure, and not cut."""

from dataclasses import replace

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.figures import loss, step_times
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import WIDTH_IN, Header, Mark, MarkGroup, Panel
from reports.figures.drawing.row_chart import RowFigure
from reports.figures.drawing.style import ELLIPSIS, text_width_in
from reports.read.run_folder import load
from reports.summary.summarize import summarize
from tests.support.reports import synthetic


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
