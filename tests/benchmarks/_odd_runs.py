"""Runs in which one configuration is unlike the others, as tables of logarithms: thousands of runs in seconds.

Cells are normal noise without steps, so the truth is known exactly. `scenarios.py` simulates whole runs.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from reports.comparison.tests import SPEED, STEP_PARTS, Hypothesis, Verdict, judge
from reports.statistics import per_config, pooling
from reports.statistics.per_config import Mean, Sample
from reports.statistics.per_process import CONFIDENCE

Floats = NDArray[np.float64]
NOISE, WORKER_SPREAD = 0.005, 0.01
REACTION = 0.05
ALIKE, NOISIER, REACTS = "alike", "three times noisier", "5 % slower on one slow worker"


def table(random: np.random.Generator, configurations: int, workers: int, model: str, odd: int = 1) -> Floats:
    """Draw the logarithms of time of equal configurations, shape (configurations, workers).

    The truth is a healthy worker's. The workers' own speeds are the same in each table.
    """
    speeds = np.linspace(-WORKER_SPREAD, WORKER_SPREAD, workers)
    noise = random.normal(0.0, NOISE, (configurations, workers))
    if model == NOISIER:
        noise[odd] *= 3.0
    elif model == REACTS:
        noise[odd, random.integers(workers)] += REACTION * random.uniform(0.7, 1.3)
    return np.asarray(noise + speeds)


def repeats(random: np.random.Generator, configurations: int, processes: int, model: str, odd: int = 1) -> Floats:
    """Draw the logarithms of time of equal configurations on one worker, shape (configurations, processes)."""
    noise = random.normal(0.0, NOISE, (configurations, processes))
    if model == NOISIER:
        noise[odd] *= 3.0
    return np.asarray(noise)


def ratios(logs: Floats, *, one_worker: bool = False) -> list[Mean]:
    """Compare every configuration with the first, as the report does; `one_worker`: columns are processes."""
    samples = {str(row): _samples(values, one_worker=one_worker) for row, values in enumerate(logs.tolist())}
    spreads = per_config.spreads(samples)
    return [
        per_config.difference(
            samples[label],
            samples["0"],
            noises=(spreads[label], spreads["0"]),
            level=(1.0 - CONFIDENCE) / (len(samples) - 1),
        )
        for label in list(samples)[1:]
    ]


def changes(before: Floats, after: Floats) -> list[tuple[Mean, Verdict]]:
    """Compare every configuration with an earlier run, and the last row over all of them, as `inv compare` does."""
    cells = {str(row): _by_worker(values) for row, values in enumerate((after - before).tolist())}
    spreads = pooling.difference_spreads(cells)
    means = [
        per_config.difference(_samples(new), _samples(old), paired_noise=spreads[label])
        for label, new, old in zip(cells, after.tolist(), before.tolist(), strict=True)
    ]
    sides = [_samples(logs.mean(axis=0).tolist()) for logs in (after, before)]
    means.append(per_config.difference(*sides))
    part = Mean(value=0.0, error=1.0, df=1.0, floor=0.0, half=1.0, over="workers", units=2)  # shares the 5 %
    hypotheses = [Hypothesis(mean=mean, family=SPEED, test=(str(row),)) for row, mean in enumerate(means)]
    verdicts = judge([*hypotheses, Hypothesis(mean=part, family=STEP_PARTS, test=("part",))], 0.03)
    return list(zip(means, verdicts, strict=False))


def holds(mean: Mean, truth: float = 0.0) -> bool:
    return mean.half is not None and abs(mean.value - truth) <= mean.half


def _samples(logs: Iterable[float], *, one_worker: bool = False) -> list[Sample]:
    names = _by_worker(logs)
    return [Sample(worker="w0" if one_worker else worker, log=log, error=0.0) for worker, log in names.items()]


def _by_worker(logs: Iterable[float]) -> Mapping[str, float]:
    return {f"w{index}": log for index, log in enumerate(logs)}
