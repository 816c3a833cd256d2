"""Cost of measured speed. Pure arithmetic; every amount has its price, and every price its source.

GPU time is priced by the GPU hour. Training is measured, but more is billed: pulling the image, loading, warm-up,
idling. `FineTuning` has both if both are known. Several GPUs are priced by a measured speed-up if a distributed trial
has one, else by an assumption that is stated.

Monthly and traffic prices (`OtherPrice`) are listed but added to no amount: how much of these a training needs is
not measured. Not covered: the control plane, the build VM, and interruptions of preemptible nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from statistics import median
from typing import Any, Self

from bench.records.result import TrialResult
from bench.records.validation import FieldError, check_ranges, checked
from reports import formatting
from reports.statistics.types import Estimate

SAMPLES = 1000
FINE_TUNING_SAMPLES = 10_000
FINE_TUNING_GPUS = (1, 2, 4)
HOURS_PER_MONTH = 730.0  # the length of a month that clouds bill


SHORT_TEXT: dict[str, Any] = {"pattern": r"\A(?=.*\S).{1,200}\Z", "expected": "text of at most 200 characters"}


class Checked:
    """A part of a price table, whose values are checked."""

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Dated(Checked):
    """A price of a price table, with its unit, its source and the day when it was recorded."""

    amount: float = checked(gt=0, le=10_000)
    unit: str = checked(choices=("USD per GPU hour",))
    source: str = checked(**SHORT_TEXT)
    dated: str = checked(pattern=r"\A\d{4}-\d\d-\d\d\Z", expected="a day, as 2026-11-20")

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_future = date.fromisoformat(self.dated) > datetime.now(UTC).date()
        except ValueError as error:
            raise FieldError("dated", str(error)) from error
        if is_future:
            raise FieldError("dated", f"{self.dated} is in the future")


@dataclass(frozen=True, kw_only=True)
class NamedPrice(Dated):
    """An alternative price of a GPU."""

    name: str = checked(**SHORT_TEXT)


@dataclass(frozen=True, kw_only=True)
class BootVolume(Dated):
    """A node's boot volume: its size and price."""

    unit: str = checked(choices=("USD per GB month",))
    size_gb: float = checked(gt=0, le=1_000_000)

    @property
    def usd_per_hour(self) -> float:
        return self.size_gb * self.amount / HOURS_PER_MONTH


@dataclass(frozen=True, kw_only=True)
class OtherPrice(Dated):
    """Another billed item; the first `free_gb` of a month are free."""

    item: str = checked(**SHORT_TEXT)
    unit: str = checked(choices=("USD per GB month", "USD per GB"))
    free_gb: float = checked(0.0, ge=0, le=1e15)

    @property
    def description(self) -> str:
        """Text such as `file storage 0.3 USD per GB month (list price, 2026-11-20)`."""
        free = f" after {self.free_gb:,.0f} GB a month" if self.free_gb else ""
        return f"{self.item} {self.amount:g} {self.unit}{free} ({self.source}, {self.dated})"


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of one GPU for one hour in US dollars, and its source.

    `name` is "on-demand", "preemptible", an alternative's name, or "set" for a price from a setting. `dated` is the day
    when it was recorded, None for a price from a setting.
    """

    usd_per_gpu_hour: float
    source: str
    name: str = "set"
    dated: str | None = None
    shape: str | None = None
    gpus_per_node: int = 1
    boot_volume: BootVolume | None = None
    other_prices: tuple[OtherPrice, ...] = ()

    @property
    def description(self) -> str:
        """Text such as `$2.00 per GPU hour, on-demand (list price B95909, 2026-11-20)`."""
        name = "" if self.name == "set" else f", {self.name}"
        day = "" if self.dated is None else f", {self.dated}"
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
    """The speed-up of `gpus` GPUs over one, at most linear, whether this run measured it, and the source.

    `label` is the configuration that measured it, None if none did.
    """

    gpus: int
    speedup: float
    is_measured: bool
    source: str
    label: str | None = None


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
    scalings: Sequence[ScalingCost],
    startup_sec: float | None = None,
) -> Cost:
    """Compute the cost of one worker's speed."""
    per_sec = price.usd_per_gpu_hour / 3600.0
    return Cost(
        price=price,
        usd_per_1000_samples=seconds_for(SAMPLES, samples_per_sec).times(per_sec),
        usd_per_million_useful_tokens=seconds_for(1e6, useful_tokens_per_sec).times(per_sec),
        fine_tunings=tuple(_fine_tuning(samples_per_sec, price, plan, startup_sec) for plan in scalings),
    )


def assumed_scaling(gpus: int) -> ScalingCost:
    """Return linear scaling, marked as an assumption; on one GPU nothing is assumed."""
    if gpus == 1:
        return ScalingCost(gpus=1, speedup=1.0, is_measured=True, source="measured on one GPU")
    source = (
        f"assumed: {gpus} GPUs are {gpus} times as fast as one, because no distributed trial of this run measured it"
    )
    return ScalingCost(gpus=gpus, speedup=float(gpus), is_measured=False, source=source)


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
