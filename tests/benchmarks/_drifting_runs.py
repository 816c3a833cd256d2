"""Runs on machines whose speed changes while they last, as `inv bench` would order their trials.

A run is written as shape: configurations x workers x processes of each on a worker.
"""

from dataclasses import dataclass, replace

import numpy as np

from reports.summary import sentences
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from tests.support.reports.scenarios import Scenario

STEADY = Scenario(slow=0.0)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares in runs of equal configurations.

    `headline`: the interval of the largest ratio, if there is one, holds 1. `train_with` and `any_word`: runs with a
    false recommendation, and with any false verdict.
    """

    headline: float
    train_with: float
    any_word: float


def fleet(configurations: int, workers: int, processes: int = 1, drift: str = "none", **changed: float) -> Scenario:
    """Return a fleet of this shape; the workers of one machine are equally fast."""
    return replace(
        STEADY,
        suite="quick" if configurations == 2 else "full",
        configurations=configurations,
        workers=workers,
        repeats=processes,
        worker_spread=0.0 if workers == 1 else STEADY.worker_spread,
        drift=drift,
        **changed,
    )


def equal(world: Scenario, runs: int) -> Rates:
    """Measure runs of equal configurations."""
    random = np.random.default_rng(15)
    train_with, any_word, best, heads = 0, 0, 0, 0
    for _ in range(runs):
        summary = summarize(world.run(random))
        ratios = [row.useful_tokens_ratio for row in summary.rows if row.useful_tokens_ratio is not None]
        headline = max(ratios, key=lambda ratio: ratio.value)
        if headline.low is not None and headline.high is not None:
            heads += 1
            best += headline.low <= 1.0 <= headline.high
        train_with += sentences.recommendation(summary).startswith("Train with")
        any_word += bool(set(verdicts(summary).values()) - {None})
    return Rates(
        headline=best / heads if heads else float("nan"),
        train_with=train_with / runs,
        any_word=any_word / runs,
    )


def found(world: Scenario, runs: int, percent: float = 3.0) -> float:
    """Return the share of runs in which the last of otherwise equal configurations is called slower."""
    random, label = np.random.default_rng(16), world.labels[-1]
    slower = {label: float(np.log1p(percent / 100.0))}
    return sum(verdicts(summarize(world.run(random, slower))).get(label) == "slower" for _ in range(runs)) / runs


def verdicts(summary: Summary) -> dict[str, str | None]:
    """Map each configuration with a ratio to its verdict."""
    ratios = {row.label: row.useful_tokens_ratio for row in summary.rows}
    return {label: ratio.verdict for label, ratio in ratios.items() if ratio is not None}


def slowed(workers: int, runs: int) -> tuple[float, float]:
    """Return how often the second configuration is called faster, and recommended.

    Its median is 4 % faster, and 6.4 % of its steps are slow, so that its elapsed rate is 0.9 % slower.
    """
    random, world = np.random.default_rng(17), fleet(2, workers, slow_second=0.064)
    faster, train_with = 0, 0
    for _ in range(runs):
        summary = summarize(world.run(random, {world.labels[1]: -float(np.log(1.04))}))
        faster += verdicts(summary)[world.labels[1]] == "faster"
        train_with += sentences.recommendation(summary).startswith("Train with")
    return faster / runs, train_with / runs
