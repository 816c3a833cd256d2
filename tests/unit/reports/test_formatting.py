"""Numbers as text, and names that cannot break out of Markdown or a spreadsheet."""

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from reports import formatting
from reports.figures.drawing.style import FAMILY, shorten_text, text_width_in, wrap_text
from reports.statistics.types import Estimate
from tests.support.cases import Case, load_cases


@pytest.mark.parametrize("case", load_cases(__file__, "formatting.yaml"))
def test_formats(case: Case) -> None:
    """Call `function` with `input`; a mapping in it is an interval."""
    arguments = [
        Estimate(**{"low": None, "high": None, "n": 9, **item}) if isinstance(item, dict) else item
        for item in case["input"]
    ]
    assert getattr(formatting, case["function"])(*arguments) == case["expected"]


@pytest.mark.parametrize(("low", "high"), [(float("nan"), 1.0), (1.0, float("inf")), (5e-324, 1e-323), (1e308, 1e308)])
def test_ends_that_no_digit_can_distinguish_are_still_shown(low, high):
    assert " to " in formatting.span(low, high, 2)
    assert formatting.span(99.96, 100.04, 1) == "(99.96 to 100.04)"  # more digits than the value itself


def test_a_word_or_character_too_wide_for_its_line_is_broken_and_nothing_is_lost():
    lines = wrap_text("short " + "w" * 200, 2.0, 9.0)
    assert "".join(lines).replace(" ", "") == "short" + "w" * 200
    assert max(text_width_in(line, 9.0) for line in lines) <= 2.0
    assert wrap_text("漢字", 0.01, 9.0) == ["漢", "字"]


def test_a_cut_name_ends_in_an_ellipsis_and_fits():
    cut = shorten_text("m" * 100, 1.0, 9.0, bold=True)
    assert cut.endswith("\N{HORIZONTAL ELLIPSIS}")
    assert text_width_in(cut, 9.0, bold=True) <= 1.0
    assert shorten_text("short", 1.0, 9.0) == "short"


def test_widths_agree_with_what_matplotlib_draws():
    text = "optimized processed 2.06x (2.02 to 2.10) as many"
    drawn = TextPath((0, 0), text, size=9.0, prop=FontProperties(family=FAMILY)).get_extents().width / 72
    assert text_width_in(text, 9.0) == pytest.approx(drawn, rel=0.03)
