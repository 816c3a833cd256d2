"""Common model of the exported formats: a trial or training with its settings, values by step and final values.

Times are computed: the start time plus the durations of the steps since, without the gaps between steps.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import RUN_FILE
from bench.records.result import Measurement, Steps, TrialResult
from bench.records.run import RunRecord
from bench.records.training import Evaluation, TrainedSteps
from bench.records.trial import Trial
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from reports.read.worker_fingerprints import flatten
from reports.training import training_facts

_TEMPLATE_SETTING = "training.data.chat_template"
_MAX_NAME_LENGTH = 200

Setting = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class Point:
    """The values measured at one step: `warmup/loss`, `train/loss`, `held_out/loss`. `time` is Unix time."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One trial or training. `status` is a TrialStatus value, `start_time` is Unix time."""

    run_id: str
    name: str
    configuration: str
    worker: str | None
    status: str
    start_time: float
    settings: Mapping[str, Setting]
    points: tuple[Point, ...]
    results: Mapping[str, float]


def read_logged_runs(folder: Path) -> tuple[LoggedRun, ...]:
    """Read the results in a run's folder, in the plan's order; a benchmark in progress has those collected so far.

    Raises ReportError.
    """
    try:
        run = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        raise ReportError.from_error(error, remedy="choose another run with --run") from error
    if any(planned.trial.training is not None for planned in run.planned):
        return (_logged_training(folder),)
    read = load(folder)
    return tuple(_logged_trial(result, read.label_of[result.trial_id], run) for result in read.results)


def _logged_trial(result: TrialResult, label: str, run: RunRecord) -> LoggedRun:
    start_time = _parse_time(result.started_at or run.created_at)
    results: dict[str, float | None] = {"wall_time_sec": result.wall_time_sec}
    if (metrics := result.metrics) is not None:
        results |= vars(metrics) | {"step_time_sec": metrics.step_time_sec.median}
    results |= {_metric_name(measurement): measurement.value for measurement in result.measurements}
    return LoggedRun(
        run_id=run.run_id,
        name=result.trial_id,
        configuration=label,
        worker=result.worker,
        status=result.status.value,
        start_time=start_time,
        settings=_flatten_settings(result.trial),
        points=tuple(_points({"warmup": result.warmup, "train": result.steps}, (), start_time)),
        results=_only_finite(results),
    )


def _logged_training(folder: Path) -> LoggedRun:
    training = training_facts.read(folder)
    planned, record = training.run.planned[0], training.record
    start_time = _parse_time(training.run.created_at)
    results = {"worker_hours": training.worker_hours, "usd": training.usd}
    results |= {name: getattr(record, name) for name in ("steps_done", "peak_vram_bytes")}
    if (last := training_facts.adapter_evaluation(record)) is not None:
        results |= {f"held_out_{name}": getattr(last, name) for name in ("loss", "low", "high", "change")}
    if record.score is not None and record.score.measures:
        first = record.score.measures[0]
        results |= {f"score_{name}": getattr(first, name) for name in ("before", "after", "change")}
    return LoggedRun(
        run_id=training.run.run_id,
        name=planned.trial_id,
        configuration=planned.trial.name,
        worker=planned.worker,
        status=record.status,
        start_time=start_time,
        settings=_flatten_settings(planned.trial.with_derived(record.derived)),
        points=tuple(_points({"train": record.steps}, record.evaluations, start_time)),
        results=_only_finite(results),
    )


def _points(
    phases: Mapping[str, Steps | TrainedSteps], held_out: Iterable[Evaluation], start_time: float
) -> Iterator[Point]:
    """Yield steps in order, each with the held-out losses after it. Those without a number are counted."""
    losses = {
        each.step: {f"held_out/{name}": getattr(each, name) for name in ("loss", "low", "high")} for each in held_out
    }
    step, time = 0, start_time
    if step in losses:
        yield Point(step=step, time=time, values=_only_finite(losses[step]))
    for phase, measured in phases.items():
        for values in zip(*vars(measured).values(), strict=True):
            row = dict(zip(vars(measured), values, strict=True))
            step, seconds = row.pop("step", step + 1), row["step_time_sec"]
            time += seconds
            row["useful_tokens_per_sec"] = row.get("useful_tokens", row["tokens"]) / seconds
            tagged = {f"{phase}/{name}": value for name, value in row.items()}
            yield Point(step=step, time=time, values=_only_finite(tagged | losses.get(step, {})))


def _flatten_settings(trial: Trial) -> dict[str, Setting]:
    """Return the trial's settings with dotted names: `lora_rank`, `training.schedule`. Unset ones are left out.

    Other tools limit a value's length, so a chat template has its sha256 in its place.
    """
    flat = flatten(trial.to_json())
    settings = {name: value for name, value in flat.items() if value is not None}
    if (template := settings.pop(_TEMPLATE_SETTING, None)) is not None:
        settings[f"{_TEMPLATE_SETTING}_sha256"] = hashlib.sha256(str(template).encode()).hexdigest()
    return settings


def _metric_name(measurement: Measurement) -> str:
    """Return a measurement's name and context as a path: `measured/matmul_tflops.dtype_bf16.size_8192`."""
    parts = [measurement.name, *(f"{key}_{value}" for key, value in measurement.context.items())]
    plain = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", part) for part in parts)
    return f"measured/{plain[:_MAX_NAME_LENGTH]}"


def _only_finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _parse_time(timestamp: str) -> float:
    """Return the Unix time of an ISO 8601 timestamp; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0
