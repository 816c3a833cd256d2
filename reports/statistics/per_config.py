"""What several processes' steps say about one configuration, and about two of them. Pure; no files, no pandas.

A process is what repeats, not a step. Three processes of one configuration on one GPU were measured to differ by 0.7 %
while each one's steps agreed within 0.1 %: an interval over steps alone says how well one process was measured, and
nothing of the next process. So intervals are Student's t over the largest unit of which there are two: workers (each
the mean of its processes), else processes, else the steps of the only process, and `Estimate.over` says which. With
two workers there is one degree of freedom and the interval is wide; that is what two workers know. An interval is
never narrower than the steps within the processes allow, nor than the processes of the whole run (`pooling`), so two
processes that agree by chance do not look exact. The only process of a run that repeats nothing is taken to be
ASSUMED_NOISE away from the next, and so is one worker from another where a ratio rests on one of each.

The value of a configuration is the geometric mean over its workers of their processes' median step times; rates are the
mean amount per step over that median, per worker; elapsed rates are all amounts over all of the steps' time, so slow
steps count. All of them are of the texts that were read. A ratio of two configurations is taken worker by worker on the
workers that both ran on, so a machine that is slow for both cancels out; how sure it is follows from the noise of all
configurations together. Where the two read different texts, what texts differ by is in its interval. Where it is one of
several, that is widened (Bonferroni) so that all of them hold together.

In simulation (tests/unit/reports/statistics/test_per_config.py; workers that differ, steps that resemble their
neighbours, outliers, drift) these intervals hold the true value in at least 93 % of 1,000 runs with 1, 2, 3, 4 and 8
workers.

Not covered: that a configuration's workers are a sample of all such workers is the reader's to judge.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reports.statistics import pooling, student
from reports.statistics.per_process import CONFIDENCE, ProcessSteps, describe, half_width
from reports.statistics.pooling import Spread
from reports.statistics.types import Estimate, MeasuredRate, Noise, Over, Process, Ratio

RATES = ("samples_per_sec", "tokens_per_sec", "useful_tokens_per_sec")
ELAPSED = ("elapsed_samples_per_sec", "elapsed_useful_tokens_per_sec")
QUANTITIES = ("step_time_sec", *RATES, *ELAPSED)
# How far the next process is from the only one, and the next worker's from it, as standard deviations: on GPUs 0.35 to
# 1 % were seen. It stands in where a run repeats nothing.
ASSUMED_NOISE = 0.01
OUTLIERS_TO_FLAG = 0.1  # of the steps; fewer do not move a median
NORMAL = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)
_MOST_DEGREES = 1e4  # of freedom; more say the same


class Sample(NamedTuple):
    """What one process says of one quantity: its logarithm and that one's standard error over the steps.

    `half` is half the 95 % interval over its steps, wanted only where it is the only process.
    """

    worker: str
    log: float
    error: float
    half: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mean:
    """The mean of logarithms with its standard error, degrees of freedom and what it is over; `df` is None for steps.

    `floor` is the standard error that the steps within the processes leave at least; `half` the 95 % half-width.
    """

    value: float
    error: float
    df: float | None
    floor: float
    half: float | None
    over: Over | None
    units: int

    @property
    def ends(self) -> tuple[float, float | None, float | None]:
        """What this is the logarithm of, with its interval."""
        value = math.exp(self.value)
        if self.half is None:
            return value, None, None
        return value, value * math.exp(-self.half), value * math.exp(self.half)


def measure(processes: Sequence[ProcessSteps]) -> MeasuredRate:
    """Describe the processes of one configuration and combine them. Raises ValueError without any."""
    return combine(describe(processes))


def combine_all(described: Mapping[str, Sequence[Process]]) -> dict[str, MeasuredRate]:
    """Every configuration of a run, each with the noise of all of them."""
    shared = {name: spreads({label: samples(each, name) for label, each in described.items()}) for name in QUANTITIES}
    return {
        label: combine(each, {name: found[label] for name, found in shared.items() if label in found})
        for label, each in described.items()
    }


def spreads(taken: Mapping[str, Sequence[Sample]]) -> dict[str, Spread]:
    """Configuration to the noise of its units: over workers where there are several, else over processes."""
    if len({one.worker for each in taken.values() for one in each}) > 1:
        return pooling.spreads({label: by_worker(each) for label, each in taken.items()}, by_worker=True)
    cells = {label: {str(place): one.log for place, one in enumerate(each)} for label, each in taken.items()}
    return pooling.spreads(cells, by_worker=False)


def combine(processes: Sequence[Process], noise_of: Mapping[str, Spread] | None = None) -> MeasuredRate:
    """One configuration from its processes, in any order. Raises ValueError without any.

    `noise_of` is what the whole run says of its units' noise, for each quantity.
    """
    if not processes:
        raise ValueError("a configuration needs at least one process's steps")
    ordered = sorted(processes, key=lambda one: (one.worker, one.process))
    n_steps = sum(one.n_steps for one in ordered)
    half = half_width(ordered[0]) if len(ordered) == 1 else None
    shared = noise_of or {}
    found = {
        name: estimate(mean_of_logs(samples(ordered, name, half), shared.get(name)), n_steps) for name in QUANTITIES
    }
    medians = {worker: math.exp(value) for worker, value in by_worker(samples(ordered, "step_time_sec")).items()}
    return MeasuredRate(
        n_workers=len(medians),
        n_processes=len(ordered),
        n_steps=n_steps,
        **found,
        padding_percent=100.0 * (1.0 - found["useful_tokens_per_sec"].value / found["tokens_per_sec"].value),
        worker_spread=max(medians.values()) / min(medians.values()) if len(medians) > 1 else None,
        worker_medians=medians,
        noise=noise(ordered),
        outliers=sum(one.outliers for one in ordered),
        flags=tuple(_flags(ordered)),
        half_width=half,
        spreads=shared,
        processes=tuple(ordered),
    )


def ratio(of: MeasuredRate, to: MeasuredRate, rate: str, *, among: int = 1) -> Ratio:
    """`of` over `to` in one of RATES. The verdict is about speed: "faster" or "slower", None where it is not shown.

    `among` is how many such ratios are read together: all of their intervals hold at once in 95 % of runs.
    """
    mean = difference(
        samples(of.processes, rate, of.half_width),
        samples(to.processes, rate, to.half_width),
        noise_of=(of.spreads.get(rate), to.spreads.get(rate)),
        level=(level := (1.0 - CONFIDENCE) / max(1, among)),
    )
    if mean.half is not None:
        by_texts = _texts_error(of.processes, to.processes, rate.removesuffix("_per_sec"))
        mean = replace(mean, half=math.hypot(mean.half, by_texts * _normal(level)))
    value, low, high = mean.ends
    verdict = None if low is None or high is None else "faster" if low > 1.0 else "slower" if high < 1.0 else None
    return Ratio(value=value, low=low, high=high, n=min(of.n_steps, to.n_steps), verdict=verdict, over=mean.over)


def _texts_error(of: Sequence[Process], to: Sequence[Process], amount: str) -> float:
    """The standard error that is left because two configurations may have read different texts, as a logarithm.

    Another batch's steps hold other texts, so their useful tokens differ although nothing became faster. Steps with the
    same texts, cut alike or in proportion, leave none.
    """
    mine, other = _shares(of, amount), _shares(to, amount)
    if len(mine) != len(other):
        return math.hypot(*(_deviation(one) / math.sqrt(len(one)) for one in (mine, other) if len(one) > 1))
    return _deviation(mine - other) / math.sqrt(len(mine)) if len(mine) > 1 else 0.0


def _shares(processes: Sequence[Process], amount: str) -> NDArray[np.float64]:
    """Each step's amount over the mean step's, over the processes' common steps."""
    length = min(process.n_steps for process in processes)
    found = np.mean([process.amounts[amount][:length] for process in processes], axis=0)
    return np.asarray(found / (found.mean() or 1.0))


