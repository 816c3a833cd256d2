"""Selection of a run's measurements for figures: one value per configuration and context, combined over workers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from reports import formatting
from reports.read.run import Run


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """A measured quantity; for several workers the median, with `low` and `high` as the range.

    `value` is None if unknown; `note` then says why. `n` counts repeats, or workers if there are several.
    """

    configuration: str
    context: dict[str, Any]
    value: float | None
    low: float | None
    high: float | None
    n: int | None
    share_percent: float | None
    note: str | None

    def format(self, unit: str, *, scale: float = 1.0) -> str:
        """Format as `8.93 GB (8.91 to 8.95)`, or `unknown` without a value."""
        if self.value is None:
            return formatting.UNKNOWN
        decimals = formatting.significant_decimals(self.value / scale)
        value = f"{formatting.number(self.value / scale, decimals)} {unit}".rstrip()
        if self.low is None or self.high is None:
            return value
        return f"{value} {formatting.span(self.low / scale, self.high / scale, decimals)}".rstrip()


def select(run: Run, name: str, *keys: str, kind: str | None = None) -> list[MeasuredValue]:
    """Select measurement `name` of successful trials, in the run's order: one value per configuration and `keys`."""
    if name not in run.measured:
        return []
    groups: dict[tuple[str, ...], list[MeasuredValue]] = {}
    for row in run.measured[name].itertuples(index=False):
        if kind is not None and row.kind != kind:
            continue
        context = json.loads(str(row.context))
        value = MeasuredValue(
            configuration=str(row.configuration),
            context=context,
            value=_number_or_none(row.value),
            low=_number_or_none(row.low),
            high=_number_or_none(row.high),
            n=None if (n := _number_or_none(row.n)) is None else int(n),
            share_percent=_number_or_none(row.share_percent),
            note=row.note if isinstance(row.note, str) else None,
        )
        group = (value.configuration, *(json.dumps(context.get(key)) for key in keys))
        groups.setdefault(group, []).append(value)
    return [_combine(values) for values in groups.values()]


def _combine(candidates: list[MeasuredValue]) -> MeasuredValue:
    known = sorted(
        (candidate for candidate in candidates if candidate.value is not None),
        key=lambda candidate: candidate.value or 0.0,
    )
    if len(known) < 2:
        return (known or candidates)[0]
    values = [value.value for value in known if value.value is not None]
    shares = [value.share_percent for value in known if value.share_percent is not None]
    return replace(
        known[0],
        value=median(values),
        low=values[0],
        high=values[-1],
        n=len(values),
        share_percent=median(shares) if shares else None,
    )


def describe_spread(values: Iterable[MeasuredValue]) -> str:
    """Describe n and the ranges of these values, for a figure's heading."""
    counts = [value.n for value in values if value.n is not None]
    if not counts:
        return "each measured once"
    return f"n = {formatting.number_range(counts)}; medians with 95 % intervals; over several workers, their range"


def _number_or_none(value: object) -> float | None:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # pandas' NA
        return None
    return None if number != number else number
