"""Measurements as tables for readers: a row per context, a column per quantity.

The same rule applies to every kind of trial. Measurements with the same context keys share a table. A context key with
a single value goes into the table's caption. A table of one quantity over several keys spreads its last key over
columns (matrix products by dtype, one column per size).
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records.result import Measurement, TrialResult
from bench.records.status import TrialStatus
from bench.records.units import format_size
from bench.records.workloads import WORKLOADS
from reports import formatting
from reports.document import Cell, Column, Row, Table
from reports.read import measurements

MAX_ROWS = 200  # limit for the page; measurements.csv has all rows
_MAX_SPREAD_COLUMNS = 6
CONFIGURATION = "configuration"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A measurement with its configuration, worker, and context as text; `trial_keys` are also fields of its trial."""

    label: str
    worker: str | None
    measurement: Measurement
    context: dict[str, str]
    trial_keys: frozenset[str]


def build_tables(results: Iterable[TrialResult], label_of: Mapping[str, str]) -> dict[str, tuple[Table, ...]]:
    """Map each section to its tables: the workloads, those that are compared last, and telemetry."""
    sections: dict[str, list[_Entry]] = {}
    for result in results:
        label = label_of[result.trial_id]
        label = label if result.status is TrialStatus.SUCCEEDED else f"{label} ({result.status.value})"
        for measurement in result.measurements:
            context = {key: _value_text(key, value) for key, value in measurement.context.items()}
            keys = frozenset(key for key in context if hasattr(result.trial, key))
            entry = _Entry(label=label, worker=result.worker, measurement=measurement, context=context, trial_keys=keys)
            sections.setdefault(measurements.section_of(result.trial.kind, measurement), []).append(entry)
    order = [*sorted(WORKLOADS, key=lambda name: WORKLOADS[name].is_compared), measurements.TELEMETRY]
    return {section: tuple(_section_tables(sections[section])) for section in order if section in sections}


def section_title(section: str) -> str:
    return WORKLOADS[section].title if section in WORKLOADS else section.capitalize()


def _section_tables(entries: list[_Entry]) -> Iterable[Table]:
    groups: dict[frozenset[str], list[_Entry]] = {}
    for entry in entries:
        groups.setdefault(frozenset(entry.context), []).append(entry)
    return map(_context_table, groups.values())


def _follows_from_configuration(key: str, entries: Sequence[_Entry]) -> bool:
    """Return whether `key` is a field of the trial, so its value follows from the configuration."""
    values: dict[str, str] = {}
    return all(
        key in entry.trial_keys and values.setdefault(entry.label, entry.context[key]) == entry.context[key]
        for entry in entries
    )


def _context_table(entries: list[_Entry]) -> Table:
    """Build a table of measurements with the same context keys: a row per context, a column per quantity."""
    keys = (CONFIGURATION, *(key for key in entries[0].context if not _follows_from_configuration(key, entries)))
    contexts = [(entry.label, *(entry.context[key] for key in keys[1:])) for entry in entries]
    values = [list(dict.fromkeys(context[index] for context in contexts)) for index in range(len(keys))]
    fixed = [index for index in range(len(keys)) if len(values[index]) == 1]
    free = [index for index in range(len(keys)) if len(values[index]) > 1]
    names = list(dict.fromkeys(entry.measurement.name for entry in entries))
    spread = None
    if (
        len(names) == 1
        and len(free) > 1
        and len(values[free[-1]]) <= _MAX_SPREAD_COLUMNS
        and keys[free[-1]] != CONFIGURATION
    ):
        spread = free.pop()
    if not free:  # a row needs a title: use the configuration
        fixed.remove(0)
        free = [0]
    cells: dict[tuple[str, ...], dict[tuple[str, str], list[_Entry]]] = {}
    for entry, context in zip(entries, contexts, strict=True):
        column = (entry.measurement.name, "" if spread is None else context[spread])
        cells.setdefault(tuple(context[index] for index in free), {}).setdefault(column, []).append(entry)
    columns = [(name, value) for name in names for value in (values[spread] if spread is not None else [""])]
    common = [_pair(keys[index], values[index][0]) for index in fixed]
    return Table(
        columns=(
            *(Column(title=_key_text(keys[index]), is_number=False) for index in free),
            *(_column(name, "" if spread is None else keys[spread], value) for name, value in columns),
        ),
        rows=tuple(
            Row(cells=(*(Cell(value=text) for text in key), *(_cell(row.get(column, ())) for column in columns)))
            for key, row in list(cells.items())[:MAX_ROWS]
        ),
        caption=f"All rows: {', '.join(common)}." if common else "",
        n_omitted=max(0, len(cells) - MAX_ROWS),
        file="measurements.csv",
    )


def _column(name: str, key: str, value: str) -> Column:
    title, unit, _ = measurements.title_unit_scale(name)
    return Column(title=f"{title}, {_pair(key, value)}" if key else title, unit=unit)


def _cell(entries: Sequence[_Entry]) -> Cell | None:
    if not entries:
        return None
    known = [entry for entry in entries if entry.measurement.value is not None]
    notes = tuple(dict.fromkeys(entry.measurement.note for entry in entries if entry.measurement.note))
    if not known:
        return Cell(value="none", details=notes)
    scale = measurements.title_unit_scale(known[0].measurement.name)[2]
    values = [entry.measurement.value / scale for entry in known if entry.measurement.value is not None]
    median = statistics.median(values)
    is_count = all(value.is_integer() for value in values) and known[0].measurement.interval is None
    decimals = 0 if is_count else formatting.significant_decimals(median)
    if len(known) == 1:
        interval = known[0].measurement.interval
        low, high = (None, None) if interval is None else (interval.low / scale, interval.high / scale)
        spread = _range(low, high, decimals)
    else:
        workers = len({entry.worker for entry in known})
        over = formatting.count(workers, "worker") if workers == len(known) else formatting.count(len(known), "value")
        spread = _range(min(values), max(values), decimals, f" over {over}")
    shares = [entry.measurement.share_percent for entry in known if entry.measurement.share_percent is not None]
    share = f"{formatting.number(statistics.median(shares), 0)} % of the chip's peak" if shares else ""
    return Cell(value=formatting.number(median, decimals), details=tuple(filter(None, (spread, share, *notes))))


def _range(low: float | None, high: float | None, decimals: int, suffix: str = "") -> str:
    if low is None or high is None or (low == high and not suffix):
        return ""
    return f"{formatting.number(low, decimals)} to {formatting.number(high, decimals)}{suffix}"


def _value_text(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and key.endswith("bytes"):
        return format_size(float(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return formatting.number(value)
    return str(measurements.cell_value(value))


def _key_text(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ") or key


def _pair(key: str, value: str) -> str:
    return f"{_key_text(key)} {value}"
