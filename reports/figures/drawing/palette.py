"""Colours and markers of the figures, and the page's CSS variables for them.

Four tones carry meaning. They differ in lightness, so that they can be told apart in grey print and by readers who see
no red, no green or no blue (a test computes both). Each is used only together with a label, a marker or a hatch.
"""

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