def samples(processes: Sequence[Process], name: str, half: float | None = None) -> list[Sample]:
    """One of QUANTITIES of every process. Amounts are counted, not sampled, so a rate is as sure as its time.

    `half` is half the interval over a single process's steps.
    """
    if name in ELAPSED:
        if half is not None:
            half = processes[0].elapsed_error * student.quantile(CONFIDENCE, processes[0].freedom)
        return [
            Sample(process.worker, math.log(getattr(process, name)), process.elapsed_error, half)
            for process in processes
        ]
    return [
        Sample(process.worker, math.log(getattr(process, name)), process.standard_error, half) for process in processes
    ]


def mean_of_logs(taken: Sequence[Sample], spread: Spread | None = None) -> Mean:
    """The mean over workers, else over processes, else what the only process says; `spread` is the run's noise."""
    groups = by_worker(taken)
    if len(groups) > 1:
        own = _student(list(groups.values()), _floor(taken), "workers")
        if spread is None or own.half is None:
            return own
        # Workers' own speeds cannot be pooled; but they are not more alike than processes are.
        least = spread.sd / math.sqrt(len(groups)) * _quantile(1.0 - CONFIDENCE, spread.df)
        return replace(own, half=max(own.half, least))
    if spread is not None:
        value, error = math.fsum(one.log for one in taken) / len(taken), spread.sd / math.sqrt(len(taken))
        return _mean(value, error, spread.df, _floor(taken), "processes", len(taken), 1.0 - CONFIDENCE)
    if len(taken) > 1:
        return _student([one.log for one in taken], _floor(taken), "processes")
    half = taken[0].half
    if half is not None:
        half = math.hypot(half, NORMAL * ASSUMED_NOISE)
    over: Over | None = None if half is None else "steps"
    return Mean(value=taken[0].log, error=_floor(taken), df=None, floor=_floor(taken), half=half, over=over, units=1)


