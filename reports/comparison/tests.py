"""Hypothesis tests that turn differences into verdicts: faster, slower, same, unknown. Pure.

Many comparisons find some differences by chance. So the p values (Student's t on logarithms) are corrected by Holm's
method within families, and the families share ALPHA: the chance of any false verdict stays at 5 %. Speeds get most of
ALPHA, so the many parts of a step do not weaken them. "same" requires an interval that contains 1 and lies within 3 %
of it, or within the tolerance if that is wider. Everything else is "unknown".
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from bench.records import student
from bench.records.result import Measurement, TrialResult
from bench.records.status import TrialStatus
from bench.records.workloads import Workload
from reports.read import measurements
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.per_config import Mean, Sample
from reports.statistics.per_process import ENERGY, ProcessSteps, describe, joules_per_1000_useful_tokens

VerdictLabel = Literal["faster", "same", "slower", "unknown"]
ALPHA = 0.05
SPEED, STEP_PARTS, ENERGY_USE = "speed", "parts of a step", "energy"
SPEED_ALPHA_SHARE = 0.6  # applies when other families are tested too
MAX_USEFUL_PERCENT = 100.0  # a test that detects only larger differences is useless


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A difference to judge; those with the same `test` are one difference in several units."""

    mean: Mean
    family: str
    test: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of a hypothesis; `compare.ComparedRow` describes the fields."""

    p_value: float
    p_corrected: float
    shows_percent: float
    verdict: VerdictLabel
    why: str


def family_of(workload: Workload, metric: str) -> str:
    """Return the family of a metric: the comparisons that are corrected together."""
    if metric in STEP_METRICS:
        return SPEED
    if metric == ENERGY:
        return ENERGY_USE
    is_part = workload.has_steps and (not workload.has_deciding_measurements or metric.startswith("step_"))
    return STEP_PARTS if is_part else workload.name


def judge(hypotheses: Sequence[Hypothesis], tolerance: float) -> list[Verdict]:
    """Judge the hypotheses, in their order. `tolerance` is the distance from 1 that still counts as the same."""
    families = {hypothesis.family for hypothesis in hypotheses}
    verdicts: dict[int, Verdict] = {}
    for family in families:
        indices = [index for index, hypothesis in enumerate(hypotheses) if hypothesis.family == family]
        judged = _holm([hypotheses[index] for index in indices], _alpha_share(family, families), tolerance)
        verdicts |= dict(zip(indices, judged, strict=True))
    return [verdicts[index] for index in range(len(hypotheses))]


def _alpha_share(family: str, families: set[str]) -> float:
    """Return the part of ALPHA that a family gets."""
    others = len(families - {SPEED})
    if SPEED not in families:
        return ALPHA / others
    return ALPHA * (1.0 if not others else SPEED_ALPHA_SHARE if family == SPEED else (1.0 - SPEED_ALPHA_SHARE) / others)


def _holm(hypotheses: Sequence[Hypothesis], alpha: float, tolerance: float) -> list[Verdict]:
    """Apply Holm's method: the smallest p is compared with alpha / n, the next with alpha / (n - 1), and so on."""
    p_values: dict[tuple[str, ...], float] = {}
    for hypothesis in hypotheses:
        p_values[hypothesis.test] = max(p_values.get(hypothesis.test, 0.0), _p_value(hypothesis.mean))
    corrected: dict[tuple[str, ...], float] = {}
    levels: dict[tuple[str, ...], float] = {}
    largest = 0.0
    for rank, (test, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        remaining = len(p_values) - rank
        largest = max(largest, min(1.0, p * remaining * ALPHA / alpha))
        corrected[test], levels[test] = largest, alpha / remaining
    return [
        _verdict(
            hypothesis.mean,
            _p_value(hypothesis.mean),
            corrected[hypothesis.test],
            levels[hypothesis.test],
            len(p_values),
            tolerance,
        )
        for hypothesis in hypotheses
    ]


def _p_value(mean: Mean) -> float:
    """Return the two-sided p value of Student's t; at least the one that the noise of the steps allows."""
    if mean.value == 0.0:
        return 1.0
    by_units = 0.0 if mean.error == 0.0 else student.two_sided_p(mean.value / mean.error, mean.df or 1.0)
    by_steps = 0.0 if mean.floor == 0.0 else math.erfc(abs(mean.value / mean.floor) / math.sqrt(2.0))
    return max(by_units, by_steps)


def _verdict(mean: Mean, p: float, corrected: float, level: float, tests: int, tolerance: float) -> Verdict:
    shows = 100.0 * math.expm1(min(_half_width(mean, level), 50.0))
    half = mean.half or 0.0
    low, high = math.exp(mean.value - half), math.exp(mean.value + half)
    excludes_1 = low > 1.0 or high < 1.0
    if corrected < ALPHA and excludes_1:
        label: VerdictLabel = "faster" if mean.value > 0.0 else "slower"
        why = f"p = {corrected:.2g} after correction for {tests} comparisons"
    elif excludes_1:
        label, why = "unknown", f"the interval excludes 1, but so may one of {tests} comparisons by chance"
    elif low > 1.0 - tolerance and high < 1.0 + tolerance:
        label, why = "same", f"the interval is within {100 * tolerance:g} % of 1"
    elif shows > MAX_USEFUL_PERCENT:
        label, why = "unknown", "too noisy to show any difference"
    else:
        label, why = "unknown", f"too noisy to show a difference below {shows:.2g} %"
    return Verdict(p_value=p, p_corrected=corrected, shows_percent=shows, verdict=label, why=why)


def _half_width(mean: Mean, level: float) -> float:
    """Return half the width of the interval at this significance level."""
    by_units = mean.error * student.quantile(1.0 - level, round(mean.df or 1.0, 2))
    return max(by_units, mean.floor * per_config.NORMAL, mean.half or 0.0)  # the interval must exclude 1 as well


STEP_METRICS = ("samples_per_sec", "useful_tokens_per_sec")


@dataclass(frozen=True, kw_only=True)
class Value:
    """One process's value of one quantity."""

    sample: Sample
    steps_noise_percent: float | None


Quantity = tuple[str, str]  # name, and context as JSON ("" for steps)


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The values of a run's successful trials: digest -> quantity -> processes."""

    by_digest: dict[str, dict[Quantity, list[Value]]]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        good = [result for result in run.results if result.status is TrialStatus.SUCCEEDED]
        by_digest: dict[str, dict[Quantity, list[Value]]] = {}
        with_steps = [result for result in good if result.trial.workload.has_steps]
        described = describe([ProcessSteps.from_result(result) for result in with_steps])
        for result, process in zip(with_steps, described, strict=True):
            quantities = by_digest.setdefault(result.trial.digest(), {})
            for name in STEP_METRICS:
                (sample,) = per_config.samples([process], name)
                quantities.setdefault((name, ""), []).append(
                    Value(sample=sample, steps_noise_percent=process.noise_percent)
                )
            energy = joules_per_1000_useful_tokens(result, process)
            if energy is not None:
                sample = Sample(worker=process.worker, log=math.log(energy), error=process.elapsed_error)
                value = Value(sample=sample, steps_noise_percent=None)
                quantities.setdefault((ENERGY, ""), []).append(value)
        for result in good:
            quantities = by_digest.setdefault(result.trial.digest(), {})
            for quantity, value in _measured_values(result):
                quantities.setdefault(quantity, []).append(value)
        return cls(by_digest=by_digest)


def _measured_values(result: TrialResult) -> Iterable[tuple[Quantity, Value]]:
    """Yield a trial's rates and durations; telemetry and a single rank's steps are not speeds of a configuration."""
    for measurement in result.measurements:
        is_speed = measurements.is_rate(measurement.name) or measurement.name.endswith("_sec")
        if not is_speed or measurement.value is None or measurement.value <= 0 or "rank" in measurement.context:
            continue
        if measurements.section_of(result.trial.kind, measurement) == measurements.TELEMETRY:
            continue
        # A context may hold computed results, such as a share: they differ between runs and identify nothing.
        context = {name: value for name, value in measurement.context.items() if not isinstance(value, float)}
        error, noise = _error_and_noise(measurement)
        sample = Sample(worker=result.worker or "unknown", log=math.log(measurement.value), error=error)
        yield (
            (measurement.name, measurements.context_json(context) if context else ""),
            Value(sample=sample, steps_noise_percent=noise),
        )


def _error_and_noise(measurement: Measurement) -> tuple[float, float | None]:
    """Return the standard error implied by a measurement's interval, and its repeats' spread in percent."""
    spread = measurement.interval
    if spread is None or not 0 < spread.low <= spread.high:
        return 0.0, None
    noise = 100.0 * (spread.p90 - spread.p10) / 2.563 / spread.median if spread.median > 0 else None
    return math.log(spread.high / spread.low) / (2.0 * per_config.NORMAL), noise
