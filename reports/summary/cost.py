"""Cost of measured speed. Pure arithmetic; every amount has its price, and every price its source.

GPU time is priced by the GPU hour. Training is measured, but more is billed: pulling the image, loading, warm-up,
idling. `FineTuning` has both if both are known, and `WorkerTime` says how a run's own hours were used. Several GPUs are
priced by a measured speed-up if a distributed trial has one, else by an assumption that is stated.

Monthly and traffic prices (`PublishedPrice`) are listed but added to no amount: how much of these a training needs is
not measured. Not covered: the control plane, the build VM, and interruptions of preemptible nodes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from statistics import median
from typing import Self

from bench.records.result import TrialResult
from reports import formatting
from reports.read import attempts
from reports.read.attempts import Starts
from reports.statistics import per_config
from reports.statistics.per_config import Sample
from reports.statistics.types import Estimate, Process

SAMPLES = 1000
FINE_TUNING_SAMPLES = 10_000
FINE_TUNING_GPUS = (1, 2, 4)
HOURS_PER_MONTH = 730.0  # the length of a month that clouds bill
MEASURED_PHASE = "measure"
POWER = "gpu_power_watts"
_ALWAYS_UNKNOWN = ("pulling the image", "time before the first and after the last trial")


@dataclass(frozen=True, kw_only=True)
class BootVolume:
    """A node's boot volume: its size and price."""

    size_gb: float
    usd_per_gb_month: float
    source: str
    dated: date

    @property
    def usd_per_hour(self) -> float:
        return self.size_gb * self.usd_per_gb_month / HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True)
class PublishedPrice:
    """Another billed item: US dollars per unit; the first `free_gb` of a month are free."""

    label: str
    amount: float
    unit: str
    free_gb: float
    source: str
    dated: date

    @property
    def description(self) -> str:
        """Text such as `file storage 0.3 USD per GB month (list price, 2026-11-20)`."""
        free = f" after {self.free_gb:,.0f} GB a month" if self.free_gb else ""
        return f"{self.label} {self.amount:g} {self.unit}{free} ({self.source}, {self.dated.isoformat()})"


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one GPU for one hour in US dollars, and its source.

    `name` is "on-demand", "preemptible", an alternative's name, or "set" for a price from a setting. `dated` is the day
    when it was recorded, None for a price from a setting.
    """

    usd_per_gpu_hour: float
    source: str
    name: str = "set"
    dated: date | None = None
    shape: str | None = None
    gpus_per_node: int = 1
    boot_volume: BootVolume | None = None
    other_prices: tuple[PublishedPrice, ...] = ()

    @property
    def description(self) -> str:
        """Text such as `$2.00 per GPU hour, on-demand (list price B95909, 2026-11-20)`."""
        name = "" if self.name == "set" else f", {self.name}"
        day = "" if self.dated is None else f", {self.dated.isoformat()}"
        return f"${self.usd_per_gpu_hour:,.2f} per GPU hour{name} ({self.source}{day})"


@dataclass(frozen=True, kw_only=True)
class HostedPrice:
    """A hosted service's prices for fine-tuning, as set by the user, and their source; None if not set.

    `usd_per_10000_samples` is for FINE_TUNING_SAMPLES samples, `usd_per_million_tokens` for trained tokens.
    """

    usd_per_10000_samples: float | None = None
    usd_per_million_tokens: float | None = None
    source: str

    @property
    def description(self) -> str:
        """Text such as `A hosted service charges $0.48 per million tokens (a service's list, 2026-11-20).`"""
        amounts = {"million tokens": self.usd_per_million_tokens, "10,000 samples": self.usd_per_10000_samples}
        texts = [f"${formatting.number(usd)} per {unit}" for unit, usd in amounts.items() if usd is not None]
        return f"A hosted service charges {' and '.join(texts)} ({self.source})."


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A value with its interval; the ends are None if the speed behind it has no interval."""

    value: float
    low: float | None
    high: float | None

    def times(self, factor: float) -> Self:
        """Multiply value and interval by a factor above 0."""
        low, high = self.low, self.high
        return replace(
            self,
            value=self.value * factor,
            low=None if low is None else low * factor,
            high=None if high is None else high * factor,
        )


