"""Checks of records for impossible values.

A valid checksum shows that the file was not changed, not that its values are possible. A single impossible number would
spoil a mean, an axis or a table, or make the report fail.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.records.bootstrap import Interval
from bench.records.result import Measurement, Metrics, Steps, TrialResult
from bench.records.status import TrialStatus
from bench.records.training import TrainedSteps, TrainingRecord
from reports import formatting
from reports.read import measurements

MAX_MEASUREMENTS, MAX_FLAGS = 5_000, 200
MIN_STEP_SEC, MAX_SEC = 1e-6, 3.2e7  # a kernel launch takes longer than the first; a trial runs at most a week
MIN_VALUE, MAX_VALUE = 1e-18, 1e18  # limits of other nonzero values, in their own units
# Keys of a fingerprint or a measurement's context that the report reads as whole numbers.
_WHOLE_NUMBERS = (
    *("cpu_allowed_cores", "cpu_logical_cores", "torch_threads", "gpu_memory_bytes", "memory_total_bytes"),
    *("model_parameters", "world_size", "batch", "size"),
)
_AT_LEAST_ONE = ("world_size", "batch", "size")
_NUMBERS = ("gpu_power_limit_watts", "gpu_max_sm_clock_mhz")
# Context keys that distinguish the measurements in a figure, so they are required.
_REQUIRED_CONTEXT = {
    "matmul_tflops": ("dtype", "size"),
    "global_samples_per_sec": ("world_size",),
}


def result_fault(result: TrialResult) -> str | None:
    """Return why this result is impossible, or None."""
    for phase, steps in (("warmup", result.warmup), ("steps", result.steps)):
        if (fault := steps_fault(steps)) is not None:
            return f"{phase}: {fault}"
    return (
        measurements_fault(result.measurements)
        or _metrics_fault(result.metrics)
        or _times_fault(result)
        or _facts_fault("fingerprint", result.fingerprint)
        or (f"holds {len(result.flags):,} flags" if len(result.flags) > MAX_FLAGS else None)
    )


def steps_fault(steps: Steps) -> str | None:
    """Return why this record of steps is impossible, or None."""
    if (fault := _form_fault(steps)) is not None:
        return fault
    amounts = list(zip(steps.samples, steps.tokens, steps.useful_tokens, strict=True))
    if (number := _first_failing(_are_possible, amounts)) >= 0:
        samples, tokens, useful = amounts[number]
        return f"step {number + 1} counts {samples:g} samples, {tokens} tokens, {useful} useful tokens"
    if (number := _first_failing(_is_sensible, steps.loss)) >= 0:
        return f"step {number + 1} has the loss {steps.loss[number]!r}"
    if steps.useful_tokens and not any(steps.useful_tokens):
        return "no step has a useful token: all tokens are padding"
    return None


def training_fault(record: TrainingRecord) -> str | None:
    """Return why this record of a training is impossible, or None."""
    steps = record.steps
    if (fault := _form_fault(steps)) is not None:
        return f"steps: {fault}"
    if any(after <= before for before, after in pairwise([0, *steps.step])):
        return "steps: not in ascending order"
    if (number := _first_failing(lambda pair: pair[0] <= pair[1], zip(steps.targets, steps.tokens, strict=True))) >= 0:
        return f"step {number + 1} counts {steps.tokens[number]} tokens, {steps.targets[number]} of them targets"
    if record.status not in list(TrialStatus):
        return f"status is {formatting.shorten(record.status, 60)!r}"
    if record.world_size < 1:
        return f"world_size is {record.world_size}"
    if (record.adapter_step is None) != (record.adapter_sha256 is None):
        return "adapter: has only one of step and sha256"
    return numbers_fault(record)


def numbers_fault(record: object) -> str | None:
    """Return the first impossible number of a record, or None."""
    return next((f"{name} is {value!r}" for name, value in _numbers("", record) if not _is_possible(name, value)), None)


def forecast_fault(forecast: Mapping[str, Any]) -> str | None:
    """Return why this forecast of a training is impossible, or None."""
    names = ("steps", "seconds", "total_sec", "usd", "usd_per_gpu_hour", "peak_bytes", "communication_percent")
    parts = forecast.get("parts_sec", {})
    known = [
        *((name, forecast.get(name)) for name in names),
        *(parts.items() if isinstance(parts, dict) else [("parts_sec", parts)]),
    ]
    return next(
        (f"{name} is {formatting.shorten(repr(value), 60)}" for name, value in known if not _is_amount(value)), None
    )


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record by field name; of a list of numbers only the smallest and the largest."""
    if type(value) in (int, float):
        yield name, value  # type: ignore[misc] # not a bool
    elif isinstance(value, list) and value and {type(item) for item in value} <= {int, float}:
        yield from ((name, min(value)), (name, max(value)))
    elif isinstance(value, (list, dict)) and name != "fingerprint":  # it is only displayed
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(name, item)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _numbers(field.name, getattr(value, field.name))


