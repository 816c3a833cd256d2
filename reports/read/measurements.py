"""Measurements as a tidy frame: what trials of every kind measured, beside or instead of training steps.

Frame `measurements`, one row per measurement of an accepted result:

| column | meaning |
|---|---|
| trial_id, configuration, kind | which trial, the configuration's label, what it measures |
| worker, status | where it ran, and its end |
| section | the table it belongs to: the trial's kind, or "telemetry" for what was sampled beside the work |
| name | what was measured; it ends in its unit |
| value | as measured, in the name's unit; missing where it could not be had, and note says why |
| low, high, n | its 95 % interval and over how many repeats; missing where it was measured once |
| share_percent | of the chip's published figure; missing where none is known |
| context | what it was measured on, as JSON with sorted keys |
| note | a remark of whoever measured |
| context.KEY | each key of the contexts on its own, the most used first, MOST_CONTEXT_COLUMNS at most |
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from bench.records.result import Measurement, TrialResult

TELEMETRY = "telemetry"
# Of a scaled-down model, or of processes that share too few cores, the share of a peak says nothing; people quote it.
MISLEADING_ON_CPUS = frozenset({"mfu_percent"})
MOST_CONTEXT_COLUMNS = 24
COLUMNS = {
    **dict.fromkeys(("trial_id", "configuration", "kind", "section", "worker", "status", "name"), "str"),
    **dict.fromkeys(("value", "low", "high"), "float64"),
    "n": "Int64",
    "share_percent": "float64",
    **dict.fromkeys(("context", "note"), "str"),
}

# A name's ending, the unit in words, and what to divide by to get there. The first that fits counts.
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
    ("_watts", "W", 1.0),
    ("_mhz", "MHz", 1.0),
    ("_celsius", "\N{DEGREE SIGN}C", 1.0),
)
RATES = ("_per_sec", "_tflops")
NEVER_NEGATIVE = (*RATES, "_sec", "_watts", "_mhz")  # differences of memory and of shares may be


def is_rate(name: str) -> bool:
    """True where more is better and below zero is impossible: an amount of something in a second."""
    return name.endswith(RATES)


def words_unit_scale(name: str) -> tuple[str, str, float]:
    """`decode_tokens_per_sec` as what it is ("decode"), its unit ("tokens/s") and what to divide its value by."""
    for ending, unit, scale in UNITS:
        if name.endswith(ending) and name != ending:
            return name.removesuffix(ending).replace("_", " ").strip() or name, unit, scale
    return name.replace("_", " "), "", 1.0


def without_misleading(result: TrialResult, why: str) -> TrialResult:
    """The result with the value of MISLEADING_ON_CPUS taken out and `why` in its place; result.json keeps it."""
    if not any(
        measurement.name in MISLEADING_ON_CPUS and measurement.value is not None for measurement in result.measurements
    ):
        return result
    kept = [
        replace(measurement, value=None, interval=None, share_percent=None, note=why)
        if measurement.name in MISLEADING_ON_CPUS
        else measurement
        for measurement in result.measurements
    ]
    return replace(result, measurements=kept)


def section_of(kind: str, one: Measurement) -> str:
    """The table a measurement belongs to: its trial's kind, but telemetry's samples of any kind stand together."""
    return TELEMETRY if "window" in one.context else kind  # the sampler says over which window it looked


def frame(results: Mapping[str, TrialResult], label_of: Mapping[str, str]) -> pd.DataFrame:
    """All measurements of `results`, in the plan's order and then as measured."""
    rows: list[dict[str, Any]] = []
    uses: Counter[str] = Counter()
    for trial_id, label in label_of.items():
        if (result := results.get(trial_id)) is None:
            continue
        for measurement in result.measurements:
            uses.update(list(measurement.context))
            rows.append(_row(trial_id, label, result, measurement))
    keys = [f"context.{key}" for key, _ in uses.most_common(MOST_CONTEXT_COLUMNS)]
    table = pd.DataFrame(rows, columns=[*COLUMNS, *keys])
    return table.astype(COLUMNS | dict.fromkeys(keys, "object"))


def as_json(context: Mapping[str, Any]) -> str:
    """A context as one line of JSON with sorted keys: equal contexts, equal text."""
    return json.dumps(context, sort_keys=True, ensure_ascii=False)


def plain(value: object) -> object:
    """A context's value for one cell: scalars as they are, anything deeper as JSON."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False) if isinstance(value, (dict, list)) else value


def _row(trial_id: str, label: str, result: TrialResult, one: Measurement) -> dict[str, Any]:
    spread = one.interval
    return {
        "trial_id": trial_id,
        "configuration": label,
        "kind": result.trial.kind,
        "section": section_of(result.trial.kind, one),
        "worker": result.worker,
        "status": result.status.value,
        "name": one.name,
        "value": one.value,
        "low": None if spread is None else spread.low,
        "high": None if spread is None else spread.high,
        "n": None if spread is None else spread.n,
        "share_percent": one.share_percent,
        "context": as_json(one.context),
        "note": one.note,
    } | {f"context.{key}": plain(value) for key, value in one.context.items()}
