"""Measurements as tables for readers: a row per context, a column per quantity.

The same rule applies to every kind of trial. Measurements with the same context keys share a table. A context key with
a single value goes into the table's caption.
"""

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

CONFIGURATION = "configuration"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A measurement with its worker, and its configuration and context as text."""

    worker: str | None
    measurement: Measurement
    context: dict[str, str]


def build_tables(results: Iterable[TrialResult], label_of: Mapping[str, str]) -> dict[str, tuple[Table, ...]]:
    """Map each section to its tables: the workloads, those that are compared last, and telemetry."""
    sections: dict[str, list[_Entry]] = {}
    for result in results:
        label = label_of[result.trial_id]
        label = label if result.status is TrialStatus.SUCCEEDED else f"{label} ({result.status.value})"
        for measurement in result.measurements:
            context = {key: _value_text(key, value) for key, value in measurement.context.items()}
            context = {CONFIGURATION: label} | context
            entry = _Entry(worker=result.worker, measurement=measurement, context=context)
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


def _context_table(entries: list[_Entry]) -> Table:
    """Build a table of measurements with the same context keys: a row per context, a column per quantity."""
    distinct = {key: list(dict.fromkeys(entry.context[key] for entry in entries)) for key in entries[0].context}
    # A row needs a heading: without a key that varies, the configuration.
    keys = [key for key, values in distinct.items() if len(values) > 1] or [CONFIGURATION]
    names = list(dict.fromkeys(entry.measurement.name for entry in entries))
    cells: dict[tuple[str, ...], dict[str, list[_Entry]]] = {}
    for entry in entries:
        row = cells.setdefault(tuple(entry.context[key] for key in keys), {})
        row.setdefault(entry.measurement.name, []).append(entry)
    common = [f"{_key_text(key)} {values[0]}" for key, values in distinct.items() if key not in keys]
    units = [measurements.title_unit_scale(name) for name in names]
    return Table(
        columns=(
            *(Column(title=_key_text(key), is_number=False) for key in keys),
            *(Column(title=title, unit=unit) for title, unit, _ in units),
        ),
        rows=tuple(
            Row(cells=(*(Cell(value=text) for text in context), *(_cell(row.get(name, ())) for name in names)))
            for context, row in cells.items()
        ),
        caption=f"All rows: {', '.join(common)}." if common else "",
        file="measurements.csv",
    )


def _cell(entries: Sequence[_Entry]) -> Cell | None:
    if not entries:
        return None
    combined = measurements.combine("", [entry.measurement for entry in entries])
    notes = tuple(dict.fromkeys(entry.measurement.note for entry in entries if entry.measurement.note))
    if combined.value is None:
        return Cell(value="none", details=notes)
    known = [entry for entry in entries if entry.measurement.value is not None]
    ends = {combined.low, combined.high, combined.value} - {None}
    is_count = known[0].measurement.interval is None and all(float(end or 0.0).is_integer() for end in ends)
    value, span = formatting.estimate_parts(combined, 0 if is_count else None)
    if len(known) > 1:
        workers = len({entry.worker for entry in known})
        span += " over " + formatting.count(len(known), "worker" if workers == len(known) else "value")
    elif len(ends) == 1:
        span = ""
    share = combined.share_percent
    of_peak = "" if share is None else f"{formatting.number(share, 0)} % of the chip's peak"
    return Cell(value=value, details=tuple(filter(None, (span, of_peak, *notes))))


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
