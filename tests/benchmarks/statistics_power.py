"""Error rates of the report and `inv compare` over thousands of simulated runs, each with its goal.

The fleets are those of tests/support/reports/scenarios.py, whose truth is known. A verdict is false if all
configurations are equal and one is recommended over the baseline or called faster or slower. Regret is the distance of
the recommended configuration to the truly fastest. Coverage is the share of runs whose 95 % interval holds the truth:
of the headline's ratio, and of its useful tokens per second on a healthy worker. Tables of logarithms (`_odd_runs`)
test the configuration that is unlike the others, over ten times as many runs. Every share has its standard error.
`TRUST_RUNS` in the environment: runs a line (default 400).
"""

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reports.comparison.compare import STEADY, Comparison, compare
from reports.read.loaded_run import Run
from reports.statistics.paired_losses import paired_difference
from reports.statistics.per_config import Mean
from reports.statistics.types import Estimate, Ratio
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from reports.training.comparison import paired_interval
from tasks.settings.sections import QualitySection
from tests.benchmarks import Figure, _drifting_runs, _odd_runs, print_figures
from tests.support.reports.drifts import DRIFTS
from tests.support.reports.scenarios import STEP_SEC, USEFUL, Floats, Scenario

RUNS = int(os.environ.get("TRUST_RUNS", "400"))
FULL = Scenario(suite="full", configurations=12)
QUICK = Scenario(configurations=2)
# The noise of an example's change of loss, for each of its targets.
TRAINING_NOISES: Mapping[str, Callable[[np.random.Generator, int], Floats]] = {
    "changes per token": lambda random, count: random.normal(0.0, 0.05, count),
    "changes as skewed as an exponential distribution": lambda random, count: (
        0.05 * (random.exponential(1.0, count) - 1.0)
    ),
}
MARGIN = QualitySection().max_increase_percent
# A pair's noise, of standard deviation 1. With outliers, one pair in ten takes another course.
PAIR_NOISES: Mapping[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda random, count: random.normal(0.0, 1.0, count),
    "heavy tails": lambda random, count: random.standard_t(3, count) / math.sqrt(3.0),
    "outliers": lambda random, count: random.normal(
        0.0, np.where(random.random(count) < 0.1, 3.0, 1.0) / math.sqrt(1.8)
    ),
    "skewed": lambda random, count: random.exponential(1.0, count) - 1.0,
    # As the nine real pairs of the demo's model: one in nine is worse, the others hardly differ.
    "one-sided outliers": lambda random, count: (
        ((random.random(count) < 1.0 / 9.0) - 1.0 / 9.0 + 0.02 * random.normal(0.0, 1.0, count)) / math.sqrt(8.0 / 81.0)
    ),
}
# Configurations x workers x processes of each on a worker.
DRIFT_SHAPES = ((2, 2, 1), (12, 4, 1), (12, 2, 1), (2, 1, 2), (2, 2, 2), (2, 1, 1))
POWER_SHAPES = ((12, 4, 1), (12, 2, 1), (3, 4, 1), (2, 4, 1), (2, 2, 2), (2, 1, 2))
PAIRS = QualitySection().pairs


def main() -> list[Figure]:
    rows = (drifts, slow_steps, odd_configurations, trainings, same_losses, recommendations, coverages, comparisons)
    return [each for measure in rows for each in measure()]


def drifts(runs: int = RUNS) -> Iterator[Figure]:
    """Measure equal configurations on machines that change, and how often one that is 3 % slower is found."""
    for shape, drift in itertools.product(DRIFT_SHAPES, DRIFTS):
        name = " x ".join(map(str, shape))
        rates = _drifting_runs.equal(_drifting_runs.fleet(*shape, drift=drift), runs)
        if shape[1:] == (1, 1):
            yield figure(f"drift {drift}, {name}: any word", rates.any_word, "0 %", runs)
            continue
        yield figure(f"drift {drift}, {name}: the largest ratio's coverage", rates.headline, "93 %", runs)
        yield figure(f"drift {drift}, {name}: Train with", rates.train_with, "5 %", runs)
        yield figure(f"drift {drift}, {name}: any word", rates.any_word, "-", runs)
    for shape, drift in itertools.product(POWER_SHAPES, ("none", "linear 5 %", "step of 5 %")):
        share_found = _drifting_runs.found(_drifting_runs.fleet(*shape, drift=drift), runs)
        yield figure(f"drift {drift}, {' x '.join(map(str, shape))}: one 3 % slower, found", share_found, "-", runs)


