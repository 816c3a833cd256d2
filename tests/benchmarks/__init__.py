"""The numbers the project promises, measured on this machine: `make benchmark`. Nothing here asserts a timing.

A benchmark is a module beside this file with `main() -> list[Figure]`; what is compared is measured in the same run,
alternating, so that a busy machine slows both sides.
"""

from dataclasses import dataclass

from bench.records.interval import Interval


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number. `ratio` says what it is to what it is compared with; `goal` what was promised."""

    name: str
    value: str
    ratio: str = "-"
    goal: str = "-"


def spread(interval: Interval, unit: str) -> str:
    """A median with its 95 % interval and its number of values, e.g. `0.108 s [0.106, 0.111] n=15`."""
    return f"{interval.median:.3g} {unit} [{interval.low:.3g}, {interval.high:.3g}] n={interval.n}"
