"""Statistics of one configuration from several processes' steps, and ratios of two. Pure; no files, no pandas.

The unit of repetition is a process, not a step. Three processes of one configuration on one GPU were measured to differ
by 0.7 % while each one's steps agreed within 0.1 %: an interval over steps describes only how well one process was
measured, not the next process. So intervals are Student's t over the largest unit that occurs at least twice: workers
(each the mean of its processes), else processes, else the steps of the only process, for which the next one is assumed
to differ by ASSUMED_NOISE. `Estimate.over` names the unit. An interval is never narrower than the steps within the
processes allow, nor than the processes of the whole run (`pooling`).

The value of a configuration is the geometric mean over its workers of their processes' values. A change of the machines
during the run is taken off as far as a line describes it (`pooling.fit_slope`); the order of trials makes the rest of
it noise. A ratio of two configurations is computed per worker, on the workers that both ran on, so a machine that is
slow for both cancels out. If the two read different texts, the variation between texts widens the interval. If it is
one of several ratios, the interval is widened (Bonferroni) so that all of them hold together. With one process of each
there is no interval: a machine that became slower would look the same.

How often these intervals hold, also on machines that change, is in docs/measurements.md. Not covered: whether a
configuration's workers are representative of all such workers.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.records import student
from reports.statistics import pooling
from reports.statistics.per_process import CONFIDENCE, ProcessSteps, describe
from reports.statistics.pooling import Slope, Spread
from reports.statistics.types import Estimate, MeasuredRate, Over, Process, Ratio

AMOUNTS_OF_RATES = ("samples", "useful_tokens")
ELAPSED, STEADY = "elapsed_{}_per_sec", "steady_{}_per_sec"
QUANTITIES = (
    *("step_time_sec", "steady_tokens_per_sec"),
    *(rate.format(amount) for rate in (STEADY, ELAPSED) for amount in AMOUNTS_OF_RATES),
)
# Assumed standard deviation between processes, and between workers, for a run that repeats nothing. On GPUs 0.35 to 1 %
# were measured; clocks of two states 4 % apart need the rest.
ASSUMED_NOISE = 0.015
MIN_UNITS_OF_TWO_RUNS = 3  # so many also show a change's own uncertainty
KEPT_SHARE = 0.5  # slow steps must leave this share of a difference of steady rates
NORMAL = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
_MAX_DEGREES = 1e4  # degrees of freedom; more make no difference


class Sample(NamedTuple):
    """One process's value of a quantity: its logarithm and the logarithm's standard error over the steps.

    `half` is half the 95 % interval over the steps; it is needed only for the only process.
    """

    worker: str
    log: float
    error: float
    half: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A mean of logarithms with its standard error, degrees of freedom and unit (`over`); `df` is None for steps.

    `floor` is the minimum standard error, due to the steps within the processes; `half` is the 95 % half-width.
    """

    value: float
    error: float
    df: float | None
    floor: float
    half: float | None
    over: Over | None
    units: int


def measure(processes: Sequence[ProcessSteps]) -> MeasuredRate:
    """Describe the processes of one configuration and combine them. Raises ValueError without any."""
    return combine(describe(processes))


def fit_slope(described: Mapping[str, Sequence[Process]]) -> Slope | None:
    """Fit the drift of a run's step times over its workers' clocks (`pooling.fit_slope`)."""
    return pooling.fit_slope(
        [
            (label, process.worker, process.at_sec, math.log(process.step_time_sec))
            for label, group in described.items()
            for process in group
        ]
    )


def combine_all(described: Mapping[str, Sequence[Process]]) -> dict[str, MeasuredRate]:
    """Combine the processes of each configuration of a run, without its drift and with the noise of all of them."""
    slope, fitted = fit_slope(described), 0
    if slope is not None:
        trends = iter(slope.trends)
        described = {
            label: [replace(process, trend=next(trends)) for process in group] for label, group in described.items()
        }
        pairs = [(label, process.worker) for label, group in described.items() for process in group]
        # The line takes a degree of freedom from the units, if these are what it was fitted to.
        fitted = int(len(set(pairs)) == len(pairs) or len({worker for _, worker in pairs}) == 1)
    noise = {
        name: spreads({label: samples(processes, name) for label, processes in described.items()}, fitted)
        for name in QUANTITIES
    }
    return {
        label: combine(processes, {name: spread_of[label] for name, spread_of in noise.items() if label in spread_of})
        for label, processes in described.items()
    }


