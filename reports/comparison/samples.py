"""Samples of a run: speeds, durations and energy of its successful trials, by quantity and process."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from bench.records.result import Measurement, TrialResult
from bench.records.status import TrialStatus
from reports.read import measurements
from reports.read.run import Run
from reports.statistics import per_config
from reports.statistics.energy import ENERGY, joules_per_1000_useful_tokens
from reports.statistics.per_config import Sample
from reports.statistics.per_process import ProcessSteps, describe

STEP_METRICS = ("samples_per_sec", "useful_tokens_per_sec")


@dataclass(frozen=True, kw_only=True)
class Value:
    """One process's value of one quantity."""

    sample: Sample
    steps_noise_percent: float | None


Quantity = tuple[str, str]  # name, and context as JSON ("" for steps)


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The values of a run's successful trials: digest -> quantity -> processes."""

    by_digest: dict[str, dict[Quantity, list[Value]]]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        good = [result for result in run.results if result.status is TrialStatus.SUCCEEDED]
        by_digest: dict[str, dict[Quantity, list[Value]]] = {}
        with_steps = [result for result in good if result.trial.workload.has_steps]
        described = describe([ProcessSteps.from_result(result) for result in with_steps])
        for result, process in zip(with_steps, described, strict=True):
            quantities = by_digest.setdefault(result.trial.digest(), {})
            for name in STEP_METRICS:
                (sample,) = per_config.samples([process], name)
                quantities.setdefault((name, ""), []).append(
                    Value(sample=sample, steps_noise_percent=process.noise_percent)
                )
            energy = joules_per_1000_useful_tokens(result, process)
            if energy is not None:
                sample = Sample(worker=process.worker, log=math.log(energy), error=process.elapsed_error)
                value = Value(sample=sample, steps_noise_percent=None)
                quantities.setdefault((ENERGY, ""), []).append(value)
        for result in good:
            quantities = by_digest.setdefault(result.trial.digest(), {})
            for quantity, value in _measured_values(result):
                quantities.setdefault(quantity, []).append(value)
        return cls(by_digest=by_digest)


def _measured_values(result: TrialResult) -> Iterable[tuple[Quantity, Value]]:
    """Yield a trial's rates and durations; telemetry and a single rank's steps are not speeds of a configuration."""
    for measurement in result.measurements:
        is_speed = measurements.is_rate(measurement.name) or measurement.name.endswith("_sec")
        if not is_speed or measurement.value is None or measurement.value <= 0 or "rank" in measurement.context:
            continue
        if measurements.section_of(result.trial.kind, measurement) == measurements.TELEMETRY:
            continue
        # A context may hold computed results, such as a share: they differ between runs and identify nothing.
        context = {name: value for name, value in measurement.context.items() if not isinstance(value, float)}
        error, noise = _error_and_noise(measurement)
        sample = Sample(worker=result.worker or "unknown", log=math.log(measurement.value), error=error)
        yield (
            (measurement.name, measurements.context_json(context) if context else ""),
            Value(sample=sample, steps_noise_percent=noise),
        )


def _error_and_noise(measurement: Measurement) -> tuple[float, float | None]:
    """Return the standard error implied by a measurement's interval, and its repeats' spread in percent."""
    spread = measurement.interval
    if spread is None or not 0 < spread.low <= spread.high:
        return 0.0, None
    noise = 100.0 * (spread.p90 - spread.p10) / 2.563 / spread.median if spread.median > 0 else None
    return math.log(spread.high / spread.low) / (2.0 * per_config.NORMAL), noise
