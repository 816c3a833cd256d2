"""What makes a record impossible although its seal is whole: the seal shows that nobody changed the file, not that what
it says can be true. One such number would make a mean, an axis or a table useless, or stop the report.
"""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.records.bootstrap import Interval
from bench.records.result import Measurement, Metrics, Steps, TrialResult, TrialStatus
from bench.records.training import TrainedSteps, TrainingRecord
from reports import formatting
from reports.read import measurements

MOST_MEASUREMENTS, MOST_FLAGS = 5_000, 200
SHORTEST_STEP_SEC, LONGEST_SEC = 1e-6, 3.2e7  # starting one kernel takes longer; a trial's deadline is a week at most
LEAST, MOST = 1e-18, 1e18  # of anything else, in its own unit, where it is not 0
# Keys that the report reads as whole numbers: of a fingerprint, and of a measurement's context.
_WHOLE = (
    *("cpu_allowed_cores", "cpu_logical_cores", "torch_threads", "gpu_memory_bytes", "memory_total_bytes"),
    *("model_parameters", "world_size", "batch", "size"),
)
_FROM_ONE = ("world_size", "batch", "size")
_NUMBERS = ("gpu_power_limit_watts", "gpu_max_sm_clock_mhz", "efficiency_without_overlap_percent")
# What a measurement is told apart by in its figure, so it must be there.
_NEEDED = {
    "matmul_tflops": ("dtype", "size"),
    "global_samples_per_sec": ("world_size",),
    "efficiency_percent": ("world_size",),
    "communication_share_no_sync_percent": ("world_size",),
    "communication_bound_sec": ("world_size",),
}


def fault(result: TrialResult) -> str | None:
    """Why this record cannot be true, or None."""
    for phase, steps in (("warmup", result.warmup), ("steps", result.steps)):
        if (found := steps_fault(steps)) is not None:
            return f"{phase}: {found}"
    return (
        measurements_fault(result.measurements)
        or _metrics_fault(result.metrics)
        or _times_fault(result)
        or _facts_fault("fingerprint", result.fingerprint)
        or (f"holds {len(result.flags):,} flags" if len(result.flags) > MOST_FLAGS else None)
    )


def steps_fault(steps: Steps) -> str | None:
    """What makes a record of steps impossible, or None."""
    if (found := _form_fault(steps)) is not None:
        return found
    if (number := _first_impossible(steps)) >= 0:
        samples, tokens, useful = (each[number] for each in (steps.samples, steps.tokens, steps.useful_tokens))
        return f"step {number + 1} counts {samples:g} samples, {tokens} tokens, {useful} useful tokens"
    if (number := _first_not(_is_sensible, steps.loss)) >= 0:
        return f"step {number + 1} has the loss {steps.loss[number]!r}"
    if steps.useful_tokens and not any(steps.useful_tokens):
        return "no step has a useful token; all of them were padding"
    return None


def training_fault(record: TrainingRecord) -> str | None:
    """Why this record of a training cannot be true, or None."""
    steps = record.steps
    if (found := _form_fault(steps)) is not None:
        return f"steps: {found}"
    if any(after <= before for before, after in pairwise([0, *steps.step])):
        return "steps: they are not in order"
    if (number := _first_not(lambda one: one[0] <= one[1], zip(steps.targets, steps.tokens, strict=True))) >= 0:
        return f"step {number + 1} counts {steps.tokens[number]} tokens, {steps.targets[number]} of them targets"
    if record.status not in list(TrialStatus):
        return f"status is {formatting.shorten(record.status, 60)!r}"
    if record.world_size < 1:
        return f"world_size is {record.world_size}"
    if (record.adapter_step is None) != (record.adapter_sha256 is None):
        return "of its adapter it says only one of step and sha256"
    return numbers_fault(record)


def numbers_fault(record: object) -> str | None:
    """The first number of a record that cannot be, or None."""
    return next((f"{name} is {value!r}" for name, value in _numbers("", record) if not _is_possible(name, value)), None)


def foreseen_fault(foreseen: Mapping[str, Any]) -> str | None:
    """What makes the forecast of a training impossible, or None."""
    numbers = ("steps", "seconds", "usd", "usd_per_gpu_hour", "peak_bytes", "communication_percent")
    known = ((name, foreseen.get(name)) for name in numbers)
    return next(
        (f"{name} is {formatting.shorten(repr(value), 60)}" for name, value in known if not _is_amount(value)), None
    )


def _numbers(name: str, value: object) -> Iterator[tuple[str, float]]:
    """The numbers of a record by the names of their fields, of a list of them the least and the largest."""
    if type(value) in (int, float):
        yield name, value  # type: ignore[misc] # no bool
    elif isinstance(value, list) and value and type(value[0]) in (int, float):
        yield from ((name, min(value)), (name, max(value)))
    elif isinstance(value, (list, dict)) and name != "fingerprint":  # of which nothing is reckoned
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers(name, one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _numbers(field.name, getattr(value, field.name))


def _is_possible(name: str, value: float) -> bool:
    may_be_negative = name.startswith(("loss", "low", "high", "change", "communication"))
    return -MOST <= value <= MOST if may_be_negative else _is_amount(value)


def _is_amount(value: object) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= MOST)  # type: ignore[operator] # a number


