"""What a report says, as plain values: one row per configuration, what did not work, and what to keep in mind.

Every writer (page, Markdown, CSV, JSON, figures, terminal) reads this and computes nothing of its own, so they cannot
disagree. `summarize.summarize` makes one; `sentences` finds its words.
"""

from dataclasses import dataclass

from bench.records.result import TrialStatus
from bench.records.run import RunRecord
from bench.records.trial import Trial
from reports.read.fingerprint import Hosts
from reports.read.run import Missing, Rejected
from reports.statistics.types import MeasuredRate, Ratio
from reports.summary import cost, energy, tables

# What a profile's numbers must not be taken for. Stands on every figure and in every file of the report.
PROFILE_NOTES: dict[str, str | None] = {
    "gpu": None,
    "tiny": "Profile tiny: a scaled-down model and short sequences on CPU workers. "
    "These numbers say nothing about an A10 or any other GPU.",
}


@dataclass(frozen=True, kw_only=True)
class ConfigurationRow:
    """One configuration: its `trial`. `measured` is None where none succeeded; so is all that follows from it.

    Loss is the median over workers of their first and last measured step; memory is the largest of any worker's;
    `load_time_sec` the median over workers. Ratios are against the baseline row, None on that row itself. `costs` are
    at each of the summary's prices, in their order; `cost` is the first of them. `energy` is None
    where no power was sampled.
    """

    label: str
    trial: Trial
    is_baseline: bool
    planned: int
    ends: dict[TrialStatus, int]
    missing: int
    measured: MeasuredRate | None
    samples_ratio: Ratio | None
    useful_tokens_ratio: Ratio | None
    costs: tuple[cost.Cost, ...]
    energy: energy.Energy | None
    first_loss: float | None
    last_loss: float | None
    peak_vram_bytes: int | None
    peak_rss_bytes: int | None
    load_time_sec: float | None

    @property
    def succeeded(self) -> int:
        return self.ends.get(TrialStatus.SUCCEEDED, 0)

    @property
    def is_reliable(self) -> bool:
        """True where something was measured and no trial ran out of memory, failed or timed out; others say nothing."""
        return self.measured is not None and not any(
            self.ends.get(end) for end in (TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED, TrialStatus.TIMED_OUT)
        )

    @property
    def cost(self) -> cost.Cost | None:
        return self.costs[0] if self.costs else None

    @property
    def samples_rate(self) -> float:
        """Samples per second and worker; 0 where nothing was measured."""
        return 0.0 if self.measured is None else self.measured.samples_per_sec.value

    @property
    def useful_rate(self) -> float:
        """Useful tokens per second and worker; 0 where nothing was measured."""
        return 0.0 if self.measured is None else self.measured.useful_tokens_per_sec.value

    @property
    def peak_bytes(self) -> int | None:
        """Of the GPU where there is one, else of the process."""
        return self.peak_rss_bytes if self.peak_vram_bytes is None else self.peak_vram_bytes


@dataclass(frozen=True, kw_only=True)
class Other:
    """A configuration of another kind than training: what it took stands among the measurements, not in a row."""

    label: str
    kind: str
    reason: str
    planned: int
    ends: dict[TrialStatus, int]
    missing: int
    n_measurements: int

    @property
    def succeeded(self) -> int:
        return self.ends.get(TrialStatus.SUCCEEDED, 0)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A trial that ended, but not well. `n_steps` and `n_measurements` are how much it had measured by then."""

    trial_id: str
    configuration: str
    worker: str | None
    end: TrialStatus
    reason: str | None
    attempt: int
    n_steps: int
    n_measurements: int
    log_tail: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run, summed up. `counts` holds every end that occurred; `profile_note` is None where none is needed.

    `rows` are the training configurations, which alone are compared; `others` those of every other kind. `prices` are
    those of the run's GPU, the one that counts first; `price` is that one. `hosted` is what the reader says a hosted
    service asks; `billed` says where the workers' time went.
    """

    record: RunRecord
    rows: tuple[ConfigurationRow, ...]
    others: tuple[Other, ...]
    measurements: tuple[tables.SummaryTable, ...]
    baseline: str
    finding: str
    second_finding: str | None
    profile_note: str | None
    cautions: tuple[str, ...]
    hosts: Hosts
    prices: tuple[cost.Price, ...]
    hosted: cost.Hosted | None
    billed: cost.Billed | None
    counts: dict[TrialStatus, int]
    failures: tuple[Failure, ...]
    missing: tuple[Missing, ...]
    rejected: tuple[Rejected, ...]

    @property
    def price(self) -> cost.Price | None:
        return self.prices[0] if self.prices else None

    @property
    def measured_rows(self) -> tuple[ConfigurationRow, ...]:
        return tuple(row for row in self.rows if row.measured is not None)

    @property
    def exit_code(self) -> int:
        """0 when every planned trial succeeded, else 1."""
        return 0 if self.counts.get(TrialStatus.SUCCEEDED, 0) == len(self.record.planned) else 1
