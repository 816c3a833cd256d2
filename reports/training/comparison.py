"""Two trainings beside each other: their held-out losses example by example, and what it cost each to reach a loss.

Each example's loss is known where `inv adapter.check` has measured the adapter. Only examples that both have held out
count, known by the digest of their tokens and targets, so the same data in another template has none in common.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE
from bench.records.training import AdapterCheck
from reports import formatting
from reports.read import validation
from reports.read.run import ReportError
from reports.statistics.student import quantile
from reports.training import summary
from reports.training.summary import TrainingReport


@dataclass(frozen=True, kw_only=True)
class TrainingComparison:
    """`change`: the second's held-out loss less the first's, nats a token, with its 95 % interval over `examples`."""

    change: float
    low: float | None
    high: float | None
    examples: int
    lines: Sequence[tuple[str, str, str]]

    @property
    def verdict(self) -> str:
        """lower or higher, where the interval leaves out 0; else not shown to differ."""
        if self.low is None or self.high is None or self.low <= 0.0 <= self.high:
            return "not shown to differ"
        return "lower" if self.high < 0.0 else "higher"


def compare(first: Path, second: Path) -> TrainingComparison:
    """Raises ReportError where the two have nothing that can be compared."""
    runs = [summary.read(folder) for folder in (first, second)]
    checks = [_check(run) for run in runs]
    losses = [dict(zip(check.examples, zip(check.losses, check.targets, strict=True), strict=True)) for check in checks]
    common = [digest for digest in losses[0] if digest in losses[1]]
    if not common:
        raise ReportError(
            f"{first.name} and {second.name} have no held-out example in common: other data, another template or "
            "another train.validation; hold out the same lines, best with train.validation_file"
        )
    moved = [losses[1][digest][0] - losses[0][digest][0] for digest in common]
    change, half = paired(moved, [losses[0][digest][1] for digest in common])
    ends = (None, None) if half is None else (change - half, change + half)
    return TrainingComparison(
        change=change, low=ends[0], high=ends[1], examples=len(common), lines=_lines(runs, checks)
    )


def paired(moved: Sequence[float], targets: Sequence[int]) -> tuple[float, float | None]:
    """(sum of changes a target, half of its 95 % interval; None for one example): a ratio of two sums."""
    n, total = len(moved), sum(targets)
    middle = math.fsum(moved) / total
    if n < 2:
        return middle, None
    spread = math.fsum((each - middle * count) ** 2 for each, count in zip(moved, targets, strict=True))
    return middle, quantile(0.95, n - 1) * math.sqrt(spread * n / (n - 1)) / total


def spent(run: TrainingReport, loss: float) -> tuple[float, float | None] | None:
    """(hours of steps, dollars for them) until a held-out loss this low was measured; None where none was."""
    at = dict(zip(run.record.steps.step, run.hours, strict=True))
    hours = next(
        (
            at[evaluation.step]
            for evaluation in run.record.evaluations
            if evaluation.step in at and evaluation.loss <= loss
        ),
        None,
    )
    if hours is None:
        return None
    return hours, None if run.price is None else hours * run.record.world_size * run.price


def _check(run: TrainingReport) -> AdapterCheck:
    path = run.folder / ADAPTER_CHECK_FILE
    way = f"type: inv adapter.check --run={run.folder.name}"
    try:
        found = AdapterCheck.read(path)
    except ResultError as error:
        raise ReportError(f"{error}; {way}") from None
    if found.adapter_sha256 != run.record.adapter_sha256:
        raise ReportError(f"{path}: is of another adapter than the run's; {way}")
    if (fault := _fault(found)) is not None:
        raise ReportError(f"{path}: {fault}; {way}")
    return found


def _fault(found: AdapterCheck) -> str | None:
    lengths = {len(found.examples), len(set(found.examples)), len(found.losses), len(found.targets)}
    if len(lengths) != 1 or min(found.targets, default=1) < 1 or not found.forms:
        return "its losses, targets and examples do not belong to each other"
    return validation.numbers_fault(found)


def _lines(runs: Sequence[TrainingReport], checks: Sequence[AdapterCheck]) -> list[tuple[str, str, str]]:
    """Name, the first's, the second's."""
    reached = max(
        min((evaluation.loss for evaluation in run.record.evaluations if evaluation.step), default=math.inf)
        for run in runs
    )
    rows: dict[str, list[str]] = {
        "held-out loss": [f"{check.forms[0].loss:.4f}" for check in checks],
        "steps": [f"{run.record.steps_done:,}" for run in runs],
        "useful tokens": [f"{sum(run.record.steps.tokens):,}" for run in runs],
        "dollars": ["unknown" if run.price is None else summary.dollars(run.worker_hours * run.price) for run in runs],
    }
    if math.isfinite(reached):
        rows[f"until a held-out loss of {reached:.4f}"] = [_spent(spent(run, reached)) for run in runs]
    return [(name, *cells) for name, cells in rows.items()]  # type: ignore[misc] # two cells each


def _spent(found: tuple[float, float | None] | None) -> str:
    if found is None:
        return "not reached"
    hours, usd = found
    return f"{formatting.number(hours)} hours" + ("" if usd is None else f", {summary.dollars(usd)}")
