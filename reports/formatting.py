"""Numbers and names as text: the same rounding everywhere, and names that cannot break out of the format they stand in.

HTML is escaped by jinja2; Markdown and CSV are escaped here.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

UNKNOWN = "unknown"
ONE_PROCESS = "\N{DAGGER}"  # marks an interval over the steps of one process, where the next one's place is assumed
_MORE_DIGITS = 6  # tell any two numbers apart that are further from each other than _EXACT
_EXACT = 1e-6  # an interval narrower than this is none to show
_DIGITS = 3


class HasInterval(Protocol):
    """A value with an interval whose ends may be unknown."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def decimals(value: float) -> int:
    """How many decimals show three significant digits of `value`; none from 100 upwards."""
    if value == 0 or not math.isfinite(value):
        return 0
    return max(0, _DIGITS - 1 - math.floor(math.log10(abs(value))))


def number(value: float | None, places: int | None = None) -> str:
    """`value` at `places` decimals (three significant digits by default), thousands separated by commas."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.{decimals(value) if places is None else places}f}"


def span(low: float | None, high: float | None, places: int, to: str = " to ") -> str:
    """`(low to high)` at `places` decimals, or at as many more as tell its ends apart; empty without an interval."""
    if low is None or high is None:
        return ""
    at = _telling(low, high, places)
    return f"({number(low, at)}{to}{number(high, at)})"


def places(of: HasInterval) -> int:
    """How many decimals show a value and its interval: those of three significant digits, and more where its ends would
    look equal.
    """
    fewest = decimals(of.value)
    return fewest if of.low is None or of.high is None else _telling(of.low, of.high, fewest)


def ratio_places(low: float | None, high: float | None, least: int = 2) -> int:
    """How many decimals show a ratio and its interval: more where its ends would look equal, or where the interval
    excludes 1 and would look as if it did not.
    """
    if low is None or high is None:
        return least
    at = _telling(low, high, least)
    return _telling(1.0, low, at) if low > 1.0 else _telling(high, 1.0, at) if high < 1.0 else at


def _telling(low: float, high: float, fewest: int) -> int:
    if not high - low > _EXACT * max(abs(low), abs(high)):
        return fewest
    enough = (more for more in range(fewest, fewest + _MORE_DIGITS) if number(low, more) != number(high, more))
    return next(enough, fewest + _MORE_DIGITS)


def mark(of: object) -> str:
    """ONE_PROCESS where an interval is over the steps of one process alone."""
    return ONE_PROCESS if getattr(of, "over", None) == "steps" else ""


def estimate(of: HasInterval | None, suffix: str = "", *, prefix: str = "") -> str:
    """`0.153 (0.150 to 0.157)`, all three rounded alike; `suffix` (a unit) follows the value, `prefix` leads it."""
    if of is None:
        return UNKNOWN
    at = places(of)
    return f"{prefix}{number(of.value, at)}{suffix} {span(of.low, of.high, at)}{mark(of)}".rstrip()


def ratio(of: HasInterval | None) -> str:
    """`1.93x (1.88 to 1.97)`, two decimals so that small ratios do not look more exact than large ones."""
    if of is None:
        return UNKNOWN
    at = ratio_places(of.low, of.high)
    return f"{number(of.value, at)}x {span(of.low, of.high, at)}{mark(of)}".rstrip()


def gigabytes(count: int | None) -> str:
    """Bytes in decimal gigabytes: `0.812 GB`, `20.1 GB`."""
    return UNKNOWN if count is None else f"{number(count / 1e9)} GB"


def size(amount: float) -> str:
    """Bytes in the unit that suits them: `64 MB`, `1.07 GB`, `512 B`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(amount) >= scale:
            return f"{amount / scale:,.4g} {unit}"
    return f"{number(amount, 0)} B"


def count(amount: int, one: str, many: str | None = None) -> str:
    """`1 worker`, `4 workers`; `many` where an s is not enough: `4 workers were`."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def from_to(numbers: Iterable[int]) -> str:
    """`4`, `2 to 1,000`: the smallest and the largest."""
    smallest, *others = sorted(set(numbers))
    return f"{smallest:,} to {others[-1]:,}" if others else f"{smallest:,}"


def by_number(name: str) -> list[str | int]:
    """What names are to be sorted by: `worker-2` before `worker-10`."""
    return [int(part) if place % 2 else part for place, part in enumerate(re.split("([0-9]{1,18})", name))]


def listing(items: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def first_n(items: Sequence[str], most: int = 8) -> str:
    """All of a few items, the first of many and how many more."""
    rest = len(items) - most
    return ", ".join(items) if rest <= 0 else f"{', '.join(items[:most])} and {rest:,} more"


def with_breaks(name: str, width: int) -> str:
    """`name` in lines of at most `width` characters, broken after a space, hyphen, underscore or slash if possible."""
    lines = [""]
    for part in re.findall(r"[^\s\-_/]*[\s\-_/]?", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return "\n".join(line.rstrip() for line in lines)


def shorten(name: str, width: int) -> str:
    """`name` cut to `width` characters, the cut marked."""
    return name if len(name) <= width else name[: width - 1] + "\N{HORIZONTAL ELLIPSIS}"


def markdown(value: str) -> str:
    """Text that Markdown shows as it stands, on one line, in a table cell too."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in value).split())
    escaped = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", flat)
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def spreadsheet(value: object) -> object:
    """A CSV cell that a spreadsheet cannot take for a formula: text that starts like one gets a leading apostrophe.

    Numbers pass as they are, so -0.5 stays a number. A tab or carriage return at the start counts too: some
    spreadsheets strip it before they look.
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return value
