"""Hypothesis tests that turn differences into verdicts: faster, slower, differs, same, unknown. Pure.

Many comparisons find some differences by chance. So the p values (Student's t on logarithms) are corrected by Holm's
method (1979): the chance of any false verdict stays at ALPHA. "same" requires an interval that holds 1 and is within
3 % of it, or within a wider tolerance.

Two runs of equal code differ by the day: heat, other tenants, a driver's state shift all trials of a run. So with one
run on a side a difference is that of "these runs" only, unless it exceeds the effect of the day (`Hypothesis.day`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from bench.records import student
from reports.statistics.per_config import NORMAL, Mean

VerdictLabel = Literal["faster", "same", "slower", "differs", "unknown"]
ALPHA = 0.05
MAX_USEFUL_PERCENT = 100.0  # a test that detects only larger differences is useless


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A difference to judge, and the logarithm of the largest one that the day may explain; 0: none."""

    mean: Mean
    day: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of a hypothesis; `compare.ComparedRow` describes the fields."""

    p_value: float
    p_corrected: float
    shows_percent: float
    verdict: VerdictLabel
    why: str


def judge(hypotheses: Sequence[Hypothesis], tolerance: float) -> list[Verdict]:
    """Judge the hypotheses, in their order. `tolerance` is the distance from 1 that still counts as the same."""
    p_values = [_p_value(each.mean, 0.0) for each in hypotheses]
    differs = holm(p_values)
    beyond = holm([_p_value(each.mean, each.day) for each in hypotheses])
    ranks = {index: rank for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__))}
    verdicts = []
    for index, each in enumerate(hypotheses):
        level = ALPHA / (len(hypotheses) - ranks[index])
        shows = 100.0 * math.expm1(min(_half_width(each.mean, level) + each.day, 50.0))
        label, why = _word(each, differs[index], beyond[index], len(hypotheses), tolerance)
        if label == "unknown" and not why:
            missed = f"a difference below {shows:.2g} %" if shows <= MAX_USEFUL_PERCENT else "any difference"
            why = f"too noisy to show {missed}"
        verdicts.append(
            Verdict(p_value=p_values[index], p_corrected=differs[index], shows_percent=shows, verdict=label, why=why)
        )
    return verdicts


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p values for their number: the smallest is multiplied by n, the next by n - 1, and so on."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = corrected[index] = max(largest, min(1.0, p_values[index] * (len(p_values) - rank)))
    return corrected


def _word(each: Hypothesis, differs: float, beyond: float, tests: int, tolerance: float) -> tuple[VerdictLabel, str]:
    value, half = each.mean.value, each.mean.half or 0.0
    if differs < ALPHA and abs(value) > half:
        why = f"p = {differs:.2g} after correction for {tests} comparisons"
        if beyond < ALPHA and abs(value) > half + each.day:
            return ("faster" if value > 0.0 else "slower"), why
        return "differs", f"{why}, but the day may explain {100.0 * math.expm1(each.day):.2g} %: repeat both runs"
    if abs(value) > half:
        return "unknown", f"the interval excludes 1, but so may one of {tests} comparisons by chance"
    if math.exp(value - half) > 1.0 - tolerance and math.exp(value + half) < 1.0 + tolerance:
        return "same", f"the interval is within {100 * tolerance:g} % of 1"
    return "unknown", ""


def _p_value(mean: Mean, day: float) -> float:
    """Return the two-sided p value of Student's t; at least the one that the noise of the steps allows."""
    value = abs(mean.value) - day
    if value <= 0.0:
        return 1.0
    by_units = 0.0 if mean.error == 0.0 else student.two_sided_p(value / mean.error, mean.df or 1.0)
    by_steps = 0.0 if mean.floor == 0.0 else math.erfc(value / mean.floor / math.sqrt(2.0))
    return max(by_units, by_steps)


def _half_width(mean: Mean, level: float) -> float:
    """Return half the width of the interval at this significance level."""
    by_units = mean.error * student.quantile(1.0 - level, round(mean.df or 1.0, 2))
    return max(by_units, mean.floor * NORMAL, mean.half or 0.0)
