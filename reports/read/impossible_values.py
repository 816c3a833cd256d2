"""Checks of records for impossible values.

A valid checksum shows that the file was not changed, not that its values are possible. A single impossible number would
spoil a mean, an axis or a table, or make the report fail.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.records.result import Measurement, Steps, TrialResult
from bench.records.status import TrialStatus
from bench.records.training import TrainedSteps, TrainingRecord
from reports import formatting
from reports.read import measurements

MAX_MEASUREMENTS, MAX_FLAGS = 5_000, 200
MIN_VALUE, MAX_VALUE = 1e-18, 1e18  # limits of samples and of nonzero measurements, in their own units
_MAX_SEC = 3.2e7  # a trial runs at most a week
# The least and the greatest value of a field. Others are amounts, from 0 to MAX_VALUE, or signed.
_LIMITS = {
    "step_time_sec": (1e-6, _MAX_SEC),  # a kernel launch takes longer
    "wall_time_sec": (0.0, _MAX_SEC),
    "phases": (0.0, _MAX_SEC),
    "attempt": (1, 1_000_000),
    **dict.fromkeys(("world_size", "peak_vram_bytes", "peak_rss_bytes"), (1, MAX_VALUE)),
    **{f"{name}{end}": (0.0, 1.0) for name in ("before", "after") for end in ("", "_low", "_high")},  # scores
}
_SIGNED = ("loss", "first_loss", "last_loss", "low", "high", "change", "communication")  # beginnings of names
# Keys of a fingerprint or a measurement's context that the report reads as whole numbers, and their least value.
_WHOLE_NUMBERS = {
    **dict.fromkeys(("cpu_allowed_cores", "torch_threads", "gpu_memory_bytes", "model_parameters"), 0),
    **dict.fromkeys(("world_size", "batch", "size"), 1),
}
# Context keys that distinguish the measurements in a figure, so they are required.
_REQUIRED_CONTEXT = {
    "matmul_tflops": ("dtype", "size"),
    "global_samples_per_sec": ("world_size",),
}


def result_fault(result: TrialResult) -> str | None:
    """Return why this result is impossible, or None."""
    for phase, steps in (("warmup", result.warmup), ("steps", result.steps)):
        if (fault := _steps_fault(steps)) is not None:
            return f"{phase}: {fault}"
    for part in ("metrics", "phases", "wall_time_sec", "attempt"):
        if (fault := numbers_fault(getattr(result, part), part)) is not None:
            return f"{part}: {fault}"
    return (
        _measurements_fault(result.measurements)
        or _facts_fault("fingerprint", result.fingerprint)
        or (f"holds {len(result.flags):,} flags" if len(result.flags) > MAX_FLAGS else None)
    )


def training_fault(record: TrainingRecord) -> str | None:
    """Return why this record of a training is impossible, or None."""
    steps = record.steps
    if (fault := _lengths_fault(steps) or _parts_fault(steps.tokens, steps.targets, "targets")) is not None:
        return f"steps: {fault}"
    if any(after <= before for before, after in pairwise([0, *steps.step])):
        return "steps: not in ascending order"
    if record.status not in list(TrialStatus):
        return f"status is {formatting.shorten(record.status, 60)!r}"
    if (record.adapter_step is None) != (record.adapter_sha256 is None):
        return "adapter: has only one of step and sha256"
    if (score := record.score) is not None and not len(score.places) == len(score.before) == len(score.after):
        return "score: places and scores do not match"
    return numbers_fault(record)


def numbers_fault(record: object, name: str = "") -> str | None:
    """Return the first impossible number of a record, or None. `name` is that of a plain value."""
    return next(
        (f"{field} is {value!r}" for field, value in _numbers(name, record) if not _is_possible(field, value)), None
    )


def forecast_fault(forecast: Mapping[str, Any]) -> str | None:
    """Return why this forecast of a training is impossible, or None."""
    names = ("steps", "seconds", "total_sec", "usd", "usd_per_gpu_hour", "peak_bytes")
    parts = forecast.get("parts_sec", {})
    known = {name: forecast.get(name) for name in names} | (parts if isinstance(parts, dict) else {"parts_sec": parts})
    wrong = ((name, value) for name, value in known.items() if not _is_amount(value))
    return next((f"{name} is {formatting.shorten(repr(value), 60)}" for name, value in wrong), None)


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record by field name; of a list of numbers only the smallest and the largest."""
    if type(value) in (int, float):
        yield name, value  # type: ignore[misc] # not a bool
    elif isinstance(value, list) and {type(item) for item in value} <= {int, float, type(None)}:
        known = [item for item in value if item is not None]
        yield from ((name, end) for end in ((min(known), max(known)) if known else ()))
    elif isinstance(value, (list, dict)) and name != "fingerprint":  # it is only displayed
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(name, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _numbers(field.name, getattr(value, field.name))


def _is_possible(name: str, value: float) -> bool:
    least, most = _LIMITS.get(name, (-MAX_VALUE if name.startswith(_SIGNED) else 0.0, MAX_VALUE))
    return least <= value <= most


def _is_amount(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= MAX_VALUE)  # type: ignore[operator] # a number


def _is_sensible(value: float) -> bool:
    return value == 0 or MIN_VALUE <= abs(value) <= MAX_VALUE


def _steps_fault(steps: Steps) -> str | None:
    if (fault := _lengths_fault(steps) or _parts_fault(steps.tokens, steps.useful_tokens, "useful")) is not None:
        return fault
    if steps.samples and (least := min(steps.samples)) < MIN_VALUE:
        return f"samples is {least!r}"
    if steps.useful_tokens and not any(steps.useful_tokens):
        return "no step has a useful token: all tokens are padding"
    return numbers_fault(steps)


def _lengths_fault(steps: Steps | TrainedSteps) -> str | None:
    lengths = {name: len(values) for name, values in vars(steps).items()}
    if len(set(lengths.values())) == 1:
        return None
    return "its lists differ in length: " + ", ".join(f"{name} {count}" for name, count in lengths.items())


def _parts_fault(tokens: Sequence[int], parts: Sequence[int], kind: str) -> str | None:
    """Return the first step of which a part is larger than the whole."""
    wrong = ((number, *each) for number, each in enumerate(zip(tokens, parts, strict=True), 1) if each[1] > each[0])
    return next((f"step {number} counts {whole} tokens, {part} of them {kind}" for number, whole, part in wrong), None)


def _measurements_fault(records: Sequence[Measurement]) -> str | None:
    """Return why these measurements are impossible, or None. They cannot be NaN: JSON has no NaN."""
    if len(records) > MAX_MEASUREMENTS:
        return f"holds {len(records):,} measurements; a trial takes at most {MAX_MEASUREMENTS:,}"
    faults = (_measurement_fault(number, measurement) for number, measurement in enumerate(records, start=1))
    return next(filter(None, faults), None)


def _measurement_fault(number: int, measurement: Measurement) -> str | None:
    title = f"measurement {number}, {formatting.shorten(measurement.name, 60)!r},"
    if not measurement.name.strip():
        return f"measurement {number} has no name"
    spread = measurement.interval
    interval = [] if spread is None else [spread.median, spread.low, spread.high]
    known = [value for value in (measurement.value, *interval, measurement.share_percent) if value is not None]
    may_be_negative = not measurement.name.endswith(measurements.NEVER_NEGATIVE)
    wrong = [value for value in known if not _is_sensible(value) or (value < 0 and not may_be_negative)]
    if wrong:
        return f"{title} is {wrong[0]!r}"
    if spread is not None and (spread.low > spread.high or spread.n < 1):
        return f"{title} has the interval {spread.low:g} to {spread.high:g} over {spread.n} values"
    missing = [key for key in _REQUIRED_CONTEXT.get(measurement.name, ()) if measurement.context.get(key) is None]
    return f"{title} does not state its {missing[0]}" if missing else _facts_fault(title, measurement.context)


def _facts_fault(where: str, facts: Mapping[str, Any]) -> str | None:
    """Return a required numeric fact that is not a number, or None; other facts are only displayed."""
    for name, least in _WHOLE_NUMBERS.items():
        value = facts.get(name)
        if value is not None and not (type(value) is int and least <= value <= MAX_VALUE):
            return f"{where} {name}: expected a whole number, found {formatting.shorten(repr(value), 60)}"
    return None
