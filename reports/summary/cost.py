"""What measured speed costs. Pure arithmetic; every amount carries its price, and every price its source.

GPU time is priced by the GPU hour. What is measured is training; what is billed is more: pulling the image, loading,
warming up, idling. `FineTuning` says both where both are known, and `Billed` says where a run's own hours went.
Several GPUs are priced by a measured speed-up where a distributed trial gives one, else by an assumption that says so.

What is paid for by the month or by traffic is named with its price (`Beside`) and added to nothing: how much of it a
training needs is not measured. Not covered: the control plane, the machine that builds, and interruptions of
preemptible nodes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from statistics import median
from typing import Self

from bench.records.result import TrialResult
from reports.read.attempts import Starts
from reports.statistics.types import Estimate

SAMPLES = 1000
FINE_TUNING_SAMPLES = 10_000
FINE_TUNING_GPUS = (1, 2, 4)
HOURS_A_MONTH = 730.0  # as clouds bill a month
MEASURED_PHASE = "measure"
_NEVER_KNOWN = ("pulling the image", "time before the first and after the last trial")


@dataclass(frozen=True, kw_only=True)
class BootVolume:
    """A node's boot volume: its size and price."""

    size_gb: float
    usd_per_gb_month: float
    source: str
    dated: date

    @property
    def usd_per_hour(self) -> float:
        return self.size_gb * self.usd_per_gb_month / HOURS_A_MONTH


@dataclass(frozen=True, kw_only=True)
class PublishedPrice:
    """What else is paid for: so many US dollars for a unit, the first `free_gb` of a month for nothing."""

    what: str
    amount: float
    unit: str
    free_gb: float
    source: str
    dated: date

    @property
    def words(self) -> str:
        """`file storage 0.3 USD per GB month (list price, 2026-11-20)`."""
        free = f" after {self.free_gb:,.0f} GB a month" if self.free_gb else ""
        return f"{self.what} {self.amount:g} {self.unit}{free} ({self.source}, {self.dated.isoformat()})"


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for one GPU for one hour, and where that number comes from.

    `name` is "on-demand", "preemptible", an alternative's name, or "set" where a setting gives the price. `dated` is
    the day it was written down, None where a setting's source says what it says.
    """

    usd_per_gpu_hour: float
    source: str
    name: str = "set"
    dated: date | None = None
    shape: str | None = None
    gpus_per_node: int = 1
    boot_volume: BootVolume | None = None
    others: tuple[PublishedPrice, ...] = ()

    @property
    def words(self) -> str:
        """`$2.00 per GPU hour, on-demand (list price B95909, 2026-11-20)`."""
        called = "" if self.name == "set" else f", {self.name}"
        when = "" if self.dated is None else f", {self.dated.isoformat()}"
        return f"${self.usd_per_gpu_hour:,.2f} per GPU hour{called} ({self.source}{when})"


@dataclass(frozen=True, kw_only=True)
class Hosted:
    """What a hosted service asks for fine-tuning on FINE_TUNING_SAMPLES samples: the reader's own number and source."""

    usd_per_10000_samples: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A value with the ends of its interval, None where the speed behind it has none."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Self:
        """Value and ends times a factor above 0."""
        low, high = self.low, self.high
        return replace(
            self,
            value=self.value * factor,
            low=None if low is None else low * factor,
            high=None if high is None else high * factor,
        )


@dataclass(frozen=True, kw_only=True)
class ScalingCost:
    """How many times as fast as one GPU `gpus` are together, whether this run measured that, and the source."""

    gpus: int
    speedup: float
    is_measured: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Training on FINE_TUNING_SAMPLES samples on `gpus` GPUs.

    `training_sec` and `usd` are the steps alone. `startup_sec` is what a process was measured to spend before its first
    step (imports, loading, data, warm-up), None where unknown; `usd_billed` adds that time and the boot volumes. The
    intervals are the speed's; that of the speed-up is not in them.
    """

    gpus: int
    scaling: ScalingCost
    training_sec: Amount
    usd: Amount
    startup_sec: float | None
    boot_volume_usd: float | None
    usd_billed: Amount


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one configuration costs at one price. Intervals are the speed's, turned over: faster is cheaper."""

    price: Price
    usd_per_1000_samples: Amount
    usd_per_million_useful_tokens: Amount
    fine_tunings: tuple[FineTuning, ...]


@dataclass(frozen=True, kw_only=True)
class Billed:
    """Where a run's GPU time went, in seconds summed over its workers; what cannot be known is named in `unknown`.

    A worker is held from its first trial's start, by the operator's clock, to its last trial's end. `useful_sec` is the
    time in measured steps, `by_phase` the rest of the trials' time by phase, `idle_sec` the time between trials.
    """

    workers: int
    held_sec: float
    useful_sec: float
    by_phase: Mapping[str, float] = field(default_factory=dict)
    idle_sec: float = 0.0
    unknown: tuple[str, ...] = _NEVER_KNOWN

    @property
    def useful_percent(self) -> float:
        return 100.0 * self.useful_sec / self.held_sec


