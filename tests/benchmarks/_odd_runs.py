"""Runs in which one configuration may be unlike the others, as tables of logarithms: thousands of runs in seconds.

Cells are normal noise without steps, so the truth is known exactly. `scenarios.py` simulates whole runs.
"""

import numpy as np
from numpy.typing import NDArray

from reports.comparison.hypotheses import Hypothesis, Verdict, judge
from reports.statistics import per_config
from reports.statistics.per_config import Mean, Sample
from reports.statistics.per_process import CONFIDENCE

Floats = NDArray[np.float64]
NOISE, WORKER_SPREAD = 0.005, 0.01


def table(
    random: np.random.Generator, configurations: int, workers: int, *, noisier: int | None = None, slower: float = 0.0
) -> Floats:
    """Draw the logarithms of time, shape (configurations, workers); the workers' own speeds are always the same.

    Configuration `noisier` has three times the noise; the last one takes `slower` percent more time.
    """
    noise = random.normal(0.0, NOISE, (configurations, workers))
    if noisier is not None:
        noise[noisier] *= 3.0
    noise[-1] += np.log1p(slower / 100.0)
    return np.asarray(noise + np.linspace(-WORKER_SPREAD, WORKER_SPREAD, workers))


def ratios(logs: Floats) -> list[Mean]:
    """Compare every configuration with the first, as the report does."""
    samples = _samples(logs)
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


def verdicts(before: Floats, after: Floats) -> list[Verdict]:
    """Compare every configuration with an earlier run, as `inv compare` does, without an effect of the day."""
    old, new = _samples(before), _samples(after)
    noises = [per_config.spreads(side) for side in (new, old)]
    means = [
        per_config.difference(new[label], old[label], noises=(noises[0].get(label), noises[1].get(label)))
        for label in new
    ]
    return judge([Hypothesis(mean=mean) for mean in means], 0.03)


def holds(mean: Mean) -> bool:
    """Return True if the interval holds 0."""
    return mean.half is not None and abs(mean.value) <= mean.half


def _samples(logs: Floats) -> dict[str, list[Sample]]:
    return {
        str(row): [Sample(worker=f"w{index}", log=log, error=0.0) for index, log in enumerate(values)]
        for row, values in enumerate(logs.tolist())
    }
