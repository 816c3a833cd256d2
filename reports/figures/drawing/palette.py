"""The figures' colours and marks, and what the page makes of them.

Four tones carry meaning. They differ in lightness, so that they hold in grey print, and stay apart for readers who see
no red, no green or no blue (a test computes both); none is used without a label, a marker or a hatch of its own.
"""

INK = "#1c2128"
MUTED = "#57606a"
GRID = "#d8dee4"
PAPER = "#ffffff"
BASELINE_TONE = "#bcc5ce"  # what others are held against
OTHER_TONE = "#5a9fd4"
DEEP_TONE = "#1f4e79"  # a second series beside OTHER_TONE
ACCENT_TONE = "#b85c00"  # a third
BAND = "#dde6ee"  # behind marks: an interval, a phase
WARNING = "#9a4a00"

# On the page the colours become the page's own, so that dark mode reaches into the figures.
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
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "h")  # one per worker, while there are few enough to tell apart
PUBLISHED = "\N{WHITE DIAMOND}"  # a published result: hollow, so that it is never taken for one of ours
