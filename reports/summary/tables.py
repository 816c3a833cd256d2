"""Measurements as tables for people: rows are what was measured on (the context), columns what was measured.

One rule for every kind of trial: measurements with the same context keys share a table; a context key with one value
throughout goes into the table's caption; and a table of a single quantity over several keys spreads its last key over
columns (matrix products by dtype, one column a size). What each of a few configurations took only once, on various
things, becomes one list with a column a configuration. Cells are words: every writer shows them as they are.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records.result import Measurement, TrialResult, TrialStatus
from reports import formatting
from reports.read import measurements

MOST_ROWS = 200  # on the page; measurements.csv has all of them
_MOST_SPREAD = 6
_MOST_LISTED = 5  # configurations side by side; more are rows
CONFIGURATION = "configuration"
SECTIONS = ("hardware", "loading", "inference", "distributed", "training", measurements.TELEMETRY)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value as words, and what stands in small print under it: interval, share of the chip's peak, note."""

    value: str
    under: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """All of it on one line."""
        return "; ".join((self.value, *self.under))


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column holds and its unit, empty where the name tells none."""

    title: str
    unit: str


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row: the values of the table's keys, and a cell per column, None where nothing was measured."""

    keys: tuple[str, ...]
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, kw_only=True)
class SummaryTable:
    """One table of a section. `same` is what holds for all of it; `left_out` counts rows beyond MOST_ROWS."""

    section: str
    same: str
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    lines: tuple[TableRow, ...]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """One measurement: of which configuration, where, and its context as words. `own` are keys its trial has, too."""

    label: str
    worker: str | None
    one: Measurement
    context: dict[str, str]
    own: frozenset[str]


def tables(results: Iterable[TrialResult], label_of: Mapping[str, str]) -> tuple[SummaryTable, ...]:
    """Every table of a run, by section, in SECTIONS' order."""
    sections: dict[str, list[_Taken]] = {}
    for result in results:
        label = label_of[result.trial_id]
        label = label if result.status is TrialStatus.SUCCEEDED else f"{label} ({result.status.value})"
        for measurement in result.measurements:
            context = {key: _value_words(key, value) for key, value in measurement.context.items()}
            own = frozenset(key for key in context if hasattr(result.trial, key))
            taken = _Taken(label=label, worker=result.worker, one=measurement, context=context, own=own)
            sections.setdefault(measurements.section_of(result.trial.kind, measurement), []).append(taken)
    ordered = sorted(sections.items(), key=lambda item: SECTIONS.index(item[0]))
    return tuple(table for section, taken in ordered for table in _section(section, taken))


def _section(section: str, taken: list[_Taken]) -> Iterable[SummaryTable]:
    units: dict[tuple[str, frozenset[str]], list[_Taken]] = {}
    for one in taken:
        units.setdefault((one.one.name, frozenset(one.context)), []).append(one)
    once = {unit: found for unit, found in units.items() if _is_once(found)}
    labels = list(dict.fromkeys(one.label for one in taken))
    if len(labels) > _MOST_LISTED or len({keys for _, keys in once}) < 2:
        once = {}
    groups: dict[frozenset[str], list[_Taken]] = {}
    for unit, found in units.items():
        if unit not in once:
            groups.setdefault(unit[1], []).extend(found)
    if once:
        yield _listing(section, labels, list(once.items()))
    for found in groups.values():
        yield _table(section, found)


def _is_once(taken: Sequence[_Taken]) -> bool:
    """True where each configuration took it on one thing only."""
    on: dict[str, dict[str, str]] = {}
    return all(on.setdefault(one.label, one.context) == one.context for one in taken)


def _is_configurations_own(key: str, taken: Sequence[_Taken]) -> bool:
    """True for a field of the trial: its value follows from the configuration, which is named already."""
    value: dict[str, str] = {}
    return all(key in one.own and value.setdefault(one.label, one.context[key]) == one.context[key] for one in taken)


def _listing(
    section: str, labels: list[str], once: list[tuple[tuple[str, frozenset[str]], list[_Taken]]]
) -> SummaryTable:
    """What each configuration took on one thing only: a row a quantity, a column a configuration."""
    rows: list[tuple[str, list[_Taken]]] = []
    for (name, _), found in once:
        same = next((row for row in rows if row[0] == name and _is_once([*row[1], *found])), None)
        if same is None:
            rows.append((name, list(found)))
        else:
            same[1].extend(found)
    everywhere = _shared([one for _, found in rows for one in found])
    lines = []
    for name, found in rows:
        shared = _shared(found)
        cells = []
        for label in labels:
            mine = [one for one in found if one.label == label]
            extra = {key: value for one in mine for key, value in one.context.items() if key not in {*shared, *one.own}}
            more = tuple(_pair(key, value) for key, value in extra.items())
            cells.append(_cell(mine, more) if mine else None)
        words, unit, _ = measurements.words_unit_scale(name)
        on = ", ".join(_pair(key, value) for key, value in shared.items() if key not in {*everywhere, *found[0].own})
        lines.append(TableRow(keys=(", ".join(filter(None, (words, unit))), on), cells=tuple(cells)))
    return SummaryTable(
        section=section,
        same=", ".join(_pair(key, value) for key, value in everywhere.items()),
        keys=("quantity", "on"),
        columns=tuple(Column(title=label, unit="") for label in labels),
        lines=tuple(lines[:MOST_ROWS]),
        left_out=max(0, len(lines) - MOST_ROWS),
    )


