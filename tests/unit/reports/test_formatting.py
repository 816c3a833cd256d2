"""Numbers as text, and names that cannot break out of Markdown or a spreadsheet."""

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from reports import formatting
from reports.figures.drawing.style import FAMILY, shorten_text, text_width_in, wrap_text
from reports.statistics.types import Estimate


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.15312, "0.153"), (49.94, "49.9"), (1234.6, "1,235"), (0.0, "0"), (None, "unknown"), (float("nan"), "unknown")],
)
def test_numbers_show_three_digits(value, text):
    assert formatting.number(value) == text


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.46, 1.4571, 1.4629, "1.460 (1.457 to 1.463)"),
        (1.46, 1.45961, 1.46039, "1.4600 (1.4596 to 1.4604)"),
        (1.46, 1.459994, 1.460006, "1.46000 (1.45999 to 1.46001)"),
        (1.46, 1.46, 1.46, "1.46 (1.46 to 1.46)"),
        (1.46, 1.2, 1.7, "1.46 (1.20 to 1.70)"),
        (0.1531, 0.14999, 0.16, "0.153 (0.150 to 0.160)"),
        (2.0, None, None, "2.00"),
    ],
)
def test_an_interval_is_rounded_like_its_value_and_gets_the_digits_that_show_it(value, low, high, text):
    estimate = Estimate(value=value, low=low, high=high, n=9)
    assert formatting.estimate(estimate) == text
    assert formatting.estimate(estimate, " s") == text.replace(" (", " s (") + (" s" if low is None else "")


@pytest.mark.parametrize(("low", "high"), [(float("nan"), 1.0), (1.0, float("inf")), (5e-324, 1e-323), (1e308, 1e308)])
def test_ends_that_no_digit_can_distinguish_are_still_shown(low, high):
    assert " to " in formatting.span(low, high, 2)
    assert formatting.span(99.96, 100.04, 1) == "(99.96 to 100.04)"  # more digits than the value itself


def test_an_interval_over_one_process_is_marked():
    assert (
        formatting.estimate(Estimate(value=1.46, low=1.4, high=1.5, n=9, over="steps"))
        == "1.46 (1.40 to 1.50)\N{DAGGER}"
    )
    assert formatting.ratio(Estimate(value=2.0, low=1.9, high=2.1, n=9, over="workers")) == "2.00x (1.90 to 2.10)"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.0035, 1.0012, 1.0058, "1.004x (1.001 to 1.006)"),  # with two decimals it would hold 1
        (0.992, 0.985, 0.9991, "0.992x (0.985 to 0.999)"),
        (1.02, 0.9996, 1.04, "1.02x (1.00 to 1.04)"),
    ],
)
def test_a_ratio_whose_interval_excludes_one_looks_so(value, low, high, text):
    assert formatting.ratio(Estimate(value=value, low=low, high=high, n=9)) == text


def test_a_long_name_is_broken_between_its_parts():
    assert formatting.with_breaks("no-checkpointing-at-all", 12) == "no-\ncheckpointin\ng-at-all"
    assert formatting.with_breaks("useful tokens/s", 15) == "useful tokens/s"


def test_text_that_starts_like_a_formula_gets_an_apostrophe_and_everything_else_stays():
    for start in ("=", "+", "-", "@", "\t", "\r"):
        assert formatting.spreadsheet(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"
    for value in (-0.5, 7, None, "plain", "a=b"):
        assert formatting.spreadsheet(value) is value


@pytest.mark.parametrize(
    "names", [["gpu-2", "gpu-10"], ["2", "10", "a"], ["a", "a1", "a02", "a3b"], ["a-1-9", "a-1-10", "a-2-1"], ["", "1"]]
)
def test_names_are_sorted_by_their_numbers(names):
    assert sorted([*names[1:], names[0]], key=formatting.natural_key) == names


def test_markdown_shows_a_hostile_name_unchanged_on_one_line():
    assert (
        formatting.markdown("a|b <i>x</i> `c` *d* [e](f) $g$")
        == r"a\|b &lt;i&gt;x&lt;/i&gt; \`c\` \*d\* \[e\](f) \$g\$"
    )
    assert formatting.markdown("one\n| two |\r\nthree\x00") == r"one \| two \| three"


def test_long_lists_end_with_the_number_of_the_others_and_numbers_become_a_range():
    assert formatting.first_n([str(number) for number in range(12)], 3) == "0, 1, 2 and 9 more"
    assert (formatting.number_range([7, 2, 1000]), formatting.number_range([4, 4])) == ("2 to 1,000", "4")


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
