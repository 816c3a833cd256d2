"""Runs in which one configuration is unlike the others, as tables of logarithms: thousands of runs in seconds.

Cells are normal noise without steps, so the truth is known exactly. `scenarios.py` simulates whole runs.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from reports.comparison.hypotheses import Hypothesis, Verdict, judge
from reports.statistics import per_config
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
    """Compare every configuration with an earlier run, as `inv compare` does, without an effect of the day."""
    old, new = [{str(row): _samples(values) for row, values in enumerate(side.tolist())} for side in (before, after)]
    noises = [per_config.spreads(side) for side in (new, old)]
    means = [
        per_config.difference(new[label], old[label], noises=(noises[0].get(label), noises[1].get(label)))
        for label in new
    ]
    return list(zip(means, judge([Hypothesis(mean=mean) for mean in means], 0.03), strict=True))


def holds(mean: Mean, truth: float = 0.0) -> bool:
    return mean.half is not None and abs(mean.value - truth) <= mean.half


def _samples(logs: Iterable[float], *, one_worker: bool = False) -> list[Sample]:
    names = [(f"w{index}", log) for index, log in enumerate(logs)]
    return [Sample(worker="w0" if one_worker else worker, log=log, error=0.0) for worker, log in names]


def best_power(own_df: int, other_df: int, effect: float, false: float, ratios_of_baseline: int = 1) -> float:
    """Return the most power against `effect` (in standard errors) that `false` false verdicts of a noisier one allow.

    By the lemma of Neyman and Pearson, of all limits that depend on the own variance over that of the others. A method
    that knows the factor of the noise, and that only one configuration can have it, reaches it; no method does better.
    With `ratios_of_baseline` above 1, the noisier one is the baseline of so many ratios, and any false verdict counts.
    """
    random, factor = np.random.default_rng(14), 9.0
    draws, limits = 1000, np.append(np.linspace(2.0, 12.0, 200), np.linspace(12.5, 60.0, 40))
    own = random.chisquare(own_df, draws) / own_df * np.where(np.arange(draws) % 2, factor, 1.0)
    ratios = own / (random.chisquare(other_df, draws) / other_df)
    shape = (1.0 + own_df * ratios / other_df) / (1.0 + own_df * ratios / other_df / factor)
    likelihood = factor ** (-own_df / 2.0) * shape ** ((own_df + other_df) / 2.0)
    alike, noisier = 2.0 / (1.0 + likelihood), 2.0 * likelihood / (1.0 + likelihood)
    totals = np.sqrt(random.chisquare(own_df + other_df, (200, 1, 1)))
    normal = np.sort(random.normal(size=100_000))
    if ratios_of_baseline > 1:
        others = random.normal(size=(100_000, ratios_of_baseline))
        errors = np.abs(factor**0.5 * normal[:, None] - others).max(axis=1) / 2.0**0.5
    else:
        errors = np.abs(factor**0.5 * normal)
    errors.sort()
    power, errors_made = np.empty((draws, len(limits))), np.empty((draws, len(limits)))
    for row, ratio in enumerate(ratios):
        for result, values, scale, shift in ((power, -normal[::-1], 1.0, effect), (errors_made, errors, factor, 0.0)):
            sd = totals[:, 0] / np.sqrt(other_df + own_df * ratio / scale)
            result[row] = 1.0 - np.searchsorted(values, limits * sd - shift).mean(axis=0) / len(values)
    low, high = 1e-4, 1e4
    for _ in range(50):
        price = (low * high) ** 0.5
        best = (alike[:, None] * power - price * noisier[:, None] * errors_made).argmax(axis=1)
        rows = np.arange(draws)
        low, high = (price, high) if (noisier * errors_made[rows, best]).mean() > false else (low, price)
    return float((alike * power[rows, best]).mean())