def _shared(taken: Sequence[_Taken]) -> dict[str, str]:
    """What the contexts of all of these have in common."""
    first = taken[0].context
    return {key: value for key, value in first.items() if all(one.context.get(key) == value for one in taken)}


def _table(section: str, taken: list[_Taken]) -> SummaryTable:
    """Measurements with the same context keys: a row a context, a column a quantity."""
    keys = (CONFIGURATION, *(key for key in taken[0].context if not _is_configurations_own(key, taken)))
    ons = [(one.label, *(one.context[key] for key in keys[1:])) for one in taken]
    seen = [list(dict.fromkeys(on[place] for on in ons)) for place in range(len(keys))]
    fixed = [place for place in range(len(keys)) if len(seen[place]) == 1]
    free = [place for place in range(len(keys)) if len(seen[place]) > 1]
    names = list(dict.fromkeys(one.one.name for one in taken))
    spread = None
    if len(names) == 1 and len(free) > 1 and len(seen[free[-1]]) <= _MOST_SPREAD and keys[free[-1]] != CONFIGURATION:
        spread = free.pop()
    if not free:  # a row needs a name: the configuration's
        fixed.remove(0)
        free = [0]
    cells: dict[tuple[str, ...], dict[tuple[str, str], list[_Taken]]] = {}
    for one, on in zip(taken, ons, strict=True):
        column = (one.one.name, "" if spread is None else on[spread])
        cells.setdefault(tuple(on[place] for place in free), {}).setdefault(column, []).append(one)
    columns = [(name, value) for name in names for value in (seen[spread] if spread is not None else [""])]
    lines = [
        TableRow(keys=on, cells=tuple(_cell(row[column]) if column in row else None for column in columns))
        for on, row in cells.items()
    ]
    return SummaryTable(
        section=section,
        same=", ".join(_pair(keys[place], seen[place][0]) for place in fixed),
        keys=tuple(_words(keys[place]) for place in free),
        columns=tuple(_column(name, "" if spread is None else keys[spread], value) for name, value in columns),
        lines=tuple(lines[:MOST_ROWS]),
        left_out=max(0, len(lines) - MOST_ROWS),
    )


def _column(name: str, key: str, value: str) -> Column:
    words, unit, _ = measurements.words_unit_scale(name)
    return Column(title=f"{words}, {_pair(key, value)}" if key else words, unit=unit)


def _cell(taken: Sequence[_Taken], more: tuple[str, ...] = ()) -> Cell:
    known = [one for one in taken if one.one.value is not None]
    notes = tuple(dict.fromkeys(one.one.note for one in taken if one.one.note))
    if not known:
        return Cell(value="none", under=(*notes, *more))
    scale = measurements.words_unit_scale(known[0].one.name)[2]
    values = [one.one.value / scale for one in known if one.one.value is not None]
    middle = statistics.median(values)
    is_count = all(value.is_integer() for value in values) and known[0].one.interval is None
    places = 0 if is_count else formatting.decimals(middle)
    if len(known) == 1:
        interval = known[0].one.interval
        low, high = (None, None) if interval is None else (interval.low / scale, interval.high / scale)
        spread = _range(low, high, places, "")
    else:
        workers = len({one.worker for one in known})
        over = formatting.count(workers, "worker") if workers == len(known) else formatting.count(len(known), "value")
        spread = _range(min(values), max(values), places, f" over {over}")
    shares = [one.one.share_percent for one in known if one.one.share_percent is not None]
    share = f"{formatting.number(statistics.median(shares), 0)} % of the chip's peak" if shares else ""
    return Cell(value=formatting.number(middle, places), under=tuple(filter(None, (spread, share, *notes, *more))))


def _range(low: float | None, high: float | None, places: int, over: str) -> str:
    if low is None or high is None or (low == high and not over):
        return ""
    return f"{formatting.number(low, places)} to {formatting.number(high, places)}{over}"


def _value_words(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and key.endswith("bytes"):
        return formatting.size(float(value))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return formatting.number(value)
    return str(measurements.plain(value))


def _words(key: str) -> str:
    return key.removesuffix("_bytes").replace("_", " ") or key


def _pair(key: str, value: str) -> str:
    return f"{_words(key)} {value}"
