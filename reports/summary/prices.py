"""Loading and validation of the price table, and selection of a run's prices, each with unit, source and date.

`reports/prices.yaml` is the project's table; `cost.prices` may name another. A price from a setting comes before the
table's. Invalid input raises PriceError with one line that names the file and the key.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench.records.atomic_files import read_regular
from bench.records.status import Failure
from reports import formatting
from reports.read.fingerprint import CPU
from reports.summary.cost import BootVolume, HostedPrice, Price, PublishedPrice

TABLE = Path(__file__).parents[1] / "prices.yaml"
_MAX_TABLE_BYTES = 1_000_000  # room for thousands of shapes
ShortText = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


class PriceError(Failure, ValueError):
    """Raised for an invalid price; the message names the file or setting, the key, and the expected value."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The settings about cost. Without any, a run's prices are those of its GPU in the table, if it has an entry.

    `table` is the user's; None: `list_prices`, those of the provider, or none. `shape` names a shape of the table; None
    selects it by the GPU's name.
    """

    usd_per_gpu_hour: float | None = None
    source: str | None = None
    shape: str | None = None
    table: Path | None = None
    list_prices: Path | None = TABLE
    hosted_usd_per_10000_samples: float | None = None
    hosted_usd_per_million_tokens: float | None = None
    hosted_source: str | None = None

    def price(self) -> Price | None:
        """Return the price from the settings. Raises PriceError."""
        if (usd := self.usd_per_gpu_hour) is None:
            return None
        requirement = "price_source: a price needs its source, e.g. 'list price B95909, 2025-06'"
        return Price(usd_per_gpu_hour=usd, source=_source("price_usd_per_gpu_hour", usd, self.source, requirement))

    def hosted(self) -> HostedPrice | None:
        """Return the hosted service to compare with. Raises PriceError."""
        amounts = {
            name: getattr(self, f"hosted_{name}") for name in ("usd_per_10000_samples", "usd_per_million_tokens")
        }
        amounts = {name: usd for name, usd in amounts.items() if usd is not None}
        if not amounts:
            return None
        requirement = "hosted_source: a hosted service's price needs its source: the service and the date"
        (source,) = {_source(f"hosted_{name}", usd, self.hosted_source, requirement) for name, usd in amounts.items()}
        return HostedPrice(**amounts, source=source)


def _source(setting: str, amount: float, source: str | None, requirement: str) -> str:
    """Return the source of an amount. Raises PriceError if the amount is not above 0 or the source is missing."""
    if not 0 < amount < float("inf"):
        raise PriceError(f"cost.{setting}: expected an amount above 0, found {amount}")
    if not source or not source.strip():
        raise PriceError(f"cost.{requirement}")
    return source


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Dated(_StrictModel):
    amount: float = Field(gt=0, le=10_000)
    source: ShortText
    dated: date


class _GpuHour(_Dated):
    unit: Literal["USD per GPU hour"]


class _Named(_GpuHour):
    name: ShortText


class _GbMonth(_Dated):
    unit: Literal["USD per GB month"]
    size_gb: float = Field(gt=0, le=1_000_000)


class _Other(_Dated):
    label: ShortText = Field(alias="what")
    unit: Literal["USD per GB month", "USD per GB"]
    free_gb: float = Field(default=0.0, ge=0, le=1e15)


class _Shape(_StrictModel):
    gpu: ShortText
    gpus: int = Field(ge=1, le=64)
    on_demand: _GpuHour
    preemptible: _GpuHour | None = None
    boot_volume: _GbMonth | None = None
    alternatives: tuple[_Named, ...] = ()


class PriceTable(_StrictModel):
    """A table of prices by shape, as in reports/prices.yaml. `others` are listed in reports but not added up."""

    schema_version: Literal[1]
    shapes: dict[str, _Shape]
    others: dict[str, _Other] = Field(default={}, max_length=20)


class _NoAliasLoader(yaml.SafeLoader):
    """YAML loader without aliases: a few lines of aliases can expand to more values than fit into memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias", problem_mark=self.get_mark())
        return super().compose_node(parent, index)


