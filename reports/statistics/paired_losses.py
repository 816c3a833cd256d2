"""Difference of held-out losses of two configurations, over pairs of trainings of one seed. Pure.

A pair's difference is 100 log(loss / reference) percent; positive is worse. Each pair has its own adapters, order of
the data, dropout and held-out examples, so Student's t over pairs covers all of them. "At the same loss" is a test of
non-inferiority: the one-sided 95 % bound of the difference is at most a margin. If the true difference is the margin or
more, at most 5 % of such claims are made. tests/benchmarks/statistics_power.py simulates it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from bench.records import student
from bench.records.quality import LossCheck, QualityRecord, loss_fields
from bench.records.trial import Trial

Verdict = Literal["reference", "same", "refuted", "unknown"]
CONFIDENCE = 0.95  # one-sided, for each bound
POWER = 0.95  # share of equal configurations that the planned pairs show to be at the same loss
MIN_PAIRS, MAX_PAIRS = 3, 24


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """The mean difference in percent over `pairs`; `low` and `high` are its one-sided 95 % bounds.

    `sd` is the standard deviation between pairs.
    """

    percent: float
    low: float
    high: float
    sd: float
    pairs: int


def paired_difference(reference: Sequence[float], losses: Sequence[float]) -> LossDifference | None:
    """Compare losses pair by pair; None with fewer than two pairs."""
    differences = [100.0 * math.log(loss / base) for base, loss in zip(reference, losses, strict=True)]
    if len(differences) < 2:
        return None
    mean, sd, count = fmean(differences), stdev(differences), len(differences)
    half = _one_sided(CONFIDENCE, count) * sd / math.sqrt(count)
    return LossDifference(percent=mean, low=mean - half, high=mean + half, sd=sd, pairs=count)


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


def difference_of(check: LossCheck) -> LossDifference | None:
    """Return a comparison's difference; None with fewer than two pairs."""
    return paired_difference([pair.reference for pair in check.pairs], [pair.loss for pair in check.pairs])


def is_at_same_loss(record: QualityRecord, check: LossCheck) -> bool:
    """Tell whether the comparison shows an increase of at most the record's margin."""
    difference = difference_of(check)
    return difference is not None and difference.high <= record.max_increase_percent


def verdict_of(record: QualityRecord | None, trial: Trial) -> Verdict:
    """Return what is known of a configuration's loss. `reference`: it trains as the reference does."""
    if record is None:
        return "unknown"
    check = record.find(trial)
    if check is None:
        is_reference = any(loss_fields(each.reference) == loss_fields(trial) for each in record.checks)
        return "reference" if is_reference else "unknown"
    if not check.is_complete:
        return "unknown"
    return "same" if is_at_same_loss(record, check) else "refuted"
