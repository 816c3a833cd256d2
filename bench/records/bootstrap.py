"""The median of a sample with its spread and its bootstrap interval."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A median with its spread (p10, p90) and its bootstrap 95 % interval (low, high), over n values."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    n: int


def summarize(values: list[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Median, p10, p90 and the percentile-bootstrap 95 % interval of the median. Seeded, so it can be recomputed."""
    if not values:
        raise ValueError("no values to summarize")
    ordered = sorted(values)
    chooser = random.Random(seed)  # noqa: S311 - a bootstrap wants repeatable, not secret
    medians = sorted(quantile(sorted(chooser.choices(ordered, k=len(ordered))), 0.5) for _ in range(resamples))
    return Interval(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        low=quantile(medians, 0.025),
        high=quantile(medians, 0.975),
        n=len(ordered),
    )


def quantile(ordered: list[float], share: float) -> float:
    """Linear-interpolation quantile (type 7) of values already in ascending order; `share` from 0 to 1."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
