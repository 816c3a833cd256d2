"""Measurements picked out of a run for figures: by name, one value per configuration and context, over its workers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from reports import formatting
from reports.read.run import Run


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """One quantity. Several workers' values become their median, with the range from smallest to largest.

    `value` is None where it is unknown; `note` then says why. `n` counts repeats, or workers where there are several.
    """

    configuration: str
    context: dict[str, Any]
    value: float | None
    low: float | None
    high: float | None
    n: int | None
    share_percent: float | None
    note: str | None

    def words(self, unit: str, *, scale: float = 1.0) -> str:
        """`8.93 GB (8.91 to 8.95)`; `unknown` without a value."""
        if self.value is None:
            return formatting.UNKNOWN
        places = formatting.decimals(self.value / scale)
        value = f"{formatting.number(self.value / scale, places)} {unit}".rstrip()
        if self.low is None or self.high is None:
            return value
        return f"{value} {formatting.span(self.low / scale, self.high / scale, places)}".rstrip()


def pick(run: Run, name: str, *keys: str, kind: str | None = None) -> list[MeasuredValue]:
    """Readings of measurement `name` of trials that succeeded, in the run's order; told apart by `keys` of context."""
    if name not in run.measured:
        return []
    groups: dict[tuple[str, ...], list[MeasuredValue]] = {}
    for row in run.measured[name].itertuples(index=False):
        if kind is not None and row.kind != kind:
            continue
        context = json.loads(str(row.context))
        one = MeasuredValue(
            configuration=str(row.configuration),
            context=context,
            value=_known(row.value),
            low=_known(row.low),
            high=_known(row.high),
            n=None if (n := _known(row.n)) is None else int(n),
            share_percent=_known(row.share_percent),
            note=row.note if isinstance(row.note, str) else None,
        )
        on = (one.configuration, *(json.dumps(context.get(key)) for key in keys))
        groups.setdefault(on, []).append(one)
    return [_combined(found) for found in groups.values()]


def _combined(found: list[MeasuredValue]) -> MeasuredValue:
    known = sorted((one for one in found if one.value is not None), key=lambda one: one.value or 0.0)
    if len(known) < 2:
        return (known or found)[0]
    values = [one.value for one in known if one.value is not None]
    shares = [one.share_percent for one in known if one.share_percent is not None]
    return replace(
        known[0],
        value=median(values),
        low=values[0],
        high=values[-1],
        n=len(values),
        share_percent=median(shares) if shares else None,
    )


def spread_words(readings: Iterable[MeasuredValue]) -> str:
    """What n and the ranges of these readings are, for a figure's head."""
    counts = [reading.n for reading in readings if reading.n is not None]
    if not counts:
        return "each measured once"
    return f"n = {formatting.from_to(counts)}; medians with 95 % intervals; over several workers, their range"


def _known(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # pandas' NA
        return None
    return None if number != number else number