@dataclass(frozen=True, kw_only=True)
class ScalingCost:
    """The speed-up of `gpus` GPUs over one, whether this run measured it, and the source."""

    gpus: int
    speedup: float
    is_measured: bool
    source: str


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """A fine-tuning on FINE_TUNING_SAMPLES samples on `gpus` GPUs.

    `training_sec` and `usd` are for the steps only. `startup_sec` is the measured time of a process before its first
    step (imports, loading, data, warm-up), None if unknown; `usd_billed` adds that time and the boot volumes. The
    intervals are those of the speed, without the uncertainty of the speed-up.
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
    """The cost of one configuration at one price. Its intervals are those of the speed, inverted: faster is cheaper."""

    price: Price
    usd_per_1000_samples: Amount
    usd_per_million_useful_tokens: Amount
    fine_tunings: tuple[FineTuning, ...]


@dataclass(frozen=True, kw_only=True)
class WorkerTime:
    """The use of a run's GPU time in seconds, summed over its workers; `unknown` names what was not measured.

    A worker is held from its first trial's start (operator's clock) to its last trial's end. `useful_sec` is the time
    in measured steps, `by_phase` the rest of the trials' time by phase, `idle_sec` the time between trials.
    """

    workers: int
    held_sec: float
    useful_sec: float
    by_phase: Mapping[str, float] = field(default_factory=dict)
    idle_sec: float = 0.0
    unknown: tuple[str, ...] = _ALWAYS_UNKNOWN

    @property
    def useful_percent(self) -> float:
        return 100.0 * self.useful_sec / self.held_sec


def seconds_for(amount: float, rate: Estimate) -> Amount:
    """Return how long `amount` takes at a rate per second."""
    return Amount(
        value=amount / rate.value,
        low=None if rate.high is None else amount / rate.high,
        high=None if rate.low is None else amount / rate.low,
    )


def cost(
    samples_per_sec: Estimate,
    useful_tokens_per_sec: Estimate,
    price: Price,
    *,
    scalings: Sequence[ScalingCost] | None = None,
    startup_sec: float | None = None,
) -> Cost:
    """Compute the cost of one worker's speed. Without `scalings`, n GPUs are assumed to be n times as fast."""
    per_sec = price.usd_per_gpu_hour / 3600.0
    plans = [assumed_scaling(gpus) for gpus in FINE_TUNING_GPUS] if scalings is None else scalings
    return Cost(
        price=price,
        usd_per_1000_samples=seconds_for(SAMPLES, samples_per_sec).times(per_sec),
        usd_per_million_useful_tokens=seconds_for(1e6, useful_tokens_per_sec).times(per_sec),
        fine_tunings=tuple(_fine_tuning(samples_per_sec, price, plan, startup_sec) for plan in plans),
    )


def assumed_scaling(gpus: int) -> ScalingCost:
    """Return linear scaling, marked as an assumption; on one GPU nothing is assumed."""
    if gpus == 1:
        return ScalingCost(gpus=1, speedup=1.0, is_measured=True, source="measured on one GPU")
    source = (
        f"assumed: {gpus} GPUs are {gpus} times as fast as one, because no distributed trial of this run measured it"
    )
    return ScalingCost(gpus=gpus, speedup=float(gpus), is_measured=False, source=source)


def worker_time(results: Iterable[TrialResult], starts: Starts | None = None) -> WorkerTime | None:
    """Compute how the workers' time was used; None if no trial recorded when it ran.

    `starts` are the attempts' start times from the ledger. If one is missing, or the operator's clock jumped by more
    than a day, the workers' clocks are used for all, and `unknown` says that these may have jumped, too.
    """
    ran = [result for result in results if result.worker is not None and result.wall_time_sec is not None]
    ledger = starts or {}
    by_ledger = [ledger.get((result.trial_id, result.attempt)) for result in ran]
    by_workers = [attempts.timestamp(result.started_at) for result in ran]
    held, held_by_workers = _held_sec(ran, by_ledger), _held_sec(ran, by_workers)
    is_in_ledger = None not in by_ledger and held <= (held_by_workers or held) + attempts.MAX_DIFFERENCE_SEC
    held, began = (held, by_ledger) if is_in_ledger else (held_by_workers, by_workers)
    timed = [result for result, start in zip(ran, began, strict=True) if start is not None]
    by_phase: dict[str, float] = {}
    useful = 0.0
    for trial in timed:
        measured = sum(trial.steps.step_time_sec)
        useful += measured
        for phase, seconds in trial.phases.items():
            seconds -= measured if phase == MEASURED_PHASE else 0.0
            by_phase[phase] = by_phase.get(phase, 0.0) + max(0.0, seconds)
    if not held > 0:
        return None
    busy = sum(trial.wall_time_sec or 0.0 for trial in timed)
    by_phase["other"] = max(0.0, busy - useful - sum(by_phase.values()))
    others = ("the other workers of distributed trials",) if any(result.trial.world_size > 1 for result in ran) else ()
    jumps = () if is_in_ledger else ("whether the workers' clocks jumped: the run's ledger cannot show it",)
    return WorkerTime(
        workers=len({trial.worker for trial in timed}),
        held_sec=held,
        useful_sec=useful,
        by_phase=by_phase,
        idle_sec=max(0.0, held - busy),
        unknown=(*_ALWAYS_UNKNOWN, *others, *jumps),
    )


