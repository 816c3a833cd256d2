"""What a run's successful trials say, quantity by quantity and process by process: speeds, durations, energy."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from bench.records.result import Measurement, TrialResult, TrialStatus
from reports.read import measurements
from reports.read.run import KINDS_WITH_STEPS, Run
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


What = tuple[str, str]  # a quantity's name, and its context as JSON; empty for steps


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """What a run's successful trials say: digest -> quantity -> processes."""

    by_digest: dict[str, dict[What, list[Value]]]

    @classmethod
    def of(cls, run: Run) -> Self:
        good = [result for result in run.results if result.status is TrialStatus.SUCCEEDED]
        found: dict[str, dict[What, list[Value]]] = {}
        with_steps = [one for one in good if one.trial.kind in KINDS_WITH_STEPS]
        described = describe([ProcessSteps.of(with_step) for with_step in with_steps])
        for result, process in zip(with_steps, described, strict=True):
            quantities = found.setdefault(result.trial.digest(), {})
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
            quantities = found.setdefault(result.trial.digest(), {})
            for what, value in _measured(result):
                quantities.setdefault(what, []).append(value)
        return cls(by_digest=found)


def _measured(result: TrialResult) -> Iterable[tuple[What, Value]]:
    """Rates and durations of a trial; what telemetry saw, and a rank's own step, are not speeds of a configuration."""
    for measurement in result.measurements:
        is_speed = measurements.is_rate(measurement.name) or measurement.name.endswith("_sec")
        if not is_speed or measurement.value is None or measurement.value <= 0 or "rank" in measurement.context:
            continue
        if measurements.section_of(result.trial.kind, measurement) == measurements.TELEMETRY:
            continue
        # A context may hold results of its own (a share that was computed): those never agree, and name nothing.
        context = {name: value for name, value in measurement.context.items() if not isinstance(value, float)}
        error, noise = _error(measurement)
        sample = Sample(worker=result.worker or "unknown", log=math.log(measurement.value), error=error)
        yield (
            (measurement.name, measurements.as_json(context) if context else ""),
            Value(sample=sample, steps_noise_percent=noise),
        )


def _error(one: Measurement) -> tuple[float, float | None]:
    """The standard error that a measurement's own interval tells, and its repeats' spread in percent."""
    spread = one.interval
    if spread is None or not 0 < spread.low <= spread.high:
        return 0.0, None
    noise = 100.0 * (spread.p90 - spread.p10) / 2.563 / spread.median if spread.median > 0 else None
    return math.log(spread.high / spread.low) / (2.0 * per_config.NORMAL), noise