def slow_steps(runs: int = RUNS) -> Iterator[Figure]:
    """Measure a configuration whose median is 4 % faster and whose elapsed rate is 0.9 % slower, by slow steps."""
    for workers in (2, 4):
        rates = _drifting_runs.slowed(workers, runs)
        yield figure(f"slow steps take 4 % back, {workers} workers: faster", rates[0], "-", runs)
        yield figure(f"slow steps take 4 % back, {workers} workers: Train with", rates[1], "-", runs)


def odd_configurations(runs: int = 10 * RUNS) -> Iterator[Figure]:
    """Measure equal configurations of which one is noisier, and how often a slower one is found."""
    random = np.random.default_rng(7)
    for count, workers in itertools.product((2, 12), (2, 3, 4, 8)):
        name = f"{count} configurations, {workers} workers, one three times noisier"
        draw = functools.partial(_odd_runs.table, random, count, workers)
        odd, baseline = [[_odd_runs.ratios(draw(noisier=index)) for _ in range(runs)] for index in (1, 0)]
        yield figure(f"{name}: its ratio's coverage", share(odd, lambda means: _odd_runs.holds(means[0])), "93 %", runs)
        yield figure(f"{name}: any false word in the table", share(odd, is_false), "5 %", runs)
        yield figure(f"{name}, it is the baseline: any", share(baseline, is_false), "5 %", runs)
        compared = [_odd_runs.verdicts(draw(noisier=1), draw(noisier=1)) for _ in range(runs)]
        yield figure(f"compare, {name}: any false word", share(compared, has_word), "5 %", runs)
    for count, workers, percent in itertools.product((2, 12), (2, 4), (2, 3)):
        name = f"{count} configurations, {workers} workers, one {percent} % slower"
        draw = functools.partial(_odd_runs.table, random, count, workers)
        last = [_odd_runs.ratios(draw(slower=percent))[-1] for _ in range(runs)]
        yield figure(f"{name}: found", share(last, lambda mean: mean.value > (mean.half or np.inf)), "-", runs)
        changed = [_odd_runs.verdicts(draw(), draw(slower=percent))[-1] for _ in range(runs)]
        yield figure(f"compare, {name}: found", share(changed, lambda row: row.verdict == "faster"), "-", runs)


def is_false(means: Sequence[Mean]) -> bool:
    return not all(map(_odd_runs.holds, means))


def has_word(rows: Sequence[Any]) -> bool:
    """Return True if a row of a comparison is called faster or slower."""
    return any(row.verdict in ("faster", "slower") for row in rows)


def trainings(runs: int = 5 * RUNS) -> Iterator[Figure]:
    """Measure how often equal trainings are called different, with examples of skewed lengths."""
    for examples, noise in itertools.product((8, 12, 30, 100), TRAINING_NOISES):
        name = f"two trainings, {examples} examples, {noise}: false difference"
        yield figure(name, false_changes(examples, noise, runs), "5 %", runs)


def false_changes(examples: int, noise: str, runs: int) -> float:
    """Return the share of equal trainings that are called different."""
    random, different = np.random.default_rng(11), 0
    for _ in range(runs):
        targets = np.maximum(1, np.round(np.exp(random.normal(4.0, 1.2, examples))))
        changes = targets * TRAINING_NOISES[noise](random, examples)
        low, high = paired_interval(changes.tolist(), targets.tolist()) or (0.0, 0.0)
        different += not low <= 0.0 <= high
    return different / runs