def _held_sec(ran: Iterable[TrialResult], began: Iterable[float | None]) -> float:
    """Sum the time from each worker's first start to its last end, at least that of its trials: clocks may jump."""
    spans: dict[str | None, list[tuple[float, float]]] = {}
    for result, start in zip(ran, began, strict=True):
        if start is not None:
            spans.setdefault(result.worker, []).append((start, start + (result.wall_time_sec or 0.0)))
    return sum(
        max(
            max(end for _, end in trials) - min(start for start, _ in trials), sum(end - start for start, end in trials)
        )
        for trials in spans.values()
    )


def startup_sec(results: Iterable[TrialResult]) -> float | None:
    """Return the trials' median time before their first measured step; None if no trial has phases."""
    startups = [
        sum((result.phases.get(phase, 0.0) for phase in ("import", "load", "data", "warmup")), 0.0)
        for result in results
        if result.phases
    ]
    return median(startups) if startups else None


def _fine_tuning(rate: Estimate, price: Price, scaling: ScalingCost, startup: float | None) -> FineTuning:
    training = seconds_for(FINE_TUNING_SAMPLES, rate).times(1.0 / scaling.speedup)
    gpu_usd_per_sec = price.usd_per_gpu_hour / 3600.0 * scaling.gpus
    nodes = -(-scaling.gpus // price.gpus_per_node)
    volume_usd_per_sec = 0.0 if price.boot_volume is None else price.boot_volume.usd_per_hour / 3600.0 * nodes
    startup_or_zero = startup or 0.0

    def with_startup(seconds: float | None) -> float | None:
        return None if seconds is None else seconds + startup_or_zero

    total = Amount(
        value=training.value + startup_or_zero, low=with_startup(training.low), high=with_startup(training.high)
    )
    return FineTuning(
        gpus=scaling.gpus,
        scaling=scaling,
        training_sec=training,
        usd=training.times(gpu_usd_per_sec),
        startup_sec=startup,
        boot_volume_usd=None if price.boot_volume is None else total.value * volume_usd_per_sec,
        usd_billed=total.times(gpu_usd_per_sec + volume_usd_per_sec),
    )


_JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, kw_only=True)
class Energy:
    """The GPU energy of one configuration.

    `joules_per_1000_useful_tokens` has its interval over workers or processes. `fine_tuning_kwh` is for a
    fine-tuning on FINE_TUNING_SAMPLES samples on one GPU.
    """

    joules_per_1000_useful_tokens: Estimate
    fine_tuning_kwh: Amount

    @property
    def sentence(self) -> str:
        """A sentence about the energy of the fine-tuning."""
        kwh = formatting.estimate(self.fine_tuning_kwh, " kWh")
        uses = f"The GPU uses {kwh} for {FINE_TUNING_SAMPLES:,} samples"
        return f"{uses}; the host and the time before the first step are not included."


def measure_energy(results: Iterable[TrialResult], processes: Mapping[str, Sequence[Process]]) -> dict[str, Energy]:
    """Compute the energy of each configuration of which at least one process had its power sampled."""
    by_id = {result.trial_id: result for result in results}
    samples_by_label: dict[str, list[Sample]] = {}
    for label, described in processes.items():
        for process in described:
            watts = _mean_watts(by_id[process.process])
            if watts is not None:
                joules = 1000.0 * watts / process.elapsed_useful_tokens_per_sec
                sample = Sample(worker=process.worker, log=math.log(joules), error=process.elapsed_error)
                samples_by_label.setdefault(label, []).append(sample)
    spreads = per_config.spreads(samples_by_label)
    return {
        label: _energy(
            per_config.estimate(per_config.mean_of_logs(samples, spreads.get(label)), len(samples)),
            processes[label],
        )
        for label, samples in samples_by_label.items()
    }


def _mean_watts(result: TrialResult) -> float | None:
    """Return the mean power of the GPUs of a trial's ranks during its steps; None if it was not sampled."""
    watts = (
        measurement.value
        for measurement in result.measurements
        if measurement.name == POWER and measurement.context.get("window") == MEASURED_PHASE
    )
    value = next(watts, None)
    return value if value is not None and value > 0 else None


def _energy(joules: Estimate, processes: Sequence[Process]) -> Energy:
    tokens_per_sample = [
        process.elapsed_useful_tokens_per_sec / process.elapsed_samples_per_sec for process in processes
    ]
    tokens = sum(tokens_per_sample) / len(tokens_per_sample) * FINE_TUNING_SAMPLES
    kwh_per_joule = tokens / 1000.0 / _JOULES_PER_KWH
    kwh = Amount(value=joules.value, low=joules.low, high=joules.high).times(kwh_per_joule)
    return Energy(
        joules_per_1000_useful_tokens=joules,
        fine_tuning_kwh=kwh,
    )
