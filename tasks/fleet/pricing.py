"""Cost settings, and the price of a worker's hour."""

import dataclasses

from reports.summary import prices
from reports.summary.cost import HostedPrice, Price
from reports.summary.prices import TABLE, PriceError, PriceTable, Pricing
from tasks.clients.target_cluster import known_provider
from tasks.errors import UsageError, translate_errors
from tasks.settings.layers import Settings


def pricing(settings: Settings) -> Pricing:
    """Convert the cost settings."""
    cost, provider = settings.cost, known_provider(settings)
    listed = TABLE.name if provider is None else provider.price_table
    table = None if listed is None else TABLE.with_name(listed)
    return Pricing(
        usd_per_gpu_hour=cost.price_usd_per_gpu_hour,
        source=cost.price_source,
        shape=cost.shape,
        table=table if cost.prices is None else settings.resolve_path(cost.prices),
        hosted_usd_per_10000_samples=cost.hosted_usd_per_10000_samples,
        hosted_usd_per_million_tokens=cost.hosted_usd_per_million_tokens,
        hosted_source=cost.hosted_source,
    )


def price_table(settings: Settings) -> PriceTable | None:
    """Return the table of prices in effect; None if the provider has none. Raises UsageError."""
    path = pricing(settings).table
    with translate_errors(UsageError, PriceError):
        return None if path is None else prices.read_table(path)


def hosted_price(settings: Settings) -> HostedPrice | None:
    """Return the prices of a hosted service that are set; None without one. Raises UsageError."""
    with translate_errors(UsageError, PriceError):
        return pricing(settings).hosted()


def worker_price(settings: Settings, device: str | None) -> Price | None:
    """Return the price of a rank of a training: of all GPUs that its worker holds. None if unknown.

    Raises UsageError.
    """
    with translate_errors(UsageError, PriceError):
        price = next(iter(prices.select_prices(pricing(settings), [device] if device else [])), None)
    gpus = settings.cluster.gpus_per_pod if settings.connector.is_cluster else 1
    if price is None or gpus == 1:
        return price
    source = f"{price.source}; each pod holds {gpus} GPUs, and a training uses one"
    return dataclasses.replace(price, usd_per_gpu_hour=price.usd_per_gpu_hour * gpus, source=source)