def seconds_for(amount: float, rate: Estimate) -> Amount:
    """How long `amount` takes at a rate per second."""
    return Amount(
        value=amount / rate.value,
        low=None if rate.high is None else amount / rate.high,
        high=None if rate.low is None else amount / rate.low,
    )


def cost(
    samples_per_sec: Estimate,
    useful_tokens_per_sec: Estimate,
    at: Price,
    *,
    scalings: Sequence[ScalingCost] | None = None,
    startup_sec: float | None = None,
) -> Cost:
    """What one worker's speed costs at a price. Without `scalings`, n GPUs are assumed to be n times as fast."""
    per_sec = at.usd_per_gpu_hour / 3600.0
    plans = [assumed(gpus) for gpus in FINE_TUNING_GPUS] if scalings is None else scalings
    return Cost(
        price=at,
        usd_per_1000_samples=seconds_for(SAMPLES, samples_per_sec).times(per_sec),
        usd_per_million_useful_tokens=seconds_for(1e6, useful_tokens_per_sec).times(per_sec),
        fine_tunings=tuple(_fine_tuning(samples_per_sec, at, plan, startup_sec) for plan in plans),
    )


def assumed(gpus: int) -> ScalingCost:
    """Perfect scaling, marked as the assumption it is; on one GPU there is nothing to assume."""
    if gpus == 1:
        return ScalingCost(gpus=1, speedup=1.0, is_measured=True, source="measured on one GPU")
    source = f"assumed: {gpus} GPUs are {gpus} times as fast as one; no distributed trial in this run says"
    return ScalingCost(gpus=gpus, speedup=float(gpus), is_measured=False, source=source)


def billed(results: Iterable[TrialResult], started: Starts | None = None) -> Billed | None:
    """Where the workers' time went; None where no trial says when it ran.

    `started` is when the ledger says attempts were. Where it lacks one of them, all go by their workers' clocks, and
    that these may have jumped is among the unknown.
    """
    ran = [result for result in results if result.worker is not None and result.wall_time_sec is not None]
    ledger = started or {}
    by_ledger = all((one.trial_id, one.attempt) in ledger for one in ran)
    spans: dict[str, list[tuple[float, float]]] = {}
    by_phase: dict[str, float] = {}
    useful = 0.0
    for one in ran:
        began = ledger[one.trial_id, one.attempt] if by_ledger else _moment(one.started_at)
        if began is None or one.worker is None or one.wall_time_sec is None:
            continue
        spans.setdefault(one.worker, []).append((began, began + one.wall_time_sec))
        measured = sum(one.steps.step_time_sec)
        useful += measured
        for phase, seconds in one.phases.items():
            seconds -= measured if phase == MEASURED_PHASE else 0.0
            by_phase[phase] = by_phase.get(phase, 0.0) + max(0.0, seconds)
    if not spans:
        return None
    held = sum(max(end for _, end in own) - min(begin for begin, _ in own) for own in spans.values())
    busy = sum(end - begin for own in spans.values() for begin, end in own)
    if not held > 0:
        return None
    by_phase["other"] = max(0.0, busy - useful - sum(by_phase.values()))
    others = ("the other workers of trials over several",) if any(one.trial.world_size > 1 for one in ran) else ()
    jumps = () if by_ledger else ("whether the workers' clocks jumped: the run's ledger is missing or incomplete",)
    return Billed(
        workers=len(spans),
        held_sec=held,
        useful_sec=useful,
        by_phase=by_phase,
        idle_sec=max(0.0, held - busy),
        unknown=(*_NEVER_KNOWN, *others, *jumps),
    )


def startup_sec(results: Iterable[TrialResult]) -> float | None:
    """The median time of these trials before their first measured step, None where none says."""
    found = [
        sum((result.phases.get(phase, 0.0) for phase in ("import", "load", "data", "warmup")), 0.0)
        for result in results
        if result.phases
    ]
    return median(found) if found else None


def _fine_tuning(rate: Estimate, at: Price, scaling: ScalingCost, startup: float | None) -> FineTuning:
    training = seconds_for(FINE_TUNING_SAMPLES, rate).times(1.0 / scaling.speedup)
    gpu_sec = at.usd_per_gpu_hour / 3600.0 * scaling.gpus
    nodes = -(-scaling.gpus // at.gpus_per_node)
    volume_sec = 0.0 if at.boot_volume is None else at.boot_volume.usd_per_hour / 3600.0 * nodes
    more = startup or 0.0

    def with_startup(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + more

    all_of_it = Amount(value=training.value + more, low=with_startup(training.low), high=with_startup(training.high))
    return FineTuning(
        gpus=scaling.gpus,
        scaling=scaling,
        training_sec=training,
        usd=training.times(gpu_sec),
        startup_sec=startup,
        boot_volume_usd=None if at.boot_volume is None else all_of_it.value * volume_sec,
        usd_billed=all_of_it.times(gpu_sec + volume_sec),
    )


def _moment(iso: str | None) -> float | None:
    """Seconds since 1970 of an ISO 8601 moment, None where it is none."""
    try:
        return None if iso is None else datetime.fromisoformat(iso).timestamp()
    except (ValueError, OverflowError):  # the year 1, which some clocks begin with
        return None
