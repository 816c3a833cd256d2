"""The values of a benchmark's report. Every writer reads them and computes nothing itself, so writers cannot disagree.

`summarize.summarize` computes them; `sentences` has the sentences about them.
"""

import functools
from dataclasses import dataclass

from bench.records.quality import QualityRecord
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from reports.document import Table
from reports.read.loaded_run import Missing, Rejected
from reports.read.worker_fingerprints import Hosts
from reports.summary import cost, decisions
from reports.summary.decisions import Advice, Choice
from reports.summary.rows import ConfigurationRow, Failure, OtherConfiguration, PlannedRow
from reports.summary.warnings import RunWarning

# A note about a profile's numbers that is shown on every figure and in every file of the report.
PROFILE_NOTES: dict[str, str | None] = {
    "gpu": None,
    "tiny": "Profile tiny, on CPU workers: these numbers say nothing about an A10 or any other GPU.",
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The values of a run's report. `counts` has the number of trials by status.

    `rows` are the training configurations, which are compared; `others` are those of every other kind, `measurements`
    their tables by section. `prices` are those of the run's GPU, the main one first. `hosted` is a hosted service's
    price from the settings; `quality` has the held-out losses, if they were compared. `warnings` are the most important
    first.
    """

    record: RunRecord
    rows: tuple[ConfigurationRow, ...]
    others: tuple[OtherConfiguration, ...]
    measurements: dict[str, tuple[Table, ...]]
    baseline: str
    profile_note: str | None
    warnings: tuple[RunWarning, ...]
    hosts: Hosts
    prices: tuple[cost.Price, ...]
    hosted: cost.HostedPrice | None
    counts: dict[TrialStatus, int]
    failures: tuple[Failure, ...]
    missing: tuple[Missing, ...]
    rejected: tuple[Rejected, ...]
    quality: QualityRecord | None = None

    @property
    def price(self) -> cost.Price | None:
        return self.prices[0] if self.prices else None

    @property
    def measured_rows(self) -> tuple[ConfigurationRow, ...]:
        return tuple(row for row in self.rows if row.measured is not None)

    @functools.cached_property
    def choice(self) -> Choice | None:
        """The configuration to train with; None if nothing was measured, or nothing at the same loss."""
        return decisions.choose(self.rows, self.quality)

    @property
    def best_row(self) -> ConfigurationRow | None:
        return None if self.choice is None else self.choice.row

    @property
    def recommended_label(self) -> str | None:
        """The label of `best_row`; None if it was not compared with another configuration, or another is advised."""
        if self.choice is None or self.choice.advice is Advice.UNMEASURED:
            return None
        measured = self.measured_rows
        is_compared = len(measured) > 1 and any(row.is_baseline or row.trial.is_usual for row in measured)
        return self.best_row.label if self.best_row is not None and is_compared else None

    @property
    def train_command(self) -> str | None:
        """The command that trains with the recommended configuration; None if none is recommended."""
        if self.choice is not None and self.choice.advice is Advice.UNMEASURED:
            return "inv train"
        if self.best_row is None or self.recommended_label is None:
            return None
        return "inv train" if self.best_row.trial.is_usual else f"inv train --from={self.record.run_id}"

    @property
    def recommended_first(self) -> tuple[ConfigurationRow, ...]:
        """All configurations in the plan's order, after the recommended one."""
        label = self.recommended_label
        return tuple(sorted(self.rows, key=lambda row: row.label != label))

    @property
    def unfit_labels(self) -> list[str]:
        """The configurations that need more memory than there is: a result, if any other succeeded."""
        rows: tuple[PlannedRow, ...] = (*self.rows, *self.others)
        unfit = [row.label for row in rows if decisions.is_unfit(row, self.baseline)]
        return unfit if any(row.succeeded for row in rows) else []

    @property
    def exit_code(self) -> int:
        """0 if every planned trial succeeded, else 1."""
        return 0 if self.counts.get(TrialStatus.SUCCEEDED, 0) == len(self.record.planned) else 1
