"""Comparison of two trainings: their held-out losses per example, and the cost until each reached a loss.

`inv adapter.check` measures the loss of each example. Only examples that both trainings held out count. They are
identified by a digest of tokens and targets, so the same data with another template has none in common.

The interval of the change is the inversion of a sign-flip test (Hartigan 1969): of the changes of subsets of the
examples, 95 % of the true changes lie between the 2.5 % and the 97.5 % quantile, however much the examples differ in
length. It assumes that a change is as probable as its opposite. So the interval also covers a bootstrap-t interval,
which follows a skewed distribution of changes. Student's t called equal trainings different in 8 to 17 % of simulated
pairs with 8 examples of skewed lengths, both together in at most 5 %, also with exponential changes
(docs/measurements.md).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.records.adapter import AdapterCheck
from reports import formatting
from reports.read.loaded_run import ReportError
from reports.statistics.per_process import CONFIDENCE
from reports.training import training_facts
from reports.training.training_facts import TrainingReport

Floats = NDArray[np.float64]
MIN_EXAMPLES = 6  # five have 32 subsets: the interval of all of them holds the change in 94 % of pairs
_ALL_SUBSETS_UP_TO = 12  # examples; more are sampled
_SUBSETS = 2**_ALL_SUBSETS_UP_TO - 1
BOOTSTRAP_LEVEL = 0.03  # significance level of the bootstrap-t interval, which is too narrow at 5 % for few examples
_RESAMPLES = 1999
_CHUNK_VALUES = 2_000_000  # values of a chunk of resamples, 16 MB


@dataclass(frozen=True, kw_only=True)
class TrainingComparison:
    """The change of held-out loss in nats per token, second minus first, with its 95 % interval over `examples`.

    `low` and `high` are None with fewer than MIN_EXAMPLES.
    """

    change: float
    low: float | None
    high: float | None
    examples: int
    lines: Sequence[tuple[str, str, str]]

    @property
    def verdict(self) -> str:
        """The result: "lower" or "higher" if the interval excludes 0, else "not shown to differ"."""
        if self.low is None or self.high is None:
            return f"not shown to differ (fewer than {MIN_EXAMPLES} common examples)"
        if self.low <= 0.0 <= self.high:
            return "not shown to differ"
        return "lower" if self.high < 0.0 else "higher"


def compare(first: Path, second: Path) -> TrainingComparison:
    """Compare two trainings. Raises ReportError if they have nothing in common."""
    runs = [training_facts.read(folder) for folder in (first, second)]
    checks = [training_facts.read_check(run) for run in runs]
    losses = [dict(zip(check.examples, zip(check.losses, check.targets, strict=True), strict=True)) for check in checks]
    common = [digest for digest in losses[0] if digest in losses[1]]
    if not common:
        raise ReportError(
            f"{first.name} and {second.name} have no held-out example in common: different data, template or "
            "train.validation_fraction",
            remedy="hold out the same lines, best with train.validation_file",
        )
    changes = [losses[1][digest][0] - losses[0][digest][0] for digest in common]
    targets = [losses[0][digest][1] for digest in common]
    low, high = paired_interval(changes, targets) or (None, None)
    return TrainingComparison(
        change=math.fsum(changes) / sum(targets), low=low, high=high, examples=len(common), lines=_lines(runs, checks)
    )


def paired_interval(changes: Sequence[float], targets: Sequence[int]) -> tuple[float, float] | None:
    """Return the 95 % interval of the sum of changes per target; None with fewer than MIN_EXAMPLES."""
    n = len(changes)
    if n < MIN_EXAMPLES:
        return None
    low, high = _sign_flip_interval(changes, targets)
    bootstrap = _bootstrap_t_interval(*(np.array(column, dtype=np.float64) for column in _ordered(changes, targets)))
    return min(low, bootstrap[0]), max(high, bootstrap[1])


def _ordered(changes: Sequence[float], targets: Sequence[int]) -> Iterable[tuple[float, ...]]:
    """Return both in the order of the changes, so that the examples' order does not change the result."""
    return zip(*sorted(zip(changes, targets, strict=True)), strict=True)


