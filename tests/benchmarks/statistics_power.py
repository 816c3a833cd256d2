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

import numpy as np

from reports.comparison.compare import STEADY, Comparison, compare
from reports.read.loaded_run import Run
from reports.statistics.paired_losses import (
    LossDifference,
    paired_difference,
    pairs_needed,
    pairs_of_both_stages,
)
from reports.statistics.types import Estimate, Ratio
from reports.summary import sentences
from reports.summary.summarize import summarize
from reports.summary.summary import Summary
from reports.training.comparison import paired_interval
from tasks.settings.sections import QualitySection
from tests.benchmarks import Figure, _drifting_runs, _odd_runs, print_figures
from tests.support.reports.drifts import DRIFTS
from tests.support.reports.scenarios import STEP_SEC, USEFUL, Floats, Scenario

RUNS = int(os.environ.get("TRUST_RUNS", "400"))
FULL = Scenario(suite="full", configurations=12)
QUICK = Scenario(
    configurations=2,
)
# The noise of an example's change of loss, by its number of targets. The last is an exponential distribution.
TRAINING_NOISES: Mapping[str, Callable[[np.random.Generator, Floats], Floats]] = {
    "per token": lambda random, targets: targets * random.normal(0.0, 0.05, len(targets)),
    "per root of tokens": lambda random, targets: np.sqrt(targets) * random.normal(0.0, 0.5, len(targets)),
    "heavy tails": lambda random, targets: targets * random.standard_t(3, len(targets)) * 0.03,
    "skewed": lambda random, targets: targets * (random.exponential(1.0, len(targets)) - 1.0) * 0.05,
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
PAIRS = pairs_needed(0.05, MARGIN)  # in stage 1, as `inv bench --quality` plans them at first


def main() -> list[Figure]:
    unlike = [*odd_configurations(), *odd_whole_runs()]
    alike = [*trainings(), *same_losses()]
    drifting = [*drifts(), *slow_steps()]
    return [*drifting, *unlike, *alike, *recommendations(), *coverages(), *comparisons()]


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
    """Measure intervals and verdicts of equal configurations of which one is unlike the others."""
    cases = (*itertools.product((_odd_runs.NOISIER,), (2, 3, 12), (2, 4, 8)), (_odd_runs.REACTS, 12, 2))
    for model, count, workers in cases:
        name = f"{count} configurations, {workers} workers, one {model}"
        covered, false = odd_ratios(model, count, workers, runs)
        yield figure(f"{name}: its ratio's coverage", covered, "93 %", runs)
        yield figure(f"{name}: any false word in the table", false, "5 %", runs)
        if count > 2:
            yield figure(f"{name}, it is the baseline: any", odd_ratios(model, count, workers, runs, 0)[1], "5 %", runs)
        covered, false = odd_changes(model, count, workers, runs)
        yield figure(f"compare, {name}: its interval's coverage", covered, "93 %", runs)
        yield figure(f"compare, {name}: any false word", false, "5 %", runs)
    for count, processes in itertools.product((2, 12), (2, 4)):
        name = f"{count} configurations, one worker, {processes} processes, one {_odd_runs.NOISIER}"
        covered, false = odd_ratios(_odd_runs.NOISIER, count, processes, runs, one_worker=True)
        yield figure(f"{name}: its ratio's coverage", covered, "93 %", runs)
        yield figure(f"{name}: any false word in the table", false, "5 %", runs)
    for count, workers, percent in itertools.product((2, 12), (2, 4), (2, 3, 5)):
        goal = "95 %" if (workers, percent) == (4, 3) else "-"
        name = f"{count} configurations, {workers} workers, one {percent} % slower"
        yield figure(f"{name}: found", found_ratio(count, workers, percent, runs), goal, runs)
        yield figure(f"compare, {name}: found", found_change(count, workers, percent, runs), goal, runs)
    for workers, percent in ((2, 3), (4, 2)):
        effect, own_df = float(np.log1p(percent / 100.0) / _odd_runs.NOISE * (workers / 2.0) ** 0.5), workers - 1
        name = f"12 configurations, {workers} workers, {percent} %: most that any method with 5 % false words"
        for command, most in (
            ("report", _odd_runs.best_power(own_df, 10 * own_df, effect, 0.05, ratios_of_baseline=11)),
            ("compare", _odd_runs.best_power(2 * own_df, 10 * own_df, effect, 0.05)),
        ):
            yield Figure(name=f"{command}, {name} finds", value=f"{100 * most:.0f} %", goal="-")


def odd_whole_runs(runs: int = RUNS) -> Iterator[Figure]:
    """Measure false words in whole runs, with heavy tails and autocorrelated steps, if one configuration is noisier."""
    for suite, workers in itertools.product(("quick", "full"), (2, 4, 8)):
        world = Scenario(suite=suite, workers=workers, noisier=3.0)
        name = f"{describe(world)}, one {_odd_runs.NOISIER}"
        false = share([summarize(run) for run in equal(world, runs)], has_verdict)
        yield figure(f"whole runs, {name}: any false word in the table", false, "5 %", runs)
        yield figure(f"whole runs, compare, {name}: false alarm", alarms(world, runs), "5 %", runs)


def odd_ratios(
    model: str, configurations: int, units: int, runs: int, odd: int = 1, *, one_worker: bool = False
) -> tuple[float, float]:
    """Return the coverage of the first ratio, and the share of runs with any false verdict."""
    random, draw = np.random.default_rng(7), _odd_runs.repeats if one_worker else _odd_runs.table
    tables = [
        _odd_runs.ratios(draw(random, configurations, units, model, odd), one_worker=one_worker) for _ in range(runs)
    ]
    return share(tables, lambda means: _odd_runs.holds(means[0])), share(
        tables, lambda means: not all(map(_odd_runs.holds, means))
    )


def odd_changes(model: str, configurations: int, workers: int, runs: int) -> tuple[float, float]:
    """Return the coverage of the odd configuration's change, and the share of runs with any false verdict."""
    random = np.random.default_rng(8)
    compared = [
        _odd_runs.changes(*(_odd_runs.table(random, configurations, workers, model) for _ in range(2)))
        for _ in range(runs)
    ]
    return share(compared, lambda rows: _odd_runs.holds(rows[1][0])), share(
        compared, lambda rows: any(verdict.verdict in ("faster", "slower") for _, verdict in rows)
    )


def found_ratio(configurations: int, workers: int, percent: float, runs: int) -> float:
    """Return the share of runs that show the last of otherwise equal configurations to be slower."""
    random, slower = np.random.default_rng(9), np.zeros((configurations, 1))
    slower[-1] = np.log1p(percent / 100.0)
    tables = [
        _odd_runs.ratios(slower + _odd_runs.table(random, configurations, workers, _odd_runs.ALIKE))
        for _ in range(runs)
    ]
    return share(tables, lambda means: means[-1].value > (means[-1].half or np.inf))


def found_change(configurations: int, workers: int, percent: float, runs: int) -> float:
    """Return the share of comparisons that find the last configuration slower (a larger time)."""
    random, slower = np.random.default_rng(10), np.zeros((configurations, 1))
    slower[-1] = np.log1p(percent / 100.0)
    draw = functools.partial(_odd_runs.table, random, configurations, workers, _odd_runs.ALIKE)
    compared = [_odd_runs.changes(draw(), slower + draw())[-1] for _ in range(runs)]
    return share(compared, lambda row: row[1].verdict == "faster")  # more of a time


def trainings(runs: int = 5 * RUNS) -> Iterator[Figure]:
    """Measure how often equal trainings are called different, with examples of skewed lengths."""
    for examples, sigma, noise in itertools.product((6, 8, 12, 30, 100), (0.7, 1.2), TRAINING_NOISES):
        name = f"two trainings, {examples} examples, lengths {sigma:g}, {noise}: false difference"
        yield figure(name, false_changes(examples, sigma, noise, runs), "5 %", runs)
    for change in (0.01, 0.02, 0.05):
        name = f"two trainings, 100 examples, lengths 0.7, {change:g} nats lower: found"
        yield figure(name, false_changes(100, 0.7, "per token", runs, change=change), "-", runs)


def false_changes(examples: int, sigma: float, noise: str, runs: int, *, change: float = 0.0) -> float:
    """Return the share of pairs called different; `sigma` is the standard deviation of the lengths' logarithms."""
    random, different = np.random.default_rng(11), 0
    for _ in range(runs):
        targets = np.maximum(1, np.round(np.exp(random.normal(4.0, sigma, examples))))
        changes = TRAINING_NOISES[noise](random, targets) + change * targets
        low, high = paired_interval(changes.tolist(), targets.tolist()) or (0.0, 0.0)
        different += not low <= 0.0 <= high
    return different / runs


def same_losses(runs: int = 10 * RUNS) -> Iterator[Figure]:
    """Measure what is said of a configuration's loss after both stages, by its true difference.

    Stage 1 has four pairs, as many as `inv bench --quality` plans at first, both stages at most quality.max_pairs. Real
    pairs have outliers: a training that takes another course (docs/measurements.md). A difference of two trainings is
    hardly ever skewed; the last two noises show what would follow.
    """
    for sd, noise in itertools.product((0.02, 0.05, 0.1, 0.15, 0.2), PAIR_NOISES):
        name = f"losses, deviation {sd:g} %, {noise}"
        goals = ("-", "-") if noise in ("skewed", "one-sided outliers") else ("95 %" if sd <= 0.1 else "-", "5 %")
        equal, at_margin, worse = (verdicts(sd, noise, true, runs) for true in (0.0, MARGIN, 0.5))
        yield figure(f"{name}, equal: at the same loss", equal.same, goals[0], runs)
        yield figure(f"{name}, {MARGIN:g} % worse: at the same loss", at_margin.same, goals[1], runs)
        yield figure(f"{name}, 0.5 % worse: shown to be worse", worse.worse, "90 %", runs)
        yield figure(f"{name}, 0.5 % worse: at the same loss", worse.same, "5 %", runs)
        yield Figure(name=f"{name}: mean pairs", value=f"{equal.pairs:.1f} equal, {worse.pairs:.1f} 0.5 % worse")
    for sd, noise in itertools.product((0.05, 0.1), ("normal", "heavy tails", "outliers")):
        stage_1 = verdicts(sd, noise, 0.0, runs, budgets=(PAIRS,))
        yield figure(
            f"losses, deviation {sd:g} %, {noise}, equal, stage 1 only: at the same loss", stage_1.same, "-", runs
        )
    for first, sd in itertools.product((PAIRS, 8), (0.1, 0.15, 0.2)):
        raised = verdicts(sd, "normal", MARGIN, runs, budgets=(first, 24))
        name = f"losses, deviation {sd:g} %, {MARGIN:g} % worse, {first} pairs, if undecided 24: at the same loss"
        yield figure(name, raised.same, "-", runs)


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """Shares of comparisons that end with a verdict, and the mean number of pairs."""

    same: float
    worse: float
    pairs: float


def verdicts(
    sd: float, noise: str, difference: float, runs: int, budgets: Sequence[int] = (QualitySection().max_pairs,)
) -> Verdicts:
    """Simulate comparisons of PAIRS pairs and a second stage; `sd` and `difference` in percent.

    An undecided comparison goes on with the next of `budgets`.
    """
    random, same, worse, pairs = np.random.default_rng(13), 0, 0, 0
    for _ in range(runs):
        changes = difference + sd * PAIR_NOISES[noise](random, max(budgets))
        losses = (2.0 * np.exp(changes / 100.0)).tolist()
        first = compare_first(losses, PAIRS)
        for budget in budgets:
            count = pairs_of_both_stages(first, MARGIN, budget)
            compared = compare_first(losses[:count], count)
            if compared.high <= MARGIN or compared.low > MARGIN:
                break
        same += compared.high <= MARGIN
        worse += compared.low > MARGIN
        pairs += count
    return Verdicts(same=same / runs, worse=worse / runs, pairs=pairs / runs)


def compare_first(losses: Sequence[float], count: int) -> LossDifference:
    """Compare the first losses with a reference of 2.0 nats."""
    compared = paired_difference([2.0] * count, losses[:count], PAIRS)
    if compared is None:
        raise ValueError("pairs have a difference")
    return compared


def recommendations(runs: int = RUNS) -> Iterator[Figure]:
    for world in of_each_size("full"):
        summaries = [summarize(run) for run in equal(world, runs)]
        says = share(summaries, lambda summary: sentences.recommendation(summary).startswith("Train with"))
        any_word = share(summaries, has_verdict)
        yield figure(f"all equal, {describe(world)}: Train with", says, "5 %")
        yield figure(f"all equal, {describe(world)}: any word in the table", any_word, "5 %")
    for world in of_each_size("full"):
        lost = regrets(world, runs)
        goal = "0.3 %" if world.workers == 2 else "-"
        yield Figure(name=f"spread, {describe(world)}: mean regret", value=f"{100 * np.mean(lost):.2f} %", goal=goal)
        yield figure(f"spread, {describe(world)}: best named", float(np.mean(np.array(lost) == 0.0)), "-")


def coverages(runs: int = RUNS) -> Iterator[Figure]:
    kinds = {
        "plain": FULL,
        "clocks of two states": replace(FULL, modes=0.04),
        "a throttled worker": replace(FULL, throttled=0.17),
        "both": replace(FULL, modes=0.04, throttled=0.17),
    }
    for name, kind in kinds.items():
        for workers in (2, 4, 8):
            ratio, rate = coverage(replace(kind, workers=workers), runs)
            yield figure(f"coverage, full, {workers} workers, {name}: ratio", ratio, "93 %")
            yield figure(f"coverage, full, {workers} workers, {name}: useful tokens/s", rate, "93 %")
    for processes in (0.0035, 0.005, 0.01):
        for world in (replace(QUICK, workers=1, processes=processes), replace(QUICK, processes=processes)):
            ratio, rate = coverage(
                replace(world, worker_spread=0.0 if world.workers == 1 else world.worker_spread), runs
            )
            yield figure(f"coverage, {describe(world)}: ratio", ratio, "93 %")
            yield figure(f"coverage, {describe(world)}: useful tokens/s", rate, "93 %")
    for suite, repeats in itertools.product(("quick", "full"), (1, 2, 4)):
        world = Scenario(suite=suite, workers=1, worker_spread=0.0, repeats=repeats, modes=0.04)
        name = f"coverage, {suite}, one worker, {repeats} processes, clocks of two states"
        ratio, rate = coverage(world, runs)
        yield figure(f"{name}: ratio", ratio, "93 %")
        # A single process that never jumps does not show that the next one may be slower.
        yield figure(f"{name}: useful tokens/s", rate, "-" if (suite, repeats) == ("quick", 1) else "93 %")


def comparisons(runs: int = RUNS) -> Iterator[Figure]:
    for world in (*of_each_size("quick"), *of_each_size("full")):
        goal_one, every = ("95 %", "99 %") if (world.workers, world.processes) == (4, 0.005) else ("-", "-")
        yield figure(f"compare, {describe(world)}: false alarm", alarms(world, runs), "5 %")
        yield figure(f"compare, {describe(world)}: one 3 % slower, found", finds_one(world, runs), goal_one)
        yield figure(f"compare, {describe(world)}: all 3 % slower, found", finds_all(world, runs), every)
        yield figure(f"compare, {describe(world)}: all 2 % slower, found", finds_all(world, runs, 2.0), every)
    shifted = replace(QUICK, shift=0.005)
    yield figure(f"compare, {describe(shifted)}, runs 0.5 % apart: false alarm", alarms(shifted, runs), "-")
    yield figure(
        "  of these ended with exit code 1", alarms(shifted, runs, lambda comparison: bool(comparison.slower)), "-"
    )
    for name, world in (
        ("modes", replace(QUICK, modes=0.04)),
        ("throttled", replace(QUICK, workers=8, throttled=0.17)),
    ):
        yield figure(f"compare, {describe(world)}, {name}: false alarm", alarms(world, runs), "5 %")


def of_each_size(suite: str) -> list[Scenario]:
    return [
        Scenario(suite=suite, workers=workers, processes=processes)
        for workers, processes in itertools.product((2, 4, 8), (0.0035, 0.005, 0.01))
    ]


def equal(world: Scenario, runs: int) -> Iterator[Run]:
    random = np.random.default_rng(1)
    for _ in range(runs):
        yield world.run(random)


def regrets(world: Scenario, runs: int, *, seed: int = 2, sd: float = 0.03) -> list[float]:
    """Return for each run how much slower the recommended configuration is than the fastest, as a share of time."""
    random, lost = np.random.default_rng(seed), []
    for _ in range(runs):
        slower = dict(zip(world.labels, random.normal(0.0, sd, len(world.labels)), strict=True))
        named = summarize(world.run(random, slower)).recommended_label
        lost.append(float(np.expm1(slower[named or world.labels[0]] - min(slower.values()))))
    return lost


def coverage(world: Scenario, runs: int, *, seed: int = 3, sd: float = 0.03) -> tuple[float, float]:
    """Return the shares of runs whose intervals hold the truth: of the ratio, and of useful tokens per second."""
    random, held = np.random.default_rng(seed), np.zeros(2)
    for _ in range(runs):
        slower = dict(zip(world.labels, random.normal(0.0, sd, len(world.labels)), strict=True))
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


def alarms(world: Scenario, runs: int, is_one: Callable[[Comparison], bool] | None = None, *, seed: int = 4) -> float:
    """Return the share of comparisons of equal runs with any row called faster or slower."""
    return share(list(pairs(world, {}, runs, seed)), is_one or has_alarm)


def finds_one(world: Scenario, runs: int, *, seed: int = 5) -> float:
    """Return the share of comparisons that call exactly the slower configuration slower."""
    label = world.labels[-1]
    comparisons_of_pairs = pairs(world, {label: np.log(1.03)}, runs, seed)
    return share(list(comparisons_of_pairs), lambda comparison: slower_speeds(comparison) == {label})


def finds_all(world: Scenario, runs: int, percent: float = 3.0, *, seed: int = 6) -> float:
    """Return the share of comparisons with exit code 1 if every configuration is `percent` slower."""
    return share(
        list(pairs(world, dict.fromkeys(world.labels, np.log1p(percent / 100.0)), runs, seed)),
        lambda comparison: comparison.exit_code == 1,
    )


def pairs(world: Scenario, slower: Mapping[str, float], runs: int, seed: int) -> Iterator[Comparison]:
    """Yield comparisons of two runs on the same GPUs."""
    random = np.random.default_rng(seed)
    for _ in range(runs):
        speeds = world.speeds(random)
        yield compare([world.run(random, {}, speeds)], [world.run(random, slower, speeds, run_id="after")])


def slower_speeds(comparison: Comparison) -> set[str]:
    return {row.configuration for row in comparison.rows if row.verdict == "slower" and row.metric == STEADY}


def has_alarm(comparison: Comparison) -> bool:
    return any(row.verdict in ("faster", "slower") for row in comparison.rows)


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


def describe(world: Scenario) -> str:
    return f"{world.suite}, {world.workers} workers, noise {100 * world.processes:g} %"


if __name__ == "__main__":
    print_figures(main())