def _is_possible(name: str, value: float) -> bool:
    may_be_negative = name.startswith(("loss", "low", "high", "change", "communication"))
    return -MAX_VALUE <= value <= MAX_VALUE if may_be_negative else _is_amount(value)


def _is_amount(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= MAX_VALUE)  # type: ignore[operator] # a number


_STEP_LIMITS = "expected between a microsecond and a year"


def _form_fault(steps: Steps | TrainedSteps) -> str | None:
    lengths = {name: len(values) for name, values in vars(steps).items()}
    if len(set(lengths.values())) != 1:
        return "its lists differ in length: " + ", ".join(f"{name} {count}" for name, count in lengths.items())
    if (number := _first_failing(lambda sec: MIN_STEP_SEC <= sec <= MAX_SEC, steps.step_time_sec)) >= 0:
        return f"step {number + 1} took {steps.step_time_sec[number]!r} s; {_STEP_LIMITS}"
    return None


def measurements_fault(records: Sequence[Measurement]) -> str | None:
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
    if not all(map(_is_sensible, known)):
        return f"{title} is {next(value for value in known if not _is_sensible(value))!r}"
    if measurement.name.endswith(measurements.NEVER_NEGATIVE) and min(known, default=0.0) < 0:
        unit = measurements.title_unit_scale(measurement.name)[1]
        subject = "a rate" if measurements.is_rate(measurement.name) else f"a value in {unit}"
        return f"{title} is {min(known):g}; {subject} cannot be below 0"
    if spread is not None and (spread.low > spread.high or spread.n < 1):
        return f"{title} has the interval {spread.low:g} to {spread.high:g} over {spread.n} values"
    missing = [key for key in _REQUIRED_CONTEXT.get(measurement.name, ()) if measurement.context.get(key) is None]
    return f"{title} does not state its {missing[0]}" if missing else _facts_fault(title, measurement.context)


def _metrics_fault(metrics: Metrics | None) -> str | None:
    for name, value in vars(metrics).items() if metrics is not None else ():
        numbers = (value.median, value.low, value.high) if isinstance(value, Interval) else (value,)
        minimum = 1 if name.startswith("peak_") else 0  # a process that trained has used memory
        for number in numbers:
            if number is not None and not (_is_sensible(number) and (number >= minimum or name.endswith("_loss"))):
                return f"metrics: {name} is {numbers[0]!r}"
    return None


def _times_fault(result: TrialResult) -> str | None:
    times = {"wall_time_sec": result.wall_time_sec, **{f"phase {name}": sec for name, sec in result.phases.items()}}
    for name, seconds in times.items():
        if seconds is not None and not 0 <= seconds <= MAX_SEC:
            return f"{formatting.shorten(name, 60)} is {seconds!r} s"
    return None if 1 <= result.attempt <= 1_000_000 else f"attempt is {result.attempt}"


def _facts_fault(where: str, facts: Mapping[str, Any]) -> str | None:
    """Return a required numeric fact that is not a number, or None; other facts are only displayed."""
    for name in (*_WHOLE_NUMBERS, *_NUMBERS):
        value = facts.get(name)
        is_number = type(value) in (int, float) and value >= 0 and _is_sensible(value)  # type: ignore[operator]
        is_whole = type(value) is int and value >= (1 if name in _AT_LEAST_ONE else 0)
        if value is not None and not (is_whole if name in _WHOLE_NUMBERS else is_number):
            kind = "a whole number" if name in _WHOLE_NUMBERS else "a number"
            return f"{where} {name}: expected {kind}, found {formatting.shorten(repr(value), 60)}"
    return None


def _is_sensible(value: float | None) -> bool:
    return value is None or value == 0 or MIN_VALUE <= abs(value) <= MAX_VALUE


def _are_possible(amounts: tuple[float, int, int]) -> bool:
    samples, tokens, useful = amounts
    return MIN_VALUE <= samples <= MAX_VALUE and tokens >= 1 and 0 <= useful <= tokens


def _first_failing(predicate: Callable[[Any], bool], values: Iterable[Any]) -> int:
    """Return the index of the first value that does not satisfy the predicate, or -1."""
    return next((index for index, value in enumerate(values) if not predicate(value)), -1)
