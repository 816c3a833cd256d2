"""Measurements of trials of every kind as a tidy data frame; training steps are in another one.

Frame `measurements`, one row per measurement of an accepted result:

| column | meaning |
|---|---|
| trial_id, configuration, kind | the trial, its configuration's label, its kind of workload |
| worker, status | the worker it ran on, and how it ended |
| section | the table it belongs to: the trial's kind, or "telemetry" for values sampled during the work |
| name | the measured quantity; it ends in its unit |
| value | the measured value in the name's unit; if missing, `note` says why |
| low, high, n | its 95 % interval and the number of repeats; missing if measured once |
| share_percent | percentage of the chip's published value; missing if that is unknown |
| context | the conditions of the measurement, as JSON with sorted keys |
| note | a remark by the workload |
| context.KEY | a column per context key, the most used first, at most MAX_CONTEXT_COLUMNS |
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import pandas as pd

from bench.records.result import Measurement, TrialResult
from bench.records.status import TrialStatus
from reports import formatting
from reports.read.loaded_run import Run

TELEMETRY = "telemetry"
# Percentages of a peak mean nothing for a scaled-down model or processes that share too few cores, yet they get quoted.
MISLEADING_ON_CPUS = frozenset({"mfu_percent"})
MAX_CONTEXT_COLUMNS = 24
COLUMNS = {
    **dict.fromkeys(("trial_id", "configuration", "kind", "section", "worker", "status", "name"), "str"),
    **dict.fromkeys(("value", "low", "high"), "float64"),
    "n": "Int64",
    "share_percent": "float64",
    **dict.fromkeys(("context", "note"), "str"),
}

# Suffix of a name, displayed unit, and divisor that converts a value to it. The first match applies.
UNITS: tuple[tuple[str, str, float], ...] = (
    ("_gb_per_sec", "GB/s", 1.0),
    ("_bytes_per_sec", "GB/s", 1e9),
    ("_tokens_per_sec", "tokens/s", 1.0),
    ("_samples_per_sec", "samples/s", 1.0),
    ("_per_sec", "per s", 1.0),
    ("_tflops", "TFLOP/s", 1.0),
    ("_sec", "s", 1.0),
    ("_sequences", "sequences", 1.0),
    ("_bytes", "GB", 1e9),
    ("_percent", "%", 1.0),
    ("_nats", "nats", 1.0),
    ("_watts", "W", 1.0),
    ("_mhz", "MHz", 1.0),
    ("_celsius", "\N{DEGREE SIGN}C", 1.0),
)
RATES = ("_per_sec", "_tflops")
NEVER_NEGATIVE = (*RATES, "_sec", "_watts", "_mhz")  # not bytes or percentages: their differences may be negative


def is_rate(name: str) -> bool:
    """Return whether a name is an amount per second: more is better, and it cannot be negative."""
    return name.endswith(RATES)


def title_unit_scale(name: str) -> tuple[str, str, float]:
    """Split `decode_tokens_per_sec` into a title ("decode"), its unit ("tokens/s") and the divisor of its values."""
    for ending, unit, scale in UNITS:
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending).replace("_", " ").strip() or name, unit, scale
    return name.replace("_", " "), "", 1.0


def without_misleading(result: TrialResult, reason: str) -> TrialResult:
    """Return the result with the values of MISLEADING_ON_CPUS replaced by a note with `reason`."""
    if not any(
        measurement.name in MISLEADING_ON_CPUS and measurement.value is not None for measurement in result.measurements
    ):
        return result
    kept = [
        replace(measurement, value=None, interval=None, share_percent=None, note=reason)
        if measurement.name in MISLEADING_ON_CPUS
        else measurement
        for measurement in result.measurements
    ]
    return replace(result, measurements=kept)


def section_of(kind: str, measurement: Measurement) -> str:
    """Return the table of a measurement: TELEMETRY for sampled values, else its trial's kind."""
    return TELEMETRY if "window" in measurement.context else kind  # only the sampler states a window


def frame(run: Run) -> pd.DataFrame:
    """Return all measurements of a run, in the plan's order and then as measured."""
    measured = [(result, measurement) for result in run.results for measurement in result.measurements]
    uses = Counter(key for _, measurement in measured for key in measurement.context)
    keys = [f"context.{key}" for key, _ in uses.most_common(MAX_CONTEXT_COLUMNS)]
    rows = [_row(run.label_of[result.trial_id], result, measurement) for result, measurement in measured]
    table = pd.DataFrame(rows, columns=[*COLUMNS, *keys])
    return table.astype(COLUMNS | dict.fromkeys(keys, "object"))


def context_json(context: Mapping[str, Any]) -> str:
    """Render a context as one line of JSON with sorted keys, so that equal contexts have equal text."""
    return json.dumps(context, sort_keys=True, ensure_ascii=False)


def cell_value(value: object) -> object:
    """Return a context's value for a table cell: scalars unchanged, lists and objects as JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _row(label: str, result: TrialResult, measurement: Measurement) -> dict[str, Any]:
    spread = measurement.interval
    return {
        "trial_id": result.trial_id,
        "configuration": label,
        "kind": result.trial.kind,
        "section": section_of(result.trial.kind, measurement),
        "worker": result.worker,
        "status": result.status.value,
        "name": measurement.name,
        "value": measurement.value,
        "low": None if spread is None else spread.low,
        "high": None if spread is None else spread.high,
        "n": None if spread is None else spread.n,
        "share_percent": measurement.share_percent,
        "context": context_json(measurement.context),
        "note": measurement.note,
    } | {f"context.{key}": cell_value(value) for key, value in measurement.context.items()}


@dataclass(frozen=True, kw_only=True)
class MeasuredValue:
    """A measured quantity in its displayed unit; for several workers the median, with `low` and `high` as the range.

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


def select(run: Run, name: str, *keys: str, kind: str | None = None) -> list[MeasuredValue]:
    """Select measurement `name` of successful trials, in the run's order: one value per configuration and `keys`."""
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for result in run.results:
        if result.status is not TrialStatus.SUCCEEDED or kind not in (None, result.trial.kind):
            continue
        for measurement in (each for each in result.measurements if each.name == name):
            conditions = (json.dumps(measurement.context.get(key)) for key in keys)
            groups.setdefault((run.label_of[result.trial_id], *conditions), []).append(measurement)
    return [combine(label, values) for (label, *_), values in groups.items()]


def combine(label: str, candidates: Sequence[Measurement]) -> MeasuredValue:
    """Combine the measurements of one quantity by several workers; at least one."""
    first = next((each for each in candidates if each.value is not None), candidates[0])
    scale, spread = title_unit_scale(first.name)[2], first.interval
    values = sorted(each.value / scale for each in candidates if each.value is not None)
    shares = [each.share_percent for each in candidates if each.share_percent is not None]
    low, high, n = (None, None, None) if spread is None else (spread.low / scale, spread.high / scale, spread.n)
    if len(values) > 1:
        low, high, n = values[0], values[-1], len(values)
    return MeasuredValue(
        configuration=label,
        context=first.context,
        value=median(values) if values else None,
        low=low,
        high=high,
        n=n,
        share_percent=median(shares) if shares else None,
        note=first.note,
    )


def describe_spread(values: Iterable[MeasuredValue]) -> str:
    """Describe n and the ranges of these values, for a figure's heading."""
    counts = [value.n for value in values if value.n is not None]
    if not counts:
        return "each measured once"
    return f"n = {formatting.number_range(counts)}; medians with 95 % intervals; over several workers, their range"