def spreads(samples_by_label: Mapping[str, Sequence[Sample]], fitted: int = 0) -> dict[str, Spread]:
    """Map each configuration to the noise of its units: workers if there are several, else processes."""
    is_over_workers = len({sample.worker for values in samples_by_label.values() for sample in values}) > 1
    cells = {
        label: mean_by_worker(values)
        if is_over_workers
        else {str(index): sample.log for index, sample in enumerate(values)}
        for label, values in samples_by_label.items()
    }
    return pooling.spreads(cells, by_worker=is_over_workers, fitted=fitted)


def combine(processes: Sequence[Process], spread_by_quantity: Mapping[str, Spread] | None = None) -> MeasuredRate:
    """Combine the processes of one configuration, in any order. Raises ValueError without any.

    `spread_by_quantity` is the noise of its units, pooled over the whole run.
    """
    if not processes:
        raise ValueError("a configuration needs at least one process's steps")
    ordered = sorted(processes, key=lambda process: (process.worker, process.process))
    n_steps = sum(process.n_steps for process in ordered)
    spread_of = spread_by_quantity or {}
    estimates = {
        name: estimate(mean_of_logs(samples(ordered, name), spread_of.get(name)), n_steps) for name in QUANTITIES
    }
    medians = {worker: math.exp(value) for worker, value in mean_by_worker(samples(ordered, "step_time_sec")).items()}
    return MeasuredRate(
        n_workers=len(medians),
        n_processes=len(ordered),
        n_steps=n_steps,
        **estimates,
        padding_percent=100.0
        * (1.0 - estimates["steady_useful_tokens_per_sec"].value / estimates["steady_tokens_per_sec"].value),
        worker_medians=medians,
        spreads=spread_of,
        processes=tuple(ordered),
    )


def ratio(measured: MeasuredRate, reference: MeasuredRate, amount: str, *, comparisons: int = 1) -> Ratio:
    """Compute `measured` over `reference` in elapsed amounts (AMOUNTS_OF_RATES) per second.

    There is no interval with a single process of each, nor if they ran on different kinds of device, unless the same
    workers compare them. `comparisons` is the number of such ratios read together: all their intervals hold at once in
    95 % of runs.
    """
    elapsed, steady = (_ratio(measured, reference, amount, rate, max(1, comparisons)) for rate in (ELAPSED, STEADY))
    verdict: Literal["faster", "slower"] | None = None
    # Elapsed rates would show little: one slow step in thirty is 2 % of it.
    if steady.half is not None and abs(steady.value) > steady.half and elapsed.value / steady.value >= KEPT_SHARE:
        verdict = "faster" if steady.value > 0.0 else "slower"
    n = min(measured.n_steps, reference.n_steps)
    return Ratio(**vars(estimate(elapsed, n)), verdict=verdict, steady=estimate(steady, n))


def _ratio(measured: MeasuredRate, reference: MeasuredRate, amount: str, rate: str, comparisons: int) -> Mean:
    name, level = rate.format(amount), (1.0 - CONFIDENCE) / comparisons
    mean = difference(
        samples(measured.processes, name),
        samples(reference.processes, name),
        noises=(measured.spreads.get(name), reference.spreads.get(name)),
        level=level,
    )
    if not is_comparable(measured.processes, reference.processes):
        mean = replace(mean, half=None, over=None)
    if mean.half is None:
        return mean
    error = _texts_error(measured.processes, reference.processes, amount)
    return replace(mean, half=math.hypot(mean.half, error * _normal(level)))


def is_comparable(measured: Sequence[Process], reference: Sequence[Process]) -> bool:
    """Return whether a ratio is of configurations, not of devices: paired by worker, or on the same kinds of device."""
    workers, others = ({process.worker for process in side} for side in (measured, reference))
    is_paired = len(workers & others) > 1 or len(workers | others) == 1
    return is_paired or {process.device for process in measured} == {process.device for process in reference}


def _texts_error(measured: Sequence[Process], reference: Sequence[Process], amount: str) -> float:
    """Return the standard error of the ratio's logarithm that is due to different texts.

    The steps of another batch size contain other texts, so their useful tokens differ although nothing became faster.
    Steps with the same texts, cut equally or in proportion, have no such error.
    """
    measured_shares, reference_shares = _shares(measured, amount), _shares(reference, amount)
    if len(measured_shares) != len(reference_shares):
        both = (measured_shares, reference_shares)
        return math.hypot(*(_deviation(shares) / math.sqrt(len(shares)) for shares in both if len(shares) > 1))
    if len(measured_shares) < 2:
        return 0.0
    return _deviation(measured_shares - reference_shares) / math.sqrt(len(measured_shares))


