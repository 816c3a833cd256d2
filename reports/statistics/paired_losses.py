"""Difference of held-out losses of two configurations, over pairs of trainings of one seed. Pure.

A pair's difference is 100 log(loss / reference) percent; positive is worse. Each pair has its own adapters, order of
the data, dropout and held-out examples, so Student's t over pairs covers all of them. "At the same loss" is a test of
non-inferiority: the one-sided 95 % bound of the difference is at most a margin. If the true difference is the margin or
more, at most 5 % of such claims are made.

tests/benchmarks/statistics_power.py simulates it, also with pairs that are added to an undecided comparison.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from bench.records import student

CONFIDENCE = 0.95  # one-sided, for each bound
POWER = 0.95  # share of equal configurations that the planned pairs show to be at the same loss
MIN_PAIRS, MAX_PAIRS = 3, 100


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """The mean difference in percent; `low` and `high` are its one-sided 95 % bounds, `sd` is that between pairs."""

    percent: float
    low: float
    high: float
    sd: float


def paired_difference(reference: Sequence[float], losses: Sequence[float]) -> LossDifference | None:
    """Compare losses pair by pair; None with fewer than two pairs."""
    differences = [100.0 * math.log(loss / base) for base, loss in zip(reference, losses, strict=True)]
    if len(differences) < 2:
        return None
    mean, sd = fmean(differences), stdev(differences)
    half = _one_sided(CONFIDENCE, len(differences)) * sd / math.sqrt(len(differences))
    return LossDifference(percent=mean, low=mean - half, high=mean + half, sd=sd)


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
