"""Median of a sample with its spread and bootstrap interval."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Median of n values with its spread (p10, p90) and its bootstrap 95 % interval (low, high)."""

    median: float
    p10: float
    p90: float
    low: float
    high: float
    n: int


def summarize(values: list[float], *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Compute median, p10, p90 and the median's percentile-bootstrap 95 % interval. Seeded, so it is reproducible."""
    if not values:
        raise ValueError("no values to summarize")
    ordered = sorted(values)
    generator = random.Random(seed)  # noqa: S311 - not for security; must be repeatable
    medians = sorted(quantile(sorted(generator.choices(ordered, k=len(ordered))), 0.5) for _ in range(resamples))
    return Interval(
        median=quantile(ordered, 0.5),
        p10=quantile(ordered, 0.1),
        p90=quantile(ordered, 0.9),
        low=quantile(medians, 0.025),
        high=quantile(medians, 0.975),
        n=len(ordered),
    )


def quantile(ordered: list[float], share: float) -> float:
    """Return the linear-interpolation quantile (type 7) of values in ascending order; `share` from 0 to 1."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
