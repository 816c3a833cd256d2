"""Median or mean of a sample with its bootstrap interval."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bench.records import student

RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Median of n values with its bootstrap 95 % interval (low, high)."""

    median: float
    low: float
    high: float
    n: int


class MeanInterval(NamedTuple):
    """Mean of a sample with its 95 % interval."""

    mean: float
    low: float
    high: float


def summarize(values: list[float], *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Compute the median and its percentile-bootstrap 95 % interval. Seeded, so it is reproducible.

    Of fewer than six values the interval goes from the smallest to the largest, which holds the median in 75 % (of
    three) to 94 % of samples.
    """
    if not values:
        raise ValueError("no values to summarize")
    ordered = sorted(values)
    generator = random.Random(seed)  # noqa: S311 - not for security; must be repeatable
    medians = sorted(quantile(sorted(generator.choices(ordered, k=len(ordered))), 0.5) for _ in range(resamples))
    return Interval(
        median=quantile(ordered, 0.5),
        low=quantile(medians, 0.025),
        high=quantile(medians, 0.975),
        n=len(ordered),
    )


def mean_interval(values: Sequence[float], span: float) -> MeanInterval:
    """Compute the mean of n values and its 95 % interval: the wider of percentile bootstrap and Student's t. Seeded.

    The bootstrap is too narrow for few values: of 2,000 simulated intervals over three uniform ones 76 % held the
    mean, with Student's t 92 %. `span` is the distance between the smallest and the largest possible value. Resamples
    of equal values are equal too, although other values may exist. So the interval reaches at least as far as one that
    could be missed: a value at the other end, in a share of 1 - 0.025^(1/n) of all rows, is absent from n rows once in
    40 samples.
    """
    if not values:
        raise ValueError("no values to summarize")
    n, mean = len(values), math.fsum(values) / len(values)
    if min(values) == max(values):
        missed = span * (1.0 - 0.025 ** (1.0 / n))
        return MeanInterval(mean=mean, low=mean - missed, high=mean + missed)
    generator = random.Random(0)  # noqa: S311 - not for security; must be repeatable
    means = sorted(math.fsum(generator.choices(values, k=n)) / n for _ in range(RESAMPLES))
    half = student.quantile(0.95, n - 1) * math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    return MeanInterval(
        mean=mean, low=min(quantile(means, 0.025), mean - half), high=max(quantile(means, 0.975), mean + half)
    )


def quantile(ordered: list[float], share: float) -> float:
    """Return the linear-interpolation quantile (type 7) of values in ascending order; `share` from 0 to 1."""
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