_A_STEP = "a step takes more than 0 s: from a microsecond to a year"


def _form_fault(steps: Steps | TrainedSteps) -> str | None:
    lengths = {name: len(values) for name, values in vars(steps).items()}
    if len(set(lengths.values())) != 1:
        return "its lists differ in length: " + ", ".join(f"{name} {count}" for name, count in lengths.items())
    if (number := _first_outside(SHORTEST_STEP_SEC, LONGEST_SEC, steps.step_time_sec)) >= 0:
        return f"step {number + 1} took {steps.step_time_sec[number]!r} s; {_A_STEP}"
    return None


def measurements_fault(taken: Sequence[Measurement]) -> str | None:
    """What makes a record of measurements impossible, or None. NaN cannot come this far: JSON has no word for it."""
    if len(taken) > MOST_MEASUREMENTS:
        return f"holds {len(taken):,} measurements; a trial takes at most {MOST_MEASUREMENTS:,}"
    return next(filter(None, (_measurement_fault(number, one) for number, one in enumerate(taken, start=1))), None)


def _measurement_fault(number: int, one: Measurement) -> str | None:
    called = f"measurement {number}, {formatting.shorten(one.name, 60)!r},"
    if not one.name.strip():
        return f"measurement {number} has no name"
    spread = one.interval
    values = [one.value, *([] if spread is None else [spread.median, spread.low, spread.high]), one.share_percent]
    known = [value for value in values if value is not None]
    if not all(map(_is_sensible, known)):
        return f"{called} is {next(value for value in known if not _is_sensible(value))!r}"
    if one.name.endswith(measurements.NEVER_NEGATIVE) and min(known, default=0.0) < 0:
        unit = measurements.words_unit_scale(one.name)[1]
        what = "a rate" if measurements.is_rate(one.name) else f"a value in {unit}"
        return f"{called} is {min(known):g}; {what} is not below 0"
    if spread is not None and (spread.low > spread.high or spread.n < 1):
        return f"{called} has the interval {spread.low:g} to {spread.high:g} over {spread.n} values"
    lacking = [key for key in _NEEDED.get(one.name, ()) if one.context.get(key) is None]
    return f"{called} does not say its {lacking[0]}" if lacking else _facts_fault(called, one.context)


def _metrics_fault(metrics: Metrics | None) -> str | None:
    for name, value in vars(metrics).items() if metrics is not None else ():
        numbers = (value.median, value.low, value.high) if isinstance(value, Interval) else (value,)
        least = 1 if name.startswith("peak_") else 0  # a process that trained has held memory
        for number in numbers:
            if number is not None and not (_is_sensible(number) and (number >= least or name.endswith("_loss"))):
                return f"metrics: {name} is {numbers[0]!r}"
    return None


def _times_fault(result: TrialResult) -> str | None:
    times = {"wall_time_sec": result.wall_time_sec, **{f"phase {name}": sec for name, sec in result.phases.items()}}
    for name, seconds in times.items():
        if seconds is not None and not 0 <= seconds <= LONGEST_SEC:
            return f"{formatting.shorten(name, 60)} is {seconds!r} s"
    return None if 1 <= result.attempt <= 1_000_000 else f"attempt is {result.attempt}"


def _facts_fault(where: str, facts: Mapping[str, Any]) -> str | None:
    """A fact that the report reckons with and that is no number, or None; what else there is, is only shown."""
    for name in _WHOLE:
        value = facts.get(name)
        if value is not None and not (type(value) is int and value >= (1 if name in _FROM_ONE else 0)):
            return f"{where} {name}: expected a whole number, found {formatting.shorten(repr(value), 60)}"
    for name in _NUMBERS:
        value = facts.get(name)
        if value is not None and not (type(value) in (int, float) and value >= 0 and _is_sensible(value)):
            return f"{where} {name}: expected a number, found {formatting.shorten(repr(value), 60)}"
    return None


def _is_sensible(value: float | None) -> bool:
    return value is None or value == 0 or LEAST <= abs(value) <= MOST


def _first_outside(low: float, high: float, values: Sequence[float]) -> int:
    """The place of the first value that is not from `low` to `high`, -1 where all are."""
    if not values or (low <= min(values) and max(values) <= high):
        return -1
    return _first_not(lambda value: low <= value <= high, values)


def _first_impossible(steps: Steps) -> int:
    """The place of the first step whose amounts cannot be, -1 where all can."""
    samples, tokens, useful = steps.samples, steps.tokens, steps.useful_tokens
    if _first_outside(LEAST, MOST, samples) < 0 and min(tokens, default=1) >= 1 and min(useful, default=0) >= 0:
        return _first_not(bool, map(operator.le, useful, tokens))
    amounts = zip(samples, tokens, useful, strict=True)
    return _first_not(lambda one: LEAST <= one[0] <= MOST and one[1] >= 1 and 0 <= one[2] <= one[1], amounts)


def _first_not(holds: Callable[[Any], bool], values: Iterable[Any]) -> int:
    """The place of the first value that does not, -1 where all do."""
    return next((place for place, value in enumerate(values) if not holds(value)), -1)
