"""Style of the figures, widths of their texts, and their output as PNG and SVG.

Text in SVG stays text: it can be searched and scales with the page. Matplotlib measures it in DejaVu Sans, which is
wider than the browsers' fonts, so text that fits here fits there. East Asian characters, which that font lacks, count
as a full em.
"""

import functools
import io
import itertools
import re
import unicodedata
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from reports import formatting

FAMILY = "DejaVu Sans"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
INK = "#1c2128"
MUTED = "#57606a"
GRID = "#d8dee4"
PAPER = "#ffffff"
BASELINE_TONE = "#bcc5ce"  # the baseline, and other references
OTHER_TONE = "#5a9fd4"
DEEP_TONE = "#1f4e79"  # a second series, next to OTHER_TONE
ACCENT_TONE = "#b85c00"  # a third
BAND = "#dde6ee"  # behind marks: an interval, a phase
WARNING = "#9a4a00"

# On the page the colours become CSS variables, so that dark mode applies to the figures too.
PAGE_COLOURS = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    PAPER: "var(--paper)",
    BASELINE_TONE: "var(--baseline-tone)",
    OTHER_TONE: "var(--other-tone)",
    DEEP_TONE: "var(--deep-tone)",
    ACCENT_TONE: "var(--accent-tone)",
    BAND: "var(--band)",
    WARNING: "var(--warning)",
}
PUBLISHED = "\N{WHITE DIAMOND}"  # a published result: hollow, to differ from measured ones


PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
PNG_DPI = 120  # 1,320 pixels wide; the SVG scales to any size
NAME_SIZE = 9.0  # font sizes in points
TITLE_SIZE = 12.0
FACT_SIZE = 8.5
_RC = {
    "font.family": FAMILY,
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a name may contain a dollar sign
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titley": 1.0,  # fixed: placing it automatically takes a tenth of the drawing time
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "xtick.labelsize": 8.0,
    "ytick.color": GRID,
    "ytick.labelcolor": INK,
    "ytick.labelsize": NAME_SIZE,
    "xtick.minor.size": 0.0,
    "ytick.minor.size": 0.0,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "hatch.linewidth": 0.8,
    "svg.fonttype": "none",
}


def to_png(figure: Figure) -> bytes:
    return _save(figure, format="png", dpi=PNG_DPI, metadata={"Software": None}, pil_kwargs={"compress_level": 3})


def to_svg(figure: Figure, salt: str) -> bytes:
    """Render a stand-alone SVG: the same run gives the same file; `salt` makes its ids unique in a page."""
    with mpl.rc_context({"svg.hashsalt": salt}):
        text = _save(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    return formatting.escape_text(text.replace(f"'{FAMILY}'", PAGE_FONT)).encode()


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the figures' style while drawing and saving; the process's own settings are not changed."""
    with mpl.rc_context(_RC), warnings.catch_warnings():
        # Characters that DejaVu lacks are boxes in the PNG; the SVG and the page show them.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def _save(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()


_POINTS_PER_INCH = 72.0
_SAMPLE_SIZE = 100.0


def text_width_in(text: str, size: float, *, bold: bool = False) -> float:
    """Compute the width in inches at `size` points."""
    return sum(_advance_em(character, bold) for character in text) * size / _POINTS_PER_INCH


def wrap_text(text: str, limit_in: float, size: float, *, bold: bool = False) -> list[str]:
    """Wrap text to lines of at most `limit_in` inches, broken between words, or inside a word that is too wide."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width_in(f"{lines[-1]} {word}", size, bold=bold) <= limit_in:
            lines[-1] += f" {word}"
            continue
        while (count := _count_fitting(word, limit_in, size, bold)) < len(word):
            lines.append(word[:count])
            word = word[count:]
        lines.append(word)
    return lines


def shorten_text(text: str, limit_in: float, size: float, *, bold: bool = False) -> str:
    """Cut text that is wider than `limit_in` inches, and mark it with an ellipsis."""
    if text_width_in(text, size, bold=bold) <= limit_in:
        return text
    room = limit_in - text_width_in(ELLIPSIS, size, bold=bold)
    return text[: _count_fitting(text, room, size, bold)].rstrip() + ELLIPSIS


def _count_fitting(word: str, limit_in: float, size: float, bold: bool) -> int:
    """Count the leading characters that fit, at least one."""
    widths = itertools.accumulate(text_width_in(character, size, bold=bold) for character in word)
    return max(1, sum(width <= limit_in for width in widths))


@functools.cache
def _advance_em(character: str, bold: bool) -> float:
    font = get_font(findfont(FontProperties(family=FAMILY, weight="bold" if bold else "normal")))
    font.set_size(_SAMPLE_SIZE, _POINTS_PER_INCH)
    wide = unicodedata.east_asian_width(character) in "WF"
    if font.get_char_index(ord(character)) == 0:  # a box here, another font's glyph in a browser
        return 1.0 if wide else 0.8
    advance = font.load_char(ord(character)).linearHoriAdvance / 65536 / _SAMPLE_SIZE
    return max(float(advance), 1.0 if wide else 0.0)


def inline_svg(svg: bytes) -> str:
    """Return matplotlib's stand-alone SVG for embedding: of its column's width, in the page's colours."""
    body = svg.decode()
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body[body.index("<svg") :], flags=re.DOTALL)
    # Without a size in points, the drawing fills its column on the page and keeps its aspect ratio.
    body = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", body, count=1)
    body = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1)
    body = re.sub(r' id="(?![a-z][0-9a-f]{10}")[^"]*"', "", body)  # nothing refers to a name, only to a digest
    for colour, variable in PAGE_COLOURS.items():
        body = body.replace(colour, variable)
    return body