def _shares(processes: Sequence[Process], amount: str) -> NDArray[np.float64]:
    """Return each step's amount over the mean step's, averaged over the processes, for their common steps."""
    length = min(process.n_steps for process in processes)
    mean_amounts = np.mean([process.amounts[amount][:length] for process in processes], axis=0)
    return np.asarray(mean_amounts / (mean_amounts.mean() or 1.0))


def samples(processes: Sequence[Process], name: str) -> list[Sample]:
    """Return the samples of one of QUANTITIES, without the run's drift.

    Amounts are exact, so a rate has the error of its time.
    """
    elapsed, sign = name.startswith("elapsed_"), 1.0 if name.endswith("_per_sec") else -1.0
    return [
        Sample(
            process.worker,
            math.log(getattr(process, name)) + sign * process.trend,
            process.elapsed_error if elapsed else process.standard_error,
            process.half_width(elapsed=elapsed) if len(processes) == 1 else None,
        )
        for process in processes
    ]


def mean_of_logs(values: Sequence[Sample], spread: Spread | None = None) -> Mean:
    """Average over workers, else over processes, else return the only process's value; `spread` is the run's noise."""
    groups = mean_by_worker(values)
    if len(groups) > 1:
        own = _student(list(groups.values()), _error_floor(values), "workers")
        if spread is None or own.half is None:
            return own
        # Differences between workers cannot be pooled, but they are at least as large as those between processes.
        minimum = spread.sd / math.sqrt(len(groups)) * _quantile(1.0 - CONFIDENCE, spread.df)
        return replace(own, half=max(own.half, minimum))
    if spread is not None:
        value, parts = statistics.fmean(sample.log for sample in values), [(spread, len(values))]
        return _pooled_mean(value, parts, _error_floor(values), "processes", 1.0 - CONFIDENCE)
    if len(values) > 1:
        return _student([sample.log for sample in values], _error_floor(values), "processes")
    half = None if values[0].half is None else math.hypot(values[0].half, NORMAL * ASSUMED_NOISE)
    over: Over | None = None if half is None else "steps"
    floor = _error_floor(values)
    return Mean(value=values[0].log, error=floor, df=None, floor=floor, half=half, over=over, units=1)


def difference(
    values: Sequence[Sample],
    reference: Sequence[Sample],
    *,
    same_workers: bool = True,
    noises: tuple[Spread | None, Spread | None] = (None, None),
    level: float = 1.0 - CONFIDENCE,
) -> Mean:
    """Compute `values` minus `reference`, the logarithm of a ratio: per worker if they share several, else by Welch.

    Pass `same_workers=False` if equal names do not mean equal machines. `noises` are both sides' noise, pooled over
    their run. A side with a single process is assumed to be as noisy as the other side; if both have one there is no
    interval. `level` is the interval's significance level.
    """
    value_means, reference_means = mean_by_worker(values), mean_by_worker(reference)
    shared = sorted(value_means.keys() & reference_means.keys()) if same_workers else []
    one_worker = same_workers and len(value_means) == len(reference_means) == len(shared) == 1
    floor = math.hypot(_error_floor(values), _error_floor(reference))
    units = [value_means[worker] - reference_means[worker] for worker in shared]
    counts = (len(values), len(reference)) if one_worker else (len(units), len(units))
    if (one_worker or len(shared) > 1) and noises[0] is not None and noises[1] is not None:
        parts = list(zip((noises[0], noises[1]), counts, strict=True))
        over: Over = "processes" if one_worker else "workers"
        mean = _pooled_mean(statistics.fmean(units), parts, floor, over, level)
        if noises[0].sd == noises[1].sd or len(units) < MIN_UNITS_OF_TWO_RUNS:
            return mean
        return replace(mean, half=max(mean.half or 0.0, _student(units, floor, over, level).half or 0.0))
    if len(shared) > 1:
        return _student(units, floor, "workers", level)
    return _welch(mean_of_logs(values), mean_of_logs(reference), level, 0.0 if one_worker else ASSUMED_NOISE)


def difference_of_groups(values: Sequence[float], reference: Sequence[float]) -> Mean:
    """Compute the mean of `values` minus that of `reference`, both of runs: Student's t with their pooled variance."""
    groups = (values, reference)
    df = float(sum(map(len, groups)) - 2)
    pooled = sum(_deviation(group) ** 2 * (len(group) - 1) for group in groups if len(group) > 1) / df
    error = math.sqrt(pooled * sum(1.0 / len(group) for group in groups))
    means = [statistics.fmean(group) for group in groups]
    return _mean(means[0] - means[1], error, df, 0.0, "runs", min(map(len, groups)), 1.0 - CONFIDENCE)


