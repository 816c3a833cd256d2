"""Numbers and names as text: one way of rounding, and escaping for Markdown and CSV. Jinja2 escapes HTML."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

UNKNOWN = "unknown"
_MIN_RELATIVE_WIDTH = 1e-6  # a narrower interval gets no extra decimals
_MAX_EXTRA_DECIMALS = 6  # enough to distinguish the ends of any interval of at least _MIN_RELATIVE_WIDTH
_SIGNIFICANT_DIGITS = 3


class HasInterval(Protocol):
    """A value with an interval whose ends may be unknown."""

    @property
    def value(self) -> float | None: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def significant_decimals(value: float) -> int:
    """Return the number of decimals that shows three significant digits of `value`; 0 from 100 upwards."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, _SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(value))))


def number(value: float | None, decimals: int | None = None) -> str:
    """Format `value` with `decimals` decimals (default: three significant digits) and commas between thousands."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.{significant_decimals(value) if decimals is None else decimals}f}"


def span(low: float | None, high: float | None, decimals: int, separator: str = " to ") -> str:
    """Format `(low to high)` with `decimals` decimals, or more if the ends would look equal; "" without interval."""
    if low is None or high is None:
        return ""
    decimals = _distinct_decimals(low, high, decimals)
    return f"({number(low, decimals)}{separator}{number(high, decimals)})"


def ratio_decimals(low: float | None, high: float | None, minimum: int = 2) -> int:
    """Return the decimals for a ratio and its interval.

    There are more than `minimum` if the ends would look equal, or if an interval that excludes 1 would seem to hold it.
    """
    if low is None or high is None:
        return minimum
    decimals = _distinct_decimals(low, high, minimum)
    if low > 1.0:
        return _distinct_decimals(1.0, low, decimals)
    return _distinct_decimals(high, 1.0, decimals) if high < 1.0 else decimals


def _distinct_decimals(low: float, high: float, minimum: int) -> int:
    if not high - low > _MIN_RELATIVE_WIDTH * max(abs(low), abs(high)):
        return minimum
    maximum = minimum + _MAX_EXTRA_DECIMALS
    return next((count for count in range(minimum, maximum) if number(low, count) != number(high, count)), maximum)


def estimate_parts(interval: HasInterval, decimals: int | None = None, prefix: str = "") -> tuple[str, str]:
    """Return `0.153` and `0.150 to 0.157`, the latter "" without interval.

    Both have `decimals` decimals (default: three significant digits), or more if the ends would look equal.
    """
    decimals = significant_decimals(interval.value or 0.0) if decimals is None else decimals
    if interval.low is not None and interval.high is not None:
        decimals = _distinct_decimals(interval.low, interval.high, decimals)
    return f"{prefix}{number(interval.value, decimals)}", span(interval.low, interval.high, decimals).strip("()")


def ratio_parts(interval: HasInterval, minimum: int = 2) -> tuple[str, str]:
    """Return `1.93x` and `1.88 to 1.97`; `minimum` decimals, so that small ratios do not look more exact than large."""
    value, ends = estimate_parts(interval, ratio_decimals(interval.low, interval.high, minimum))
    return f"{value}x", ends


def estimate(interval: HasInterval | None, suffix: str = "", *, prefix: str = "", decimals: int | None = None) -> str:
    """Format `0.153 s (0.150 to 0.157)`; `prefix` and `suffix` (a unit) surround the value."""
    if interval is None or interval.value is None:
        return UNKNOWN
    value, ends = estimate_parts(interval, decimals, prefix)
    return f"{value}{suffix.rstrip()}{f' ({ends})' if ends else ''}"


def ratio(interval: HasInterval | None, minimum: int = 2) -> str:
    """Format `1.93x (1.88 to 1.97)`."""
    if interval is None:
        return UNKNOWN
    return estimate(interval, "x", decimals=ratio_decimals(interval.low, interval.high, minimum))


def gigabytes(count: int | None) -> str:
    """Format bytes in decimal gigabytes: `0.812 GB`, `20.1 GB`."""
    return UNKNOWN if count is None else f"{number(count / 1e9)} GB"


def dollars(amount: float | None) -> str:
    """Format US dollars: `$1,234.50`; below one dollar `$0.1234`, because a trial costs cents."""
    if amount is None:
        return UNKNOWN
    return "<$0.0001" if 0 < amount < 0.0001 else f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}"


def duration(seconds: float) -> str:
    """Format `12.4 s`, `20 min 24 s`, `3 h 48 min`."""
    if seconds < 100:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 100:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours:,} h" + (f" {rest} min" if rest else "")


def clock(seconds: float) -> str:
    """Format a running time as 0:42, 12:05 or 3:07:09."""
    total = max(0, round(seconds)) if math.isfinite(seconds) else 0
    hours, rest = divmod(total, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def count(amount: int, singular: str, plural: str | None = None) -> str:
    """Format `1 worker`, `4 workers`; pass `plural` if it is not `singular` and an s: `4 workers were`."""
    return f"{amount:,} {singular if amount == 1 else plural or singular + 's'}"


def number_range(numbers: Iterable[int]) -> str:
    """Format the smallest and the largest: `4`, `2 to 1,000`."""
    smallest, *others = sorted(set(numbers))
    return f"{smallest:,} to {others[-1]:,}" if others else f"{smallest:,}"


def join_with_and(items: list[str]) -> str:
    """Format `a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def first_n(items: Sequence[str], maximum: int = 8) -> str:
    """Join the items; beyond `maximum`, only the first and the number of the others."""
    rest = len(items) - maximum
    return ", ".join(items) if rest <= 0 else f"{', '.join(items[:maximum])} and {rest:,} more"


def shorten(name: str, width: int) -> str:
    """Cut `name` to `width` characters; the last one is then an ellipsis."""
    return name if len(name) <= width else name[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def markdown(value: str) -> str:
    """Escape text for Markdown, as one line that also fits a table cell."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    escaped = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", flat)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


# All controls except line break and tab, line and paragraph separators, changes of direction, lone surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_text(text: str) -> str:
    """Replace what a terminal or browser executes, or XML forbids, by \\uXXXX, which in JSON is the same text."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def spreadsheet(value: object) -> object:
    """Escape a CSV cell that a spreadsheet could read as a formula: put an apostrophe in front of the text.

    Numbers are not changed, so -0.5 stays a number. A tab or carriage return at the start is escaped too: some
    spreadsheets strip it first.
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
