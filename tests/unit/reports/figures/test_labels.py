"""Placement of text in figures: clear of lines, and not cut on a phone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from reports.figures import diagnostic, loss, step_times
from reports.figures.drawing import row_chart
from reports.figures.drawing.layout import NARROW, WIDE
from reports.figures.drawing.style import ELLIPSIS, text_width_in
from reports.read.run_folder import load
from reports.summary.summarize import summarize
from tests.support.reports import synthetic


def drawn_pixels(line) -> np.ndarray:
    """Sample the line on the canvas at most a pixel apart."""
    corners = line.get_transform().transform(line.get_xydata())
    steps = [np.linspace(start, end, 400) for start, end in itertools.pairwise(corners)]
    return np.vstack([corners, *steps])


def is_crossed(box, pixels: np.ndarray) -> bool:
    """Return whether a line's pixels enter the box."""
    inside = (pixels[:, 0] > box.x0) & (pixels[:, 0] < box.x1) & (pixels[:, 1] > box.y0) & (pixels[:, 1] < box.y1)
    return bool(inside.any())


def drawn_texts(figure: Figure) -> list[tuple[Annotation, object]]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for axes in figure.axes for text in axes.texts]
    # The extent of an annotation would include the leader line to its point.
    return [(text, super(Annotation, text).get_window_extent(canvas.get_renderer())) for text in texts]


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_names_of_eighty_characters_do_not_leave_the_figure(a10, sheet):
    data = loss.gather(*a10)
    data = replace(data, curves=tuple(replace(curve, name="long-" * 16) for curve in data.curves))
    ending = " k tokens" if sheet is WIDE else ""
    figure = data.draw(sheet)
    for text, box in drawn_texts(figure):
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert text.get_text().endswith(ending)


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_dashed_line_does_not_cross_text(a10, sheet):
    figure = diagnostic.gather(*a10).draw(sheet)
    for axes in figure.axes:
        dashed = [line for line in axes.lines if line.get_linestyle() == "--" or line.is_dashed()]
        boxes = [box for text, box in drawn_texts(figure) if text.axes is axes]
        assert len(dashed) == len(axes.get_yticks())  # a segment for every row
        for line in dashed:
            pixels = drawn_pixels(line)
            assert not any(is_crossed(box, pixels) for box in boxes)


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_title_over_interrupted_steps_fits_the_sheet(tmp_path, sheet):
    synthetic.write_run(tmp_path)
    run = load(tmp_path)
    assert run.steps.loc[run.steps["phase"] == "measure", "step_time_sec"].max() < 100.0
    run.steps.loc[run.steps.index[-1], "step_time_sec"] = 100.0
    figure = step_times.gather(summarize(run), run).draw(sheet)
    title = figure.axes[0].get_title()
    assert "(60: or more)" in title
    assert figure.axes[0].get_position().x0 * sheet.width_in + text_width_in(title, 9.5, bold=True) < sheet.width_in


def test_text_too_wide_for_a_phone_is_drawn_smaller_before_it_is_cut():
    label = "0.997x (0.986 to 1.009), no effect shown  113 % published"
    figure = Figure(figsize=(3.8, 2))
    axes = figure.add_axes((0.05, 0.1, 0.9, 0.8))
    assert text_width_in(label, row_chart.TEXT_SIZE) > 3.42
    row_chart.label_mark(axes, 0.0, label, "rank", NARROW)
    row_chart.label_mark(axes, 1.0, 3 * label, "rank", NARROW)
    written = [drawn for drawn in axes.texts if drawn.get_text() != "rank"]
    assert (written[0].get_text(), written[0].get_fontsize()) == (label, row_chart.MIN_TEXT_SIZE)
    assert written[1].get_text().endswith(ELLIPSIS)


def test_a_logarithmic_axis_leaves_out_zeros():
    panel = row_chart.Panel(title="rate", marks=(), kind="dots", log=True)
    low, high = row_chart.padded_limits(panel, [0.0, 2.0])
    assert 0.0 < low < 2.0 < high
    assert row_chart.padded_limits(panel, [0.0]) == row_chart.padded_limits(panel, [])