def _sign_flip_interval(changes: Sequence[float], targets: Sequence[int]) -> tuple[float, float]:
    n = len(changes)
    if n <= _ALL_SUBSETS_UP_TO:
        members = (np.arange(1, 2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)
        sums, counts = members @ np.array(changes), members @ np.array(targets, dtype=np.float64)
    else:
        random = np.random.default_rng(n)
        # The membership of all examples in all subsets at once would need gigabytes.
        sums, counts = np.zeros(_SUBSETS), np.zeros(_SUBSETS)
        for change, count in sorted(zip(changes, targets, strict=True)):
            members = random.integers(0, 2, _SUBSETS)
            sums, counts = sums + change * members, counts + count * members
    ratios = np.sort(sums[counts > 0] / counts[counts > 0])
    outside = int((1.0 - CONFIDENCE) / 2.0 * (len(ratios) + 1))
    return float(ratios[outside - 1]), float(ratios[-outside])


def _bootstrap_t_interval(changes: Floats, targets: Floats) -> tuple[float, float]:
    """Return the ratio's bootstrap-t interval: quantiles of resampled ratios over their standard errors."""
    n, ratio = len(changes), changes.sum() / targets.sum()
    error = math.sqrt(((changes - ratio * targets) ** 2).sum()) / targets.sum()
    random, errors_away = np.random.default_rng(n), []
    size = max(1, _CHUNK_VALUES // n)
    for begin in range(0, _RESAMPLES, size):
        counts = random.multinomial(n, np.full(n, 1.0 / n), min(size, _RESAMPLES - begin)).astype(np.float64)
        totals = counts @ targets
        ratios = counts @ changes / totals
        squares = (
            counts @ changes**2 - 2.0 * ratios * (counts @ (changes * targets)) + ratios**2 * (counts @ targets**2)
        )
        # A resample of one repeated example has no error: its ratio is infinitely many errors away.
        errors = np.sqrt(np.maximum(squares, 0.0)) / totals
        errors_away.append((ratios - ratio) / np.maximum(errors, 1e-9 * error + np.finfo(np.float64).tiny))
    low, high = np.quantile(np.concatenate(errors_away), [BOOTSTRAP_LEVEL / 2.0, 1.0 - BOOTSTRAP_LEVEL / 2.0])
    return float(ratio - high * error), float(ratio - low * error)


def spent_until(run: TrainingReport, loss: float) -> tuple[float, float | None] | None:
    """Return seconds of steps until a held-out loss of `loss` was reached, and their dollars; None if it was not."""
    seconds_at = dict(zip(run.record.steps.step, run.seconds, strict=True))
    reached = (
        seconds_at[evaluation.step]
        for evaluation in run.record.evaluations
        if evaluation.step in seconds_at and evaluation.loss <= loss
    )
    seconds = next(reached, None)
    if seconds is None:
        return None
    return seconds, None if run.price is None else seconds / 3600.0 * run.record.world_size * run.price


def _lines(runs: Sequence[TrainingReport], checks: Sequence[AdapterCheck]) -> list[tuple[str, str, str]]:
    """Return rows of name, first value, second value."""
    reached = max(
        min((evaluation.loss for evaluation in run.record.evaluations if evaluation.step), default=math.inf)
        for run in runs
    )
    rows: dict[str, list[str]] = {
        "held-out loss": [f"{check.forms[0].loss:.4f}" for check in checks],
        "steps": [f"{run.record.steps_done:,}" for run in runs],
        "useful tokens": [f"{sum(run.record.steps.tokens):,}" for run in runs],
        "dollars": [formatting.dollars(run.usd) for run in runs],
    }
    if math.isfinite(reached):
        rows[f"until a held-out loss of {reached:.4f}"] = [_spent_text(spent_until(run, reached)) for run in runs]
    return [(name, *cells) for name, cells in rows.items()]  # type: ignore[misc] # two cells each


def _spent_text(amount: tuple[float, float | None] | None) -> str:
    if amount is None:
        return "not reached"
    seconds, usd = amount
    return formatting.duration(seconds) + ("" if usd is None else f", {formatting.dollars(usd)}")
