"""Difference of held-out losses of two configurations, over pairs of trainings of one seed. Pure.

A pair's difference is 100 log(loss / reference) percent; positive is worse. Each pair has its own adapters, order of
the data, dropout and held-out examples, so Student's t over pairs covers all of them. "At the same loss" is a test of
non-inferiority: the one-sided 95 % bound of the difference is at most a margin. If the true difference is the margin or
more, at most 5 % of such claims are made.

The test has two stages (Stein, 1945). The deviation between the first pairs, not their mean, decides how many follow.
A bound from that deviation and its degrees of freedom is exact for normal differences, however many follow. With heavy
tails a small first deviation would make it too narrow, so Student's bound over all pairs counts if it is wider.
tests/benchmarks/statistics_power.py simulates both stages.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from bench.records import student

CONFIDENCE = 0.95  # one-sided, for each bound
POWER = 0.95  # share of equal configurations that the planned pairs show to be at the same loss
MIN_PAIRS, MAX_PAIRS = 3, 24


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """The mean difference in percent over `pairs`; `low` and `high` are its one-sided 95 % bounds.

    `sd` is the standard deviation between pairs, `first_sd` that between the `first` pairs, of stage 1.
    """

    percent: float
    low: float
    high: float
    sd: float
    pairs: int
    first_sd: float
    first: int


def paired_difference(
    reference: Sequence[float], losses: Sequence[float], first: int | None = None
) -> LossDifference | None:
    """Compare losses pair by pair; None with fewer than two pairs. `first` of them are of stage 1; None: all."""
    differences = [100.0 * math.log(loss / base) for base, loss in zip(reference, losses, strict=True)]
    count = len(differences)
    if count < 2:
        return None
    first = count if first is None or first < 2 else min(first, count)
    mean, sd, first_sd = fmean(differences), stdev(differences), stdev(differences[:first])
    half = max(_one_sided(CONFIDENCE, first) * first_sd, _one_sided(CONFIDENCE, count) * sd) / math.sqrt(count)
    low, high = mean - half, mean + half
    return LossDifference(percent=mean, low=low, high=high, sd=sd, pairs=count, first_sd=first_sd, first=first)


def pairs_of_both_stages(first: LossDifference, margin: float, maximum: int) -> int:
    """Return how many pairs show equal losses to be below `margin` with POWER, from the deviation between the first.

    At most `maximum`; no more than the first if these show a difference above the margin.
    """
    if first.low > margin:
        return first.first
    factor = _one_sided(CONFIDENCE, first.first) + _one_sided(POWER, first.first)
    return max(first.first, min(maximum, math.ceil((factor * first.first_sd / margin) ** 2)))


def pairs_needed(sd: float, margin: float) -> int:
    """Return how many pairs show a difference of 0 to be below `margin` with POWER; at most MAX_PAIRS."""
    enough = (count for count in range(MIN_PAIRS, MAX_PAIRS) if visible_percent(sd, count) <= margin)
    return next(enough, MAX_PAIRS)


def visible_percent(sd: float, pairs: int) -> float:
    """Return the smallest margin that so many pairs can show with POWER if the true difference is 0."""
    return (_one_sided(CONFIDENCE, pairs) + _one_sided(POWER, pairs)) * sd / math.sqrt(pairs)


def _one_sided(level: float, pairs: int) -> float:
    """Return Student's one-sided quantile over pairs."""
    return student.quantile(2.0 * level - 1.0, pairs - 1)
