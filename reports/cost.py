"""What measured speed costs at a price per GPU hour. Pure arithmetic; every amount carries its price and its source.

Not covered: time that is billed but not measured (pulling the image, loading, idling). A price is a setting, never
built in; without one there is no amount.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.stats import Estimate

SAMPLES = 1000


@dataclass(frozen=True, kw_only=True)
class Price:
    """US dollars for one GPU for one hour, and where that number comes from."""

    usd_per_gpu_hour: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Cost:
    """US dollars for 1,000 samples on one GPU. The interval is the speed's, turned over; None where that has none."""

    usd_per_1000_samples: float
    low: float | None
    high: float | None
    price: Price


def price(usd_per_gpu_hour: float | None, source: str | None) -> Price | None:
    """The price, or None where none is set. Raises ValueError unless it is a positive amount with a source."""
    if usd_per_gpu_hour is None:
        return None
    if not 0 < usd_per_gpu_hour < float("inf"):
        raise ValueError(f"price_usd_per_gpu_hour: expected an amount above 0, found {usd_per_gpu_hour}")
    if not source or not source.strip():
        raise ValueError("price_source: a price needs its source, e.g. 'list price B95909, 2025-06'")
    return Price(usd_per_gpu_hour=usd_per_gpu_hour, source=source)


def per_1000_samples(samples_per_sec: Estimate, at: Price | None) -> Cost | None:
    """Cost of 1,000 samples at one worker's speed: price / 3600 * 1000 / samples_per_sec. None without a price."""
    if at is None:
        return None

    def usd(rate: float) -> float:
        return at.usd_per_gpu_hour / 3600.0 * SAMPLES / rate

    return Cost(
        usd_per_1000_samples=usd(samples_per_sec.value),
        low=None if samples_per_sec.high is None else usd(samples_per_sec.high),
        high=None if samples_per_sec.low is None else usd(samples_per_sec.low),
        price=at,
    )