def same_losses(runs: int = 10 * RUNS) -> Iterator[Figure]:
    """Measure what is said of a configuration's loss after quality.pairs pairs, by its true difference.

    Real pairs have outliers: a training that takes another course (docs/measurements.md). A difference of two trainings
    is hardly ever skewed; the last two noises show what would follow.
    """
    for sd, noise in itertools.product((0.02, 0.05, 0.1, 0.15, 0.2), PAIR_NOISES):
        name = f"losses, deviation {sd:g} %, {noise}"
        goals = ("-", "-") if noise in ("skewed", "one-sided outliers") else ("95 %" if sd <= 0.1 else "-", "5 %")
        equal, at_margin, worse = (verdicts(sd, noise, true, runs) for true in (0.0, MARGIN, 0.5))
        yield figure(f"{name}, equal: at the same loss", equal.same, goals[0], runs)
        yield figure(f"{name}, {MARGIN:g} % worse: at the same loss", at_margin.same, goals[1], runs)
        yield figure(f"{name}, 0.5 % worse: shown to be worse", worse.worse, "90 %", runs)
        yield figure(f"{name}, 0.5 % worse: at the same loss", worse.same, "5 %", runs)
    for first, sd in itertools.product((4, PAIRS), (0.1, 0.15, 0.2)):
        raised = verdicts(sd, "normal", MARGIN, runs, pairs=(first, 24))
        name = f"losses, deviation {sd:g} %, {MARGIN:g} % worse, {first} pairs, if undecided 24: at the same loss"
        yield figure(name, raised.same, "-", runs)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Shares of comparisons that end with a verdict."""

    same: float
    worse: float


def verdicts(sd: float, noise: str, difference: float, runs: int, pairs: Sequence[int] = (PAIRS,)) -> Verdicts:
    """Simulate comparisons; `sd` and `difference` in percent. An undecided one goes on with the next of `pairs`."""
    random, same, worse = np.random.default_rng(13), 0, 0
    for _ in range(runs):
        changes = difference + sd * PAIR_NOISES[noise](random, max(pairs))
        losses = (2.0 * np.exp(changes / 100.0)).tolist()
        for count in pairs:
            compared = paired_difference([2.0] * count, losses[:count])
            assert compared is not None
            if compared.high <= MARGIN or compared.low > MARGIN:
                break
        same += compared.high <= MARGIN
        worse += compared.low > MARGIN
    return Verdicts(same=same / runs, worse=worse / runs)


def recommendations(runs: int = RUNS) -> Iterator[Figure]:
    for workers, slow in itertools.product((2, 4, 8), (0.0, FULL.slow)):
        world = replace(FULL, workers=workers, slow=slow)
        name = f"12 configurations, {workers} workers, {100 * slow:g} % of the steps slow"
        regret = 100 * np.mean(regrets(world, runs))
        yield Figure(name=f"{name}, 3 % apart: mean regret", value=f"{regret:.2f} %", goal="0.3 %")


def coverages(runs: int = RUNS) -> Iterator[Figure]:
    single = replace(QUICK, workers=1, worker_spread=0.0)
    for name, world in {
        "quick, one process": single,
        **{
            f"quick, one worker, {repeats} processes, clocks of two states": replace(
                single, repeats=repeats, modes=0.04
            )
            for repeats in (1, 2, 4)
        },
    }.items():
        yield figure(f"coverage, {name}: useful tokens/s", coverage(world, runs)[1], "93 %")


def comparisons(runs: int = RUNS) -> Iterator[Figure]:
    for world in (replace(QUICK, workers=4), replace(FULL, workers=4)):
        name = f"compare, {world.suite}, {world.workers} workers"
        yield figure(f"{name}, 0.5 % between runs: false alarm", alarms(replace(world, shift=0.005), runs), "5 %")
        yield figure(f"{name}: all 3 % slower, found", finds_all(world, runs), "-")


def equal(world: Scenario, runs: int) -> Iterator[Run]:
    random = np.random.default_rng(1)
    for _ in range(runs):
        yield world.run(random)


def regrets(world: Scenario, runs: int) -> list[float]:
    """Return for each run how much slower the recommended configuration is than the fastest, as a share of time."""
    random, lost = np.random.default_rng(2), []
    for _ in range(runs):
        slower = dict(zip(world.labels, random.normal(0.0, 0.03, len(world.labels)), strict=True))
        named = summarize(world.run(random, slower)).recommended_label
        lost.append(float(np.expm1(slower[named or world.labels[0]] - min(slower.values()))))
    return lost


def coverage(world: Scenario, runs: int) -> tuple[float, float]:
    """Return the shares of runs whose intervals hold the truth: of the ratio, and of useful tokens per second."""
    random, held = np.random.default_rng(3), np.zeros(2)
    for _ in range(runs):
        slower = dict(zip(world.labels, random.normal(0.0, 0.03, len(world.labels)), strict=True))
        summary = summarize(world.run(random, slower))
        row = summary.best_row
        if row is None or row.measured is None:
            raise ValueError("every run has a best configuration")
        truth = USEFUL / STEP_SEC * np.exp(-slower[row.label] - world.elapsed_log_time())
        ratio = None if row.useful_tokens_ratio is None else row.useful_tokens_ratio.steady
        held[0] += (
            ratio is None or ratio.low is None or contains(ratio, np.exp(slower[summary.baseline] - slower[row.label]))
        )
        held[1] += contains(row.measured.elapsed_useful_tokens_per_sec, truth)
    return float(held[0] / runs), float(held[1] / runs)


def alarms(world: Scenario, runs: int) -> float:
    """Return the share of comparisons of equal runs with any row called faster or slower."""
    return share(list(pairs(world, {}, runs, seed=4)), lambda comparison: has_word(comparison.rows))


def finds_one(world: Scenario, runs: int) -> float:
    """Return the share of comparisons that call exactly the slower configuration slower."""
    label = world.labels[-1]
    compared = list(pairs(world, {label: np.log(1.03)}, runs, seed=5))
    return share(compared, lambda comparison: slower_speeds(comparison) == {label})


def finds_all(world: Scenario, runs: int) -> float:
    """Return the share of comparisons with exit code 1 if every configuration is 3 % slower."""
    compared = list(pairs(world, dict.fromkeys(world.labels, np.log1p(0.03)), runs, seed=6))
    return share(compared, lambda comparison: comparison.exit_code == 1)


def pairs(world: Scenario, slower: Mapping[str, float], runs: int, seed: int) -> Iterator[Comparison]:
    """Yield comparisons of two runs on the same GPUs."""
    random = np.random.default_rng(seed)
    for _ in range(runs):
        speeds = world.speeds(random)
        yield compare([world.run(random, {}, speeds)], [world.run(random, slower, speeds, run_id="after")])


def slower_speeds(comparison: Comparison) -> set[str]:
    return {row.configuration for row in comparison.rows if row.verdict == "slower" and row.metric == STEADY}


def has_verdict(summary: Summary) -> bool:
    return any(
        row.useful_tokens_ratio is not None and row.useful_tokens_ratio.verdict is not None for row in summary.rows
    )


def contains(of: Estimate | Ratio, truth: float) -> bool:
    return of.low is not None and of.high is not None and bool(of.low <= truth <= of.high)


def share(items, is_so) -> float:
    return float(np.mean([bool(is_so(item)) for item in items]))


def figure(name: str, value: float, goal: str, runs: int = RUNS) -> Figure:
    error = math.sqrt(value * (1.0 - value) / runs)
    return Figure(name=name, value=f"{100 * value:.1f} %, standard error {100 * error:.1f}", goal=goal)


if __name__ == "__main__":
    print_figures(main())
