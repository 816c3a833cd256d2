"""The table of prices, read and checked: which prices a run's GPUs have, each with its unit, source and date.

`reports/prices.yaml` is the table that comes with the project; `cost.prices` may name another. A price that a setting
gives stands before all of them. What cannot be used is refused with one line that names the file and the key.
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
from reports import formatting
from reports.read.fingerprint import CPU
from reports.summary.cost import BootVolume, Hosted, Price, PublishedPrice
from reports.summary.energy import Carbon

TABLE = Path(__file__).parents[1] / "prices.yaml"
_MOST_BYTES = 1_000_000  # thousands of shapes
Words = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


class PriceError(ValueError):
    """A price that cannot be used; the message names the file or setting, the key, and what is expected there."""


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """What the settings say about cost. Without any, a run's prices are those of its GPU in the table, if it is there.

    `table` None is the project's own. `shape` names one of the table's; None finds it by the GPU's name.
    """

    usd_per_gpu_hour: float | None = None
    source: str | None = None
    shape: str | None = None
    table: Path | None = None
    hosted_usd_per_10000_samples: float | None = None
    hosted_source: str | None = None
    co2_kg_per_kwh: float | None = None
    co2_source: str | None = None

    def price(self) -> Price | None:
        """The price that is set. Raises PriceError."""
        if (usd := self.usd_per_gpu_hour) is None:
            return None
        wants = "price_source: a price needs its source, e.g. 'list price B95909, 2025-06'"
        return Price(usd_per_gpu_hour=usd, source=_source("price_usd_per_gpu_hour", usd, self.source, wants))

    def carbon(self) -> Carbon | None:
        """How much CO2 a kilowatt hour stands for. Raises PriceError."""
        if (kg := self.co2_kg_per_kwh) is None:
            return None
        wants = "co2_source: a factor needs its source: whose electricity it is, and of which year"
        return Carbon(kg_per_kwh=kg, source=_source("co2_kg_per_kwh", kg, self.co2_source, wants))

    def hosted(self) -> Hosted | None:
        """The hosted service to compare with. Raises PriceError."""
        if (usd := self.hosted_usd_per_10000_samples) is None:
            return None
        wants = "hosted_source: a hosted service's price needs its source: who asks it, and when"
        source = _source("hosted_usd_per_10000_samples", usd, self.hosted_source, wants)
        return Hosted(usd_per_10000_samples=usd, source=source)


def _source(setting: str, amount: float, source: str | None, wants: str) -> str:
    """The source of an amount above 0. Raises PriceError, which says what it `wants` where there is none."""
    if not 0 < amount < float("inf"):
        raise PriceError(f"cost.{setting}: expected an amount above 0, found {amount}")
    if not source or not source.strip():
        raise PriceError(f"cost.{wants}")
    return source


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _Dated(_StrictModel):
    amount: float = Field(gt=0, le=10_000)
    source: Words
    dated: date


class _GpuHour(_Dated):
    unit: Literal["USD per GPU hour"]


class _Named(_GpuHour):
    name: Words


class _GbMonth(_Dated):
    unit: Literal["USD per GB month"]
    size_gb: float = Field(gt=0, le=1_000_000)


class _Other(_Dated):
    what: Words
    unit: Literal["USD per GB month", "USD per GB"]
    free_gb: float = Field(default=0.0, ge=0, le=1e15)


class _Shape(_StrictModel):
    gpu: Words
    gpus: int = Field(ge=1, le=64)
    on_demand: _GpuHour
    preemptible: _GpuHour | None = None
    boot_volume: _GbMonth | None = None
    alternatives: tuple[_Named, ...] = ()


class PriceTable(_StrictModel):
    """A table of prices by shape, as in reports/prices.yaml. `others` are paid for, too, and no report adds them up."""

    schema_version: Literal[1]
    shapes: dict[str, _Shape]
    others: dict[str, _Other] = Field(default={}, max_length=20)


class _Plain(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias", problem_mark=self.get_mark())
        return super().compose_node(parent, index)


@functools.lru_cache(maxsize=8)
def _document(content: bytes) -> object:
    """A table as YAML holds it; nobody changes it, so that the same bytes are read once a process."""
    return yaml.load(content.decode(), _Plain)  # noqa: S506 - a SafeLoader


def read(path: Path, *, today: date) -> PriceTable:
    """The table at `path`. Raises PriceError: it cannot be read, has a wrong unit or key, or a date after `today`."""
    try:
        document = _document(read_regular(path, most_bytes=_MOST_BYTES))
    except OSError as error:
        raise PriceError(f"{path}: cannot be read: {error.strerror}; look at cost.prices") from None
    except RecursionError:
        raise PriceError(f"{path}: nested too deep; see reports/prices.yaml for an example") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date such as 2026-02-30
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise PriceError(f"{path}{line}: not YAML that can be read; see reports/prices.yaml for an example") from None
    try:
        table = PriceTable.model_validate(document)
    except ValidationError as error:
        raise PriceError(f"{path}: {_problem(error)}") from None
    for place, when in _dates(table):
        if when > today:
            raise PriceError(
                f"{path}: {place}.dated: {when.isoformat()} is in the future (today is {today.isoformat()}); "
                "write the day the price was looked up"
            )
    return table


def choose(pricing: Pricing, devices: Sequence[str], *, today: date) -> tuple[Price, ...]:
    """The prices of a run on these devices, the one that counts first; empty where none is known.

    Raises PriceError: a price without source, a shape the table does not have, a table that cannot be used.
    """
    own, name = pricing.price(), pricing.shape
    if name is None and pricing.table is None and set(devices) <= {CPU}:
        return () if own is None else (own,)
    path = pricing.table or TABLE
    table = read(path, today=today)
    if name is not None and name not in table.shapes:
        known = formatting.first_n([repr(shape) for shape in table.shapes]) or "no shape"
        raise PriceError(f"cost.shape: {name!r}: unknown shape; {path} has {known}")
    if name is None and len(devices) == 1:
        name = next((shape for shape, held in table.shapes.items() if held.gpu == devices[0]), None)
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
    called = [("on-demand", shape.on_demand)]
    if shape.preemptible is not None:
        called.append(("preemptible", shape.preemptible))
    called += [(alternative.name, alternative) for alternative in shape.alternatives]
    return tuple(
        Price(
            usd_per_gpu_hour=one.amount,
            source=one.source,
            name=kind,
            dated=one.dated,
            shape=name,
            gpus_per_node=shape.gpus,
            boot_volume=boot,
            others=others,
        )
        for kind, one in called
    )


def _dates(table: PriceTable) -> list[tuple[str, date]]:
    found: list[tuple[str, date]] = [(f"others.{name}", one.dated) for name, one in table.others.items()]
    for name, shape in table.shapes.items():
        at = f"shapes.{name}"
        parts: list[tuple[str, _Dated | None]] = [
            (f"{at}.on_demand", shape.on_demand),
            (f"{at}.preemptible", shape.preemptible),
            (f"{at}.boot_volume", shape.boot_volume),
            *((f"{at}.alternatives[{place}]", one) for place, one in enumerate(shape.alternatives)),
        ]
        found += [(place, one.dated) for place, one in parts if one is not None]
    return found


def _problem(error: ValidationError) -> str:
    """The first problem in one line: the key's place, what is expected, what is there."""
    first = error.errors()[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    found = formatting.shorten(repr(first["input"]), 60)
    words = {
        "literal_error": f"expected {first.get('ctx', {}).get('expected', '')}, found {found}",
        "missing": "missing; every price has amount, unit, source and dated",
        "extra_forbidden": "unknown key",
    }.get(first["type"], f"{first['msg'][:1].lower()}{first['msg'][1:]}, found {found}")
    return f"{place or 'the file'}: {words}"