def mean_by_worker(values: Iterable[Sample]) -> dict[str, float]:
    """Map each worker to the mean of its processes."""
    groups: dict[str, list[float]] = {}
    for sample in values:
        groups.setdefault(sample.worker, []).append(sample.log)
    return {worker: group[0] if len(group) == 1 else statistics.fmean(group) for worker, group in groups.items()}


def _error_floor(values: Sequence[Sample]) -> float:
    """Return the standard error of the mean of equal processes, which is due to the noise within them."""
    return math.sqrt(sum(sample.error**2 for sample in values)) / len(values)


def _student(units: Sequence[float], floor: float, over: Over, level: float = 1.0 - CONFIDENCE) -> Mean:
    error, df = _deviation(units) / math.sqrt(len(units)), len(units) - 1.0
    return _mean(statistics.fmean(units), error, df, floor, over, len(units), level)


def _pooled_mean(value: float, parts: Sequence[tuple[Spread, int]], floor: float, over: Over, level: float) -> Mean:
    """Return a mean, or a difference of two, with the noise of its parts: spreads of units and their numbers.

    Parts of one run share its pooled noise, so they have its degrees of freedom; those of two runs add up (Welch). The
    interval is at least the cautious one.
    """
    variances = [spread.sd**2 / n for spread, n in parts]
    error, df = math.sqrt(sum(variances)), min(spread.df for spread, _ in parts)
    if len({(spread.sd, spread.df) for spread, _ in parts}) > 1:
        df = sum(variances) ** 2 / sum(each**2 / spread.df for each, (spread, _) in zip(variances, parts, strict=True))
    mean = _mean(value, error, df, floor, over, min(n for _, n in parts), level)
    if mean.half is None or not any(spread.has_prior for spread, _ in parts):
        return mean
    cautious, df = pooling.cautious_error(parts)
    return replace(mean, half=max(mean.half, cautious * _quantile(pooling.CAUTIOUS_LEVEL, df)))


def _mean(value: float, error: float, df: float, floor: float, over: Over, units: int, level: float) -> Mean:
    half = max(error * _quantile(level, df), floor * _normal(level))
    return Mean(value=value, error=error, df=df, floor=floor, half=half, over=over, units=units)


def _quantile(level: float, df: float) -> float:
    return student.quantile(1.0 - level, round(df, 2))


@functools.lru_cache(maxsize=1024)
def _normal(level: float) -> float:
    return statistics.NormalDist().inv_cdf(1.0 - level / 2.0)


def _deviation(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Compute the standard deviation. `statistics.stdev` uses exact fractions: a third of a large report's time."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _welch(first: Mean, second: Mean, level: float, worker_sd: float) -> Mean:
    """Compute `first` minus `second` by Welch; `worker_sd` is assumed between workers where a side has a single one."""
    value, floor = first.value - second.value, math.hypot(first.floor, second.floor)
    units = min(first.units, second.units)
    if first.df is None and second.df is None:
        return Mean(value=value, error=floor, df=None, floor=floor, half=None, over=None, units=units)
    if first.df is None or second.df is None:
        known = second if first.df is None else first
        error, df = known.error * math.sqrt(known.units + 1.0), known.df or 1.0
        over: Over | None = known.over
        lone_workers = 0 if known.over == "workers" else 2
    else:
        error = math.hypot(first.error, second.error)
        # Welch-Satterthwaite; without noise the degrees of freedom do not matter.
        parts = first.error**4 / first.df + second.error**4 / second.df
        df = error**4 / parts if parts > 0 else first.df + second.df
        over = first.over if first.over == second.over else "processes"
        lone_workers = [first.over, second.over].count("processes")
    wider = math.hypot(error, math.sqrt(lone_workers) * worker_sd)
    if wider > error:
        df = min(
            df * (wider / error) ** 4 if error else math.inf, _MAX_DEGREES
        )  # the assumed part has infinite degrees of freedom
        error = wider
    return _mean(value, error, df, floor, over or "processes", units, level)


def estimate(mean: Mean, n: int) -> Estimate:
    """Convert a mean of logarithms to an estimate over `n` steps."""
    ends = [None if mean.half is None else math.exp(mean.value + sign * mean.half) for sign in (-1.0, 1.0)]
    return Estimate(value=math.exp(mean.value), low=ends[0], high=ends[1], n=n, over=mean.over)
