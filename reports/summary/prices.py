"""Loading and validation of the price table, and selection of a run's prices, each with unit, source and date.

`reports/prices.yaml` is the project's table; `cost.prices` may name another. A price from a setting comes before the
table's. Invalid input raises PriceError with one line that names the file and the key.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.records import schema
from bench.records.atomic_files import read_regular
from bench.records.schema import SchemaError
from bench.records.status import Failure
from bench.records.validation import checked
from reports import formatting
from reports.summary.cost import SHORT_TEXT, BootVolume, Checked, Dated, HostedPrice, NamedPrice, OtherPrice, Price

TABLE = Path(__file__).parents[1] / "prices.yaml"
_MAX_TABLE_BYTES = 1_000_000  # room for thousands of shapes


class PriceError(Failure, ValueError):
    """Raised for an invalid price; the message names the file or setting, the key, and the expected value."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The settings about cost, checked. Without any, a run's prices are those of its GPU in the table, if it is there.

    `table` is the user's or the provider's, None without one. `shape` names a shape of the table;
    None selects it by the GPU's name.
    """

    usd_per_gpu_hour: float | None = None
    source: str | None = None
    shape: str | None = None
    table: Path | None = TABLE
    hosted_usd_per_10000_samples: float | None = None
    hosted_usd_per_million_tokens: float | None = None
    hosted_source: str | None = None

    def price(self) -> Price | None:
        """Return the price from the settings."""
        usd = self.usd_per_gpu_hour
        return None if usd is None else Price(usd_per_gpu_hour=usd, source=self.source or "")

    def hosted(self) -> HostedPrice | None:
        """Return the hosted service to compare with."""
        per_samples, per_tokens = self.hosted_usd_per_10000_samples, self.hosted_usd_per_million_tokens
        if per_samples is None and per_tokens is None:
            return None
        source = self.hosted_source or ""
        return HostedPrice(usd_per_10000_samples=per_samples, usd_per_million_tokens=per_tokens, source=source)


@dataclass(frozen=True, kw_only=True)
class _Shape(Checked):
    gpu: str = checked(**SHORT_TEXT)
    gpus: int = checked(ge=1, le=64)
    on_demand: Dated
    preemptible: Dated | None = None
    boot_volume: BootVolume | None = None
    alternatives: tuple[NamedPrice, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PriceTable(Checked):
    """A table of prices by shape, as in reports/prices.yaml. `others` are listed in reports but not added up."""

    schema_version: int = checked(ge=1, le=1)
    shapes: dict[str, _Shape]
    others: dict[str, OtherPrice] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """YAML loader that keeps days as text."""


_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))


@functools.lru_cache(maxsize=8)
def _parse(content: bytes) -> object:
    """Parse a table. The result is cached, so callers must not change it."""
    return yaml.load(content.decode(), _Loader)  # noqa: S506 - a SafeLoader


def read_table(path: Path) -> PriceTable:
    """Read the table at `path`. Raises PriceError if it is unreadable or invalid, or has a date in the future."""
    example = "see reports/prices.yaml for an example"
    try:
        document = _parse(read_regular(path, max_bytes=_MAX_TABLE_BYTES))
        return schema.from_json(PriceTable, document)
    except OSError as error:
        raise PriceError(f"{path}: cannot be read: {error.strerror}", remedy="check cost.prices") from error
    except RecursionError as error:
        raise PriceError(f"{path}: nested too deeply", remedy=example) from error
    except SchemaError as error:
        raise PriceError(f"{path}: {error}", remedy=example) from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise PriceError(f"{path}{line}: not valid YAML", remedy=example) from error


def select_prices(pricing: Pricing, devices: Sequence[str]) -> tuple[Price, ...]:
    """Return the prices of a run on these devices, the main one first; () if none is known.

    Raises PriceError for an unknown shape or an invalid table.
    """
    own, name = pricing.price(), pricing.shape
    path = pricing.table or (None if name is None else TABLE)
    listed: tuple[Price, ...] = ()
    if path is not None:
        table = read_table(path)
        if name is None and len(devices) == 1:
            name = next((shape for shape, entry in table.shapes.items() if entry.gpu == devices[0]), None)
        elif name is not None and name not in table.shapes:
            known = formatting.first_n([repr(shape) for shape in table.shapes]) or "no shape"
            raise PriceError(f"cost.shape: {name!r}: unknown shape", remedy=f"{path} has {known}")
        listed = () if name is None else _prices(name, table)
    return listed if own is None else (own, *listed)


def _prices(name: str, table: PriceTable) -> tuple[Price, ...]:
    shape = table.shapes[name]
    named = [("on-demand", shape.on_demand)]
    if shape.preemptible is not None:
        named.append(("preemptible", shape.preemptible))
    named += [(alternative.name, alternative) for alternative in shape.alternatives]
    return tuple(
        Price(
            usd_per_gpu_hour=price.amount,
            source=price.source,
            name=kind,
            dated=price.dated,
            shape=name,
            gpus_per_node=shape.gpus,
            boot_volume=shape.boot_volume,
            other_prices=tuple(table.others.values()),
        )
        for kind, price in named
    )