def difference(
    of: Sequence[Sample],
    to: Sequence[Sample],
    *,
    same_workers: bool = True,
    noise_of: tuple[Spread | None, Spread | None] = (None, None),
    paired: Spread | None = None,
    level: float = 1.0 - CONFIDENCE,
) -> Mean:
    """`of` less `to`, so the logarithm of a ratio: worker by worker on the workers that both have, else by Welch.

    `same_workers` False says that equal names are not equal machines. `noise_of` is the noise of either side as the
    whole run tells it. Where one side is a single process, it is taken to be as noisy as the other side's; where both
    are, only their steps can be compared. `level` is how often the interval may miss.
    """
    ours, theirs = by_worker(of), by_worker(to)
    shared = ours.keys() & theirs.keys() if same_workers else set()
    floor = math.hypot(_floor(of), _floor(to))
    if len(shared) > 1:
        units = [ours[worker] - theirs[worker] for worker in sorted(shared)]
        if paired is not None:
            error, df = paired.sd / math.sqrt(len(units)), paired.df
            return _mean(statistics.fmean(units), error, df, floor, "workers", len(units), level)
        if noise_of[0] is None or noise_of[1] is None:
            return _student(units, floor, "workers", level)
        error, df = _together(noise_of[0], len(units), noise_of[1], len(units))
        return _mean(statistics.fmean(units), error, df, floor, "workers", len(units), level)
    one_worker = same_workers and len(ours) == len(theirs) == len(shared) == 1
    if one_worker and noise_of[0] is not None and noise_of[1] is not None:
        value = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
        error, df = _together(noise_of[0], len(of), noise_of[1], len(to))
        return _mean(value, error, df, floor, "processes", min(len(of), len(to)), level)
    return _welch(mean_of_logs(of), mean_of_logs(to), level, 0.0 if one_worker else ASSUMED_NOISE)


def noise(processes: Sequence[Process]) -> Noise:
    """The measured noise of one configuration, on each level where there is something to compare."""
    groups: dict[str, list[float]] = {}
    for process in processes:
        groups.setdefault(process.worker, []).append(math.log(process.step_time_sec))
    repeats = [group for group in groups.values() if len(group) > 1]
    within = sum(statistics.variance(group) * (len(group) - 1) for group in repeats)
    freedom = sum(len(group) - 1 for group in repeats)
    means = [statistics.fmean(group) for group in groups.values()]
    return Noise(
        steps_percent=statistics.median(process.noise_percent for process in processes),
        processes_percent=100.0 * math.expm1(math.sqrt(within / freedom)) if freedom else None,
        workers_percent=100.0 * math.expm1(_deviation(means)) if len(means) > 1 else None,
    )


def by_worker(taken: Iterable[Sample]) -> dict[str, float]:
    """Worker to the mean of its processes."""
    groups: dict[str, list[float]] = {}
    for one in taken:
        groups.setdefault(one.worker, []).append(one.log)
    return {worker: group[0] if len(group) == 1 else statistics.fmean(group) for worker, group in groups.items()}


