"""From differences to words: faster, slower, same, unknown. Pure.

Many comparisons find differences by chance. Their p values (Student's t on logarithms) are corrected by Holm's method
within families, and the families share ALPHA, so that the chance of a single false word in all of them stays at 5 %:
speeds get most of it, and do not pay for the many parts of a step. "same" wants more than no difference found: the
interval holds 1 and lies within 3 % of it, or within the tolerance where that is wider. What is neither is "unknown".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reports.comparison.samples import STEP_METRICS
from reports.read.run import KINDS_WITH_STEPS
from reports.statistics import per_config, student
from reports.statistics.energy import ENERGY
from reports.statistics.per_config import Mean

Word = Literal["faster", "same", "slower", "unknown"]
ALPHA = 0.05
SPEED, PARTS, USED = "speed", "parts of a step", "energy"
SPEEDS_SHARE = 0.6  # of ALPHA, where there are other families, too
DECIDING = (SPEED, "hardware", "loading", "inference", "distributed")  # what an exit code rests on
_MOST_PERCENT = 100.0  # a test that shows no less than this shows nothing


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A difference to judge; those of one `test` are the same one in several units."""

    mean: Mean
    family: str
    test: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the rows of `compare` say of it; see `compare.ComparedRow`."""

    p_value: float
    p_corrected: float
    shows_percent: float
    verdict: Word
    why: str


def family_of(kind: str, metric: str) -> str:
    """Which comparisons are corrected together."""
    if metric in STEP_METRICS:
        return SPEED
    if metric == ENERGY:
        return USED
    is_part = kind == "training" or (kind in KINDS_WITH_STEPS and metric.startswith("step_"))
    return PARTS if is_part else kind


def judge(asked: Sequence[Hypothesis], within: float) -> list[Verdict]:
    """An answer to each question, in their order. `within` is the share of 1 that still is the same."""
    families = {one.family for one in asked}
    found: dict[int, Verdict] = {}
    for family in families:
        places = [place for place, one in enumerate(asked) if one.family == family]
        answers = _holm([asked[place] for place in places], _share(family, families), within)
        found |= dict(zip(places, answers, strict=True))
    return [found[place] for place in range(len(asked))]


def _share(family: str, families: set[str]) -> float:
    """The part of ALPHA that a family gets."""
    others = len(families - {SPEED})
    if SPEED not in families:
        return ALPHA / others
    return ALPHA * (1.0 if not others else SPEEDS_SHARE if family == SPEED else (1.0 - SPEEDS_SHARE) / others)


def _holm(asked: Sequence[Hypothesis], alpha: float, within: float) -> list[Verdict]:
    """The smallest p is held against alpha over all tests, the next against one fewer."""
    own: dict[tuple[str, ...], float] = {}
    for one in asked:
        own[one.test] = max(own.get(one.test, 0.0), _p_value(one.mean))
    corrected: dict[tuple[str, ...], float] = {}
    levels: dict[tuple[str, ...], float] = {}
    largest = 0.0
    for rank, (test, p) in enumerate(sorted(own.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(own) - rank) * ALPHA / alpha))
        corrected[test], levels[test] = largest, alpha / (len(own) - rank)
    return [
        _answer(one.mean, _p_value(one.mean), corrected[one.test], levels[one.test], len(own), within) for one in asked
    ]


def _p_value(mean: Mean) -> float:
    """Two-sided, Student's; never surer than the noise of the steps alone allows."""
    if mean.value == 0.0:
        return 1.0
    by_units = 0.0 if mean.error == 0.0 else student.two_sided_p(mean.value / mean.error, mean.df or 1.0)
    by_steps = 0.0 if mean.floor == 0.0 else math.erfc(abs(mean.value / mean.floor) / math.sqrt(2.0))
    return max(by_units, by_steps)


def _answer(mean: Mean, p: float, corrected: float, level: float, tests: int, within: float) -> Verdict:
    shows = 100.0 * math.expm1(min(_half(mean, level), 50.0))
    half = mean.half or 0.0
    low, high = math.exp(mean.value - half), math.exp(mean.value + half)
    if corrected < ALPHA:
        word: Word = "faster" if mean.value > 0.0 else "slower"
        why = f"p = {corrected:.2g} after correction for {tests} comparisons"
    elif low > 1.0 or high < 1.0:
        word, why = "unknown", f"it excludes 1, which chance may do in one of {tests} comparisons"
    elif low > 1.0 - within and high < 1.0 + within:
        word, why = "same", f"the interval is within {100 * within:g} % of 1"
    elif shows > _MOST_PERCENT:
        word, why = "unknown", "too noisy to show any difference"
    else:
        word, why = "unknown", f"too noisy to show a difference below {shows:.2g} %"
    return Verdict(p_value=p, p_corrected=corrected, shows_percent=shows, verdict=word, why=why)


def _half(mean: Mean, level: float) -> float:
    """Half the width of the interval that misses the truth at this level."""
    by_units = mean.error * student.quantile(1.0 - level, round(mean.df or 1.0, 2))
    return max(by_units, mean.floor * per_config.NORMAL)
