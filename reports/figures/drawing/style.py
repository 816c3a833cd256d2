"""Style of the figures, and their output as PNG and SVG.

Text in SVG stays text: it can be searched and scales with the page. Matplotlib measures it in DejaVu Sans, which is
wider than the browsers' fonts, so text that fits here fits there.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from reports.figures.drawing import text_size

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
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")  # one per worker, if there are few enough to tell apart
PUBLISHED = "\N{WHITE DIAMOND}"  # a published result: hollow, to differ from measured ones


PAGE_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'DejaVu Sans', sans-serif"
PNG_DPI = 120  # 1,320 pixels wide; the SVG scales to any size
NAME_SIZE = 9.0  # font sizes in points
TITLE_SIZE = 12.0
FACT_SIZE = 8.5
_RC = {
    "font.family": text_size.FAMILY,
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
    "svg.hashsalt": "qlora-fleet",  # the same run gives the same bytes
}


def to_png(figure: Figure) -> bytes:
    return _save(figure, format="png", dpi=PNG_DPI, metadata={"Software": None}, pil_kwargs={"compress_level": 3})


def to_svg(figure: Figure) -> bytes:
    """Render a stand-alone SVG, without a date so that the same run gives the same file."""
    text = _save(figure, format="svg", metadata={"Date": None, "Creator": None}).decode()
    return text.replace(f"'{text_size.FAMILY}'", PAGE_FONT).encode()


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