def _floor(taken: Sequence[Sample]) -> float:
    """The standard error that the noise within the processes leaves of their mean, were they all alike."""
    return math.sqrt(sum(one.error**2 for one in taken)) / len(taken)


def _student(units: Sequence[float], floor: float, over: Over, level: float = 1.0 - CONFIDENCE) -> Mean:
    error, df = _deviation(units) / math.sqrt(len(units)), len(units) - 1.0
    return _mean(statistics.fmean(units), error, df, floor, over, len(units), level)


def _together(mine: Spread, n_mine: int, other: Spread, n_other: int) -> tuple[float, float]:
    """The standard error of a difference of means and its degrees of freedom, Welch's where the noises are two."""
    parts = (mine.sd**2 / n_mine, other.sd**2 / n_other)
    if mine == other:
        return math.sqrt(sum(parts)), mine.df
    lost = parts[0] ** 2 / mine.df + parts[1] ** 2 / other.df
    return math.sqrt(sum(parts)), sum(parts) ** 2 / lost if lost > 0 else mine.df + other.df


def _mean(value: float, error: float, df: float, floor: float, over: Over, units: int, level: float) -> Mean:
    half = max(error * _quantile(level, df), floor * _normal(level))
    return Mean(value=value, error=error, df=df, floor=floor, half=half, over=over, units=units)


def _quantile(level: float, df: float) -> float:
    return student.quantile(1.0 - level, round(df, 2))


@functools.lru_cache(maxsize=1024)
def _normal(level: float) -> float:
    return statistics.NormalDist().inv_cdf(1.0 - level / 2.0)


def _deviation(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard deviation; `statistics.stdev` is exact in fractions, and took a third of a large report's time."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _welch(mine: Mean, other: Mean, level: float, apart: float) -> Mean:
    """`apart` is how far two workers are taken to differ, where a side knows one worker alone."""
    value, floor = mine.value - other.value, math.hypot(mine.floor, other.floor)
    units = min(mine.units, other.units)
    if mine.df is None and other.df is None:
        half = None
        if mine.half is not None and other.half is not None:
            wider = _normal(level) / NORMAL
            half = math.hypot(mine.half * wider, other.half * wider, math.sqrt(2.0) * apart * _normal(level))
        over: Over | None = None if half is None else "steps"
        return Mean(value=value, error=floor, df=None, floor=floor, half=half, over=over, units=units)
    if mine.df is None or other.df is None:
        many = other if mine.df is None else mine
        error, df = many.error * math.sqrt(many.units + 1.0), many.df or 1.0
        over, alone = many.over, 0 if many.over == "workers" else 2
    else:
        error = math.hypot(mine.error, other.error)
        # Welch and Satterthwaite; without any noise every number of degrees says the same.
        parts = mine.error**4 / mine.df + other.error**4 / other.df
        df = error**4 / parts if parts > 0 else mine.df + other.df
        over = mine.over if mine.over == other.over else "processes"
        alone = [mine.over, other.over].count("processes")
    wider = math.hypot(error, math.sqrt(alone) * apart)
    if wider > error:
        df = min(df * (wider / error) ** 4 if error else math.inf, _MOST_DEGREES)  # what is assumed has any number
        error = wider
    return _mean(value, error, df, floor, over or "processes", units, level)


def estimate(mean: Mean, n: int) -> Estimate:
    """A mean of logarithms as a value over `n` steps."""
    value, low, high = mean.ends
    return Estimate(value=value, low=low, high=high, n=n, over=mean.over)


def _flags(processes: Sequence[Process]) -> Iterable[str]:
    outliers, steps = sum(process.outliers for process in processes), sum(process.n_steps for process in processes)
    if outliers > OUTLIERS_TO_FLAG * steps:
        most = max(processes, key=lambda one: one.outliers)
        where = f", most on {most.worker}" if len(processes) > 1 else ""
        yield f"{outliers:,} of {steps:,} steps stand out from their process's others{where}"
    drifting = [process for process in processes if process.drifts and process.drift_percent is not None]
    if drifting:
        worst = max(drifting, key=lambda one: abs(one.drift_percent or 0.0))
        drift = f"{worst.drift_percent:+.1f} % from first to last step on {worst.worker}"
        yield f"the step time drifted while it was measured in {len(drifting)} of {len(processes)} processes: {drift}"
