"""What the settings say about cost, and the price of a worker's hour."""

import datetime
from collections.abc import Sequence

from reports.summary import prices
from reports.summary.cost import Price
from reports.summary.prices import PriceError, Pricing
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings


def pricing(settings: Settings) -> Pricing:
    given = settings.cost
    return Pricing(
        usd_per_gpu_hour=given.price_usd_per_gpu_hour,
        source=given.price_source,
        shape=given.shape,
        table=None if given.prices is None else settings.root / given.prices,
        hosted_usd_per_10000_samples=given.hosted_usd_per_10000_samples,
        hosted_source=given.hosted_source,
        co2_kg_per_kwh=given.co2_kg_per_kwh,
        co2_source=given.co2_source,
    )


def price_of(settings: Settings, devices: Sequence[str]) -> Price | None:
    """The price that counts for workers with these devices; None where none is known. Raises UsageError."""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    with translate_errors(UsageError, PriceError):
        return next(iter(prices.choose(pricing(settings), devices, today=today)), None)
