"""What several processes' steps say about one configuration, and about two of them. Pure; no files, no pandas.

A process is what repeats, not a step. Three processes of one configuration on one GPU were measured to differ by 0.7 %
while each one's steps agreed within 0.1 %: an interval over steps alone says how well one process was measured, and
nothing of the next process. So intervals are Student's t over the largest unit of which there are two: workers (each
the mean of its processes), else processes, else the steps of the only process, and `Estimate.over` says which. With two
workers there is one degree of freedom and the interval is wide; that is what two workers know. An interval is never
narrower than the steps within the processes allow, so two processes that agree by chance do not look exact.

The value of a configuration is the geometric mean over its workers of their processes' median step times; rates are the
mean amount per step over that median, per worker. A ratio of two configurations that ran on the same workers is taken
worker by worker, so a machine that is slow for both cancels out.

In simulation (tests/unit/reports/statistics/test_configurations.py; workers that differ, steps that resemble their
neighbours, outliers, drift) these intervals hold the true value in at least 93 % of 1,000 runs with 1, 2, 3, 4 and 8
workers.

Not covered: that a configuration's workers are a sample of all such workers is the reader's to judge.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.statistics import student
from reports.statistics.processes import CONFIDENCE, ProcessSteps, describe, half_width
from reports.statistics.values import Estimate, Measured, Noise, Over, Process, Ratio

RATES = ("samples_per_sec", "tokens_per_sec", "useful_tokens_per_sec")
QUANTITIES = ("step_time_sec", *RATES)
# A ratio of single processes gets its word only beyond this: processes of one configuration were seen 0.7 % apart.
SINGLE_PROCESS_MARGIN = 0.02
OUTLIERS_TO_FLAG = 0.1  # of the steps; fewer do not move a median
NORMAL = statistics.NormalDist().inv_cdf(0.5 + CONFIDENCE / 2.0)


@dataclass(frozen=True, kw_only=True)
class Sample:
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


def measure(processes: Sequence[ProcessSteps]) -> Measured:
    """Describe the processes of one configuration and combine them. Raises ValueError without any."""
    return combine(describe(processes))


def combine(processes: Sequence[Process]) -> Measured:
    """One configuration from its processes, in any order. Raises ValueError without any."""
    if not processes:
        raise ValueError("a configuration needs at least one process's steps")
    ordered = sorted(processes, key=lambda one: (one.worker, one.process))
    n_steps = sum(one.n_steps for one in ordered)
    half = half_width(ordered[0]) if len(ordered) == 1 else None
    found = {name: _estimate(mean_of_logs(samples(ordered, name, half)), n_steps) for name in QUANTITIES}
    medians = {worker: math.exp(value) for worker, value in _by_worker(samples(ordered, "step_time_sec")).items()}
    return Measured(
        n_workers=len(medians),
        n_processes=len(ordered),
        n_steps=n_steps,
        step_time_sec=found["step_time_sec"],
        samples_per_sec=found["samples_per_sec"],
        tokens_per_sec=found["tokens_per_sec"],
        useful_tokens_per_sec=found["useful_tokens_per_sec"],
        padding_percent=100.0 * (1.0 - found["useful_tokens_per_sec"].value / found["tokens_per_sec"].value),
        worker_spread=max(medians.values()) / min(medians.values()) if len(medians) > 1 else None,
        worker_medians=medians,
        noise=noise(ordered),
        outliers=sum(one.outliers for one in ordered),
        flags=tuple(_flags(ordered)),
        half_width=half,
        processes=tuple(ordered),
    )


def ratio(of: Measured, to: Measured, rate: str) -> Ratio:
    """`of` over `to` in one of RATES. The verdict is about speed: "faster" or "slower", None where it is not shown."""
    mean = difference(samples(of.processes, rate, of.half_width), samples(to.processes, rate, to.half_width))
    n = min(of.n_steps, to.n_steps)
    value = getattr(of, rate).value / getattr(to, rate).value
    if mean.half is None:
        return Ratio(value=value, low=None, high=None, n=n, verdict=None)
    low, high = value * math.exp(-mean.half), value * math.exp(mean.half)
    margin = 1.0 + (SINGLE_PROCESS_MARGIN if mean.over == "steps" else 0.0)
    verdict = "faster" if low > margin else "slower" if high < 1.0 / margin else None
    return Ratio(value=value, low=low, high=high, n=n, verdict=verdict, over=mean.over)


def samples(processes: Sequence[Process], name: str, half: float | None = None) -> list[Sample]:
    """One of QUANTITIES of every process. Amounts are counted, not sampled, so a rate is as sure as its time.

    `half` is half the interval over a single process's steps.
    """
    return [
        Sample(worker=one.worker, log=math.log(getattr(one, name)), error=one.standard_error, half=half)
        for one in processes
    ]


def mean_of_logs(taken: Sequence[Sample]) -> Mean:
    """The mean over workers, else over processes, else what the only process says."""
    groups = _by_worker(taken)
    units = list(groups.values()) if len(groups) > 1 else [one.log for one in taken]
    floor = _floor(taken)
    if len(units) == 1:
        half = taken[0].half
        over: Over | None = None if half is None else "steps"
        return Mean(value=units[0], error=floor, df=None, floor=floor, half=half, over=over, units=1)
    return _student(units, floor, "workers" if len(groups) > 1 else "processes")


def difference(of: Sequence[Sample], to: Sequence[Sample], *, same_workers: bool = True) -> Mean:
    """`of` less `to`, so the logarithm of a ratio: worker by worker on the same two or more workers, else by Welch.

    `same_workers` False says that equal names are not equal machines. Where one side is a single process, it is taken
    to be as noisy as the other side's; where both are, only their steps can be compared.
    """
    ours, theirs = _by_worker(of), _by_worker(to)
    if same_workers and len(ours) > 1 and ours.keys() == theirs.keys():
        return _student(
            [ours[worker] - theirs[worker] for worker in ours], math.hypot(_floor(of), _floor(to)), "workers"
        )
    return _welch(mean_of_logs(of), mean_of_logs(to))


def noise(processes: Sequence[Process]) -> Noise:
    """The measured noise of one configuration, on each level where there is something to compare."""
    groups: dict[str, list[float]] = {}
    for one in processes:
        groups.setdefault(one.worker, []).append(math.log(one.step_time_sec))
    repeats = [group for group in groups.values() if len(group) > 1]
    within = sum(statistics.variance(group) * (len(group) - 1) for group in repeats)
    freedom = sum(len(group) - 1 for group in repeats)
    means = [statistics.fmean(group) for group in groups.values()]
    return Noise(
        steps_percent=statistics.median(one.noise_percent for one in processes),
        processes_percent=100.0 * math.expm1(math.sqrt(within / freedom)) if freedom else None,
        workers_percent=100.0 * math.expm1(_deviation(means)) if len(means) > 1 else None,
    )


def _by_worker(taken: Iterable[Sample]) -> dict[str, float]:
    """Worker to the mean of its processes."""
    groups: dict[str, list[float]] = {}
    for one in taken:
        groups.setdefault(one.worker, []).append(one.log)
    return {worker: group[0] if len(group) == 1 else statistics.fmean(group) for worker, group in groups.items()}


def _floor(taken: Sequence[Sample]) -> float:
    """The standard error that the noise within the processes leaves of their mean, were they all alike."""
    return math.sqrt(sum(one.error**2 for one in taken)) / len(taken)


def _student(units: Sequence[float], floor: float, over: Over) -> Mean:
    error, df = _deviation(units) / math.sqrt(len(units)), len(units) - 1.0
    half = max(error * student.quantile(CONFIDENCE, df), floor * NORMAL)
    return Mean(value=statistics.fmean(units), error=error, df=df, floor=floor, half=half, over=over, units=len(units))


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation; `statistics.stdev` is exact in fractions, and took a third of a large report's time."""
    mean = statistics.fmean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _welch(mine: Mean, other: Mean) -> Mean:
    value, floor = mine.value - other.value, math.hypot(mine.floor, other.floor)
    units = min(mine.units, other.units)
    if mine.df is None and other.df is None:
        half = None if mine.half is None or other.half is None else math.hypot(mine.half, other.half)
        over: Over | None = None if half is None else "steps"
        return Mean(value=value, error=floor, df=None, floor=floor, half=half, over=over, units=units)
    if mine.df is None or other.df is None:
        many = other if mine.df is None else mine
        error, df = many.error * math.sqrt(many.units + 1.0), many.df
        over = many.over
    else:
        error = math.hypot(mine.error, other.error)
        # Welch and Satterthwaite; without any noise every number of degrees says the same.
        parts = mine.error**4 / mine.df + other.error**4 / other.df
        df = error**4 / parts if parts > 0 else mine.df + other.df
        over = mine.over if mine.over == other.over else "processes"
    half = max(error * student.quantile(CONFIDENCE, round(df or 1.0, 2)), floor * NORMAL)
    return Mean(value=value, error=error, df=df, floor=floor, half=half, over=over, units=units)


def _estimate(mean: Mean, n: int) -> Estimate:
    value = math.exp(mean.value)
    if mean.half is None:
        return Estimate(value=value, low=None, high=None, n=n)
    low, high = value * math.exp(-mean.half), value * math.exp(mean.half)
    return Estimate(value=value, low=low, high=high, n=n, over=mean.over)


def _flags(processes: Sequence[Process]) -> Iterable[str]:
    outliers, steps = sum(one.outliers for one in processes), sum(one.n_steps for one in processes)
    if outliers > OUTLIERS_TO_FLAG * steps:
        most = max(processes, key=lambda one: one.outliers)
        where = f", most on {most.worker}" if len(processes) > 1 else ""
        yield f"{outliers:,} of {steps:,} steps stand out from their process's others{where}"
    drifting = [one for one in processes if one.drifts and one.drift_percent is not None]
    if drifting:
        worst = max(drifting, key=lambda one: abs(one.drift_percent or 0.0))
        drift = f"{worst.drift_percent:+.1f} % from first to last step on {worst.worker}"
        yield f"the step time drifted while it was measured in {len(drifting)} of {len(processes)} processes: {drift}"