@functools.lru_cache(maxsize=8)
def _parse(content: bytes) -> object:
    """Parse a table. The result is cached, so callers must not change it."""
    return yaml.load(content.decode(), _NoAliasLoader)  # noqa: S506 - a SafeLoader


def read_table(path: Path, *, today: date) -> PriceTable:
    """Read the table at `path`. Raises PriceError if it is unreadable or invalid, or has a date after `today`."""
    try:
        document = _parse(read_regular(path, max_bytes=_MAX_TABLE_BYTES))
    except OSError as error:
        raise PriceError(f"{path}: cannot be read: {error.strerror}", remedy="check cost.prices") from error
    except RecursionError as error:
        raise PriceError(f"{path}: nested too deeply", remedy="see reports/prices.yaml for an example") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a date such as 2026-02-30
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise PriceError(f"{path}{line}: not valid YAML", remedy="see reports/prices.yaml for an example") from error
    try:
        table = PriceTable.model_validate(document)
    except ValidationError as error:
        raise PriceError(f"{path}: {_first_problem(error)}") from error
    for key, dated in _dated_keys(table):
        if dated > today:
            raise PriceError(
                f"{path}: {key}.dated: {dated.isoformat()} is in the future (today is {today.isoformat()})",
                remedy="set it to the day when the price was checked",
            )
    return table


def select_prices(pricing: Pricing, devices: Sequence[str], *, today: date) -> tuple[Price, ...]:
    """Return the prices of a run on these devices, the main one first; () if none is known.

    Raises PriceError for a price without source, an unknown shape, or an invalid table.
    """
    own, name = pricing.price(), pricing.shape
    if name is None and pricing.table is None and set(devices) <= {CPU}:
        return () if own is None else (own,)
    path = pricing.table or pricing.list_prices or (None if name is None else TABLE)
    if path is None:
        return () if own is None else (own,)
    table = read_table(path, today=today)
    if name is not None and name not in table.shapes:
        known = formatting.first_n([repr(shape) for shape in table.shapes]) or "no shape"
        raise PriceError(f"cost.shape: {name!r}: unknown shape", remedy=f"{path} has {known}")
    if name is None and len(devices) == 1:
        name = next((shape for shape, entry in table.shapes.items() if entry.gpu == devices[0]), None)
    listed = () if name is None else _prices(name, table)
    return listed if own is None else (own, *listed)


def _prices(name: str, table: PriceTable) -> tuple[Price, ...]:
    shape = table.shapes[name]
    volume = shape.boot_volume
    boot = None
    if volume is not None:
        boot = BootVolume(
            size_gb=volume.size_gb, usd_per_gb_month=volume.amount, source=volume.source, dated=volume.dated
        )
    others = tuple(PublishedPrice(**other.model_dump()) for other in table.others.values())
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
            boot_volume=boot,
            other_prices=others,
        )
        for kind, price in named
    )


def _dated_keys(table: PriceTable) -> list[tuple[str, date]]:
    dates: list[tuple[str, date]] = [(f"others.{name}", price.dated) for name, price in table.others.items()]
    for name, shape in table.shapes.items():
        key = f"shapes.{name}"
        parts: list[tuple[str, _Dated | None]] = [
            (f"{key}.on_demand", shape.on_demand),
            (f"{key}.preemptible", shape.preemptible),
            (f"{key}.boot_volume", shape.boot_volume),
            *((f"{key}.alternatives[{index}]", price) for index, price in enumerate(shape.alternatives)),
        ]
        dates += [(part, price.dated) for part, price in parts if price is not None]
    return dates


def _first_problem(error: ValidationError) -> str:
    """Describe the first problem in one line: the key, what is expected, what was found."""
    first = error.errors()[0]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    value = formatting.shorten(repr(first["input"]), 60)
    problem = {
        "literal_error": f"expected {first.get('ctx', {}).get('expected', '')}, found {value}",
        "missing": "missing; every price has amount, unit, source and dated",
        "extra_forbidden": "unknown key",
    }.get(first["type"], f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {value}")
    return f"{key or 'the file'}: {problem}"
