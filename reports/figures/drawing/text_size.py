"""Text widths, to wrap or cut names before they are drawn instead of at the sheet's edge.

Widths are sums of DejaVu Sans' advances. East Asian characters, which that font lacks, count as a full em: the
browser that shows the page has them.
"""

import functools
import unicodedata

from matplotlib.font_manager import FontProperties, findfont, get_font

FAMILY = "DejaVu Sans"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_POINTS_PER_INCH = 72.0
_SAMPLE_SIZE = 100.0


def width_in(text: str, size: float, *, bold: bool = False) -> float:
    """Compute the width in inches at `size` points."""
    return sum(_advance_em(character, bold) for character in text) * size / _POINTS_PER_INCH


def wrap(text: str, limit_in: float, size: float, *, bold: bool = False) -> list[str]:
    """Wrap text to lines of at most `limit_in` inches, broken between words, or inside a word that is too wide."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        extended = f"{line} {word}" if line else word
        if width_in(extended, size, bold=bold) <= limit_in:
            line = extended
            continue
        if line:
            lines.append(line)
        while width_in(word, size, bold=bold) > limit_in:
            count = _count_fitting(word, limit_in, size, bold)
            lines.append(word[:count])
            word = word[count:]
        line = word
    return [*lines, line] if line else lines


def shorten(text: str, limit_in: float, size: float, *, bold: bool = False) -> str:
    """Cut text that is wider than `limit_in` inches, and mark it with an ellipsis."""
    if width_in(text, size, bold=bold) <= limit_in:
        return text
    room = limit_in - width_in(ELLIPSIS, size, bold=bold)
    return text[: _count_fitting(text, room, size, bold)].rstrip() + ELLIPSIS


def _count_fitting(word: str, limit_in: float, size: float, bold: bool) -> int:
    """Count the leading characters that fit, at least one."""
    width = 0.0
    for count, character in enumerate(word):
        width += width_in(character, size, bold=bold)
        if width > limit_in:
            return max(1, count)
    return len(word)


@functools.cache
def _advance_em(character: str, bold: bool) -> float:
    font = get_font(findfont(FontProperties(family=FAMILY, weight="bold" if bold else "normal")))
    font.set_size(_SAMPLE_SIZE, _POINTS_PER_INCH)
    wide = unicodedata.east_asian_width(character) in "WF"
    if font.get_char_index(ord(character)) == 0:  # a box here, another font's glyph in a browser
        return 1.0 if wide else 0.8
    advance = font.load_char(ord(character)).linearHoriAdvance / 65536 / _SAMPLE_SIZE
    return max(float(advance), 1.0 if wide else 0.0)
