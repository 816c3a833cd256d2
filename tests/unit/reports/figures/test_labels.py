"""Where a figure's words stand: clear of lines, and whole on a phone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from reports.figures import diagnostic, loss_curves, speed_and_memory, training_performance
from reports.figures.drawing import glyphs, label_layout, text_size
from reports.figures.drawing.layout import NARROW, WIDE
from reports.figures.per_workload import inference
from reports.read.load import load
from reports.summary.summarize import summarize
from tests.support.reports import synthetic


def drawn_pixels(line) -> np.ndarray:
    """The line's way over the canvas, a pixel apart or less."""
    corners = line.get_transform().transform(line.get_xydata())
    steps = [np.linspace(start, end, 400) for start, end in itertools.pairwise(corners)]
    return np.vstack([corners, *steps])


def is_crossed(box, way: np.ndarray) -> bool:
    """Whether a line's pixels enter the box."""
    inside = (way[:, 0] > box.x0) & (way[:, 0] < box.x1) & (way[:, 1] > box.y0) & (way[:, 1] < box.y1)
    return bool(inside.any())


def words_on(figure: Figure) -> list[tuple[Annotation, object]]:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = [text for axes in figure.axes for text in axes.texts]
    # The words alone: a leader from them to their point is part of an annotation's extent.
    return [(text, super(Annotation, text).get_window_extent(canvas.get_renderer())) for text in found]


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_published_labels_stand_on_no_line(a10, sheet):
    figure = inference.gather(*a10).draw(sheet)
    labels = [box for text, box in words_on(figure) if text.get_text().endswith("published")]
    assert len(labels) == 2
    for line in (line for line in figure.axes[0].lines if len(line.get_xdata()) > 1):
        way = drawn_pixels(line)
        assert not any(is_crossed(box, way) for box in labels)
    for box in labels:
        frame = figure.axes[0].get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("chart", [speed_and_memory, loss_curves])
def test_names_of_eighty_characters_do_not_leave_the_figure(a10, chart, sheet):
    summary, run = a10
    data = chart.gather(summary, run)
    name = "long-" * 16
    if chart is speed_and_memory:
        data = replace(data, points=tuple(replace(one, name=name) for one in data.points))
    else:
        data = replace(data, curves=tuple(replace(curve, name=name) for curve in data.curves))
        whole = " k tokens" if sheet is WIDE else ""
    figure = data.draw(sheet)
    for text, box in words_on(figure):
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1
        assert chart is speed_and_memory or text.get_text().endswith(whole)


def test_a_label_stands_beside_its_point_where_nothing_is_in_the_way():
    figure = Figure(figsize=(4, 3))
    axes = figure.add_subplot()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    label_layout.label_points(axes, [(0.5, 0.5, "here")], [[(0.0, 0.1), (1.0, 0.1)]])
    (label,) = axes.texts
    assert label.arrow_patch is None
    assert np.hypot(*label.get_position()) < 30


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_dashed_line_makes_room_for_words(a10, sheet):
    figure = diagnostic.gather(*a10).draw(sheet)
    for axes in figure.axes[2:]:  # the way from the baseline is above them, in bars
        dashed = [line for line in axes.lines if line.get_linestyle() == "--" or line.is_dashed()]
        boxes = [box for text, box in words_on(figure) if text.axes is axes]
        assert len(dashed) == len(axes.get_yticks())  # a piece for every row
        for line in dashed:
            way = drawn_pixels(line)
            assert not any(is_crossed(box, way) for box in boxes)


@pytest.mark.parametrize("sheet", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_title_over_steps_that_were_stopped_ends_before_the_sheet_does(tmp_path, sheet):
    synthetic.write_run(tmp_path)
    run = load(tmp_path)
    assert run.steps.loc[run.steps["phase"] == "measure", "step_time_sec"].max() < 100.0
    run.steps.loc[run.steps.index[-1], "step_time_sec"] = 100.0
    figure = training_performance.gather(summarize(run), run).draw(sheet)
    title = figure.axes[0].get_title()
    assert "(60: or more)" in title
    assert (
        figure.axes[0].get_position().x0 * sheet.width_in + text_size.width_in(title, 9.5, bold=True) < sheet.width_in
    )


def test_words_too_wide_for_a_phone_are_written_smaller_before_they_are_cut():
    words = "0.997x (0.986 to 1.009), no effect shown  113 % published"
    figure = Figure(figsize=(3.8, 2))
    axes = figure.add_axes((0.05, 0.1, 0.9, 0.8))
    assert text_size.width_in(words, glyphs.TEXT_SIZE) > 3.42
    glyphs.label_mark(axes, 0.0, words, "rank", NARROW)
    glyphs.label_mark(axes, 1.0, 3 * words, "rank", NARROW)
    written = [text for text in axes.texts if text.get_text() != "rank"]
    assert (written[0].get_text(), written[0].get_fontsize()) == (words, glyphs.MIN_TEXT_SIZE)
    assert written[1].get_text().endswith(text_size.ELLIPSIS)
