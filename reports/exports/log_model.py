"""A run's trials, or its training, as other tools keep one: settings, values by step, final values.

Times are the run's clock: when it began, and the time of its steps since then, without what came between them.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_FOLDER, RUN_FILE, STEPS_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.result import Measurement, Steps, TrialResult
from bench.records.run import RunRecord
from bench.records.training import Evaluation, TrainedSteps
from bench.records.trial import Trial
from reports.read import steps
from reports.read.load import load
from reports.read.run import ReportError
from reports.training import summary

_MAX_NAME_LENGTH = 200  # of a name that may become a file's

Setting = str | int | float | bool
_MAX_TIME = 4_102_444_800.0  # of the year 2099: no file of another tool holds a time beyond what its clock can show


@dataclass(frozen=True, kw_only=True)
class Point:
    """What was measured at one step, by name. `at` is in seconds since 1970; `phase` is warmup, train or held_out."""

    step: int
    time: float
    phase: str
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One trial or training. `end` is its End's value and `ended` the time, both None while it goes on.

    `began` and `ended` are in seconds since 1970; `files` are what it made, by name.
    """

    run_id: str
    name: str
    configuration: str
    worker: str | None
    status: str | None
    start_time: float
    end_time: float | None
    settings: Mapping[str, Setting]
    points: tuple[Point, ...]
    results: Mapping[str, float]
    files: Mapping[str, Path] = field(default_factory=dict)


def read_logged_runs(folder: Path, partial_steps: Path | None = None) -> tuple[LoggedRun, ...]:
    """What the run's folder holds now, in the plan's order: while it goes on, what came home. Raises ReportError.

    `so_far` is the steps.jsonl of a training whose end is not here yet.
    """
    try:
        run = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        raise ReportError(f"{error}; choose another run with --run") from None
    if any(planned.trial.training is not None for planned in run.planned):
        return (_logged_training(folder, run, partial_steps),)
    read = load(folder)
    return tuple(_logged_trial(result, read.label_of[result.trial_id], run) for result in read.results)


def _logged_trial(result: TrialResult, label: str, run: RunRecord) -> LoggedRun:
    began = _parse_time(result.started_at or run.created_at)
    points = tuple(_trial_points(result, began))
    results: dict[str, float | None] = {"wall_time_sec": result.wall_time_sec}
    if (metrics := result.metrics) is not None:
        results |= {
            "step_time_sec": metrics.step_time_sec.median,
            **{name: getattr(metrics, name) for name in ("samples_per_sec", "tokens_per_sec", "useful_tokens_per_sec")},
            **{name: getattr(metrics, name) for name in ("load_time_sec", "peak_vram_bytes", "peak_rss_bytes")},
        }
    results |= {_metric_name(measurement): measurement.value for measurement in result.measurements}
    return LoggedRun(
        run_id=run.run_id,
        name=result.trial_id,
        configuration=label,
        worker=result.worker,
        status=result.status.value,
        start_time=began,
        end_time=_clamp_time(began + (result.wall_time_sec or 0.0)),
        settings=_flatten_settings(result.trial),
        points=points,
        results=_only_finite(results),
    )


def _trial_points(result: TrialResult, began: float) -> Iterator[Point]:
    step, at = 0, began
    for phase, measured in (("warmup", result.warmup), ("train", result.steps)):
        for row in _rows(measured):
            step, at = step + 1, _clamp_time(at + row["step_time_sec"])
            yield Point(
                step=step,
                time=at,
                phase=phase,
                values=_only_finite({**row, **_tokens_per_sec(row, row["useful_tokens"])}),
            )


def _logged_training(folder: Path, run: RunRecord, partial_steps: Path | None) -> LoggedRun:
    planned = run.planned[0]
    trial, trial_folder = planned.trial, folder / TRIALS_FOLDER / planned.trial_id
    began = _parse_time(run.created_at)
    end, results = None, dict[str, float | None]()
    if partial_steps is None and (trial_folder / TRAINING_FILE).exists():
        training_report = summary.read(folder)
        record = training_report.record
        steps_measured, held_out, end = record.steps, record.evaluations, record.status
        results = {
            "steps_done": record.steps_done,
            "seconds": record.seconds,
            "worker_hours": training_report.worker_hours,
        }
        results |= {
            "usd": None if training_report.price is None else training_report.worker_hours * training_report.price
        }
        results |= {name: getattr(record, name) for name in ("peak_vram_bytes", "peak_rss_bytes")}
        if (last := summary.adapter_evaluation(record)) is not None:
            results |= {f"held_out_{name}": getattr(last, name) for name in ("loss", "low", "high", "change")}
    else:
        path = partial_steps or trial_folder / STEPS_FILE
        try:
            steps_measured, held_out = steps.read(path)
        except OSError as error:
            raise ReportError(f"{path}: cannot be read: {error.strerror}") from None
    points = tuple(_training_points(steps_measured, held_out, began))
    return LoggedRun(
        run_id=run.run_id,
        name=planned.trial_id,
        configuration=trial.name,
        worker=planned.worker,
        status=end,
        start_time=began,
        end_time=None if end is None else (points[-1].time if points else began),
        settings=_flatten_settings(trial),
        points=points,
        results=_only_finite(results),
        files=_list_files(folder / ADAPTER_FOLDER),
    )


def _training_points(measured: TrainedSteps, held_out: Iterable[Evaluation], began: float) -> Iterator[Point]:
    """Steps and held-out losses in order; what is held out is measured after the step of its number."""
    evaluations_after: dict[int, list[Evaluation]] = {}
    for evaluation in held_out:
        evaluations_after.setdefault(evaluation.step, []).append(evaluation)
    at = began
    rows: list[dict[str, Any]] = [{"step": 0}, *_rows(measured)]
    for row in rows:
        step = row.pop("step")
        if row:
            at = _clamp_time(at + row["step_time_sec"])
            yield Point(
                step=step, time=at, phase="train", values=_only_finite({**row, **_tokens_per_sec(row, row["tokens"])})
            )
        for evaluation in evaluations_after.get(step, ()):
            values = {"loss": evaluation.loss, "low": evaluation.low, "high": evaluation.high}
            yield Point(step=step, time=at, phase="held_out", values=_only_finite(values))


def _rows(columns: Steps | TrainedSteps) -> Iterator[dict[str, Any]]:
    """A row for each step, as far as every column goes."""
    for row in zip(*vars(columns).values(), strict=False):
        yield dict(zip(vars(columns), row, strict=True))


def _tokens_per_sec(row: Mapping[str, Any], tokens: float) -> dict[str, float]:
    return {"useful_tokens_per_sec": tokens / row["step_time_sec"]} if row["step_time_sec"] > 0 else {}


def _flatten_settings(trial: Trial) -> dict[str, Setting]:
    """The trial's settings, flat: `lora_rank`, `training.schedule`. What is not set is left out."""
    settings: dict[str, Setting] = {}

    def take(prefix: str, table: Mapping[str, Any]) -> None:
        for name, value in table.items():
            if isinstance(value, Mapping):
                take(f"{prefix}{name}.", value)
            elif isinstance(value, list):
                settings[f"{prefix}{name}"] = ", ".join(map(str, value))
            elif value is not None:
                settings[f"{prefix}{name}"] = value

    take("", trial.to_json())
    return settings


def _metric_name(measurement: Measurement) -> str:
    """`measured/matmul_tflops.dtype_bf16.size_8192`: a measurement's name with what it was measured on, as a path."""
    parts = [measurement.name, *(f"{key}_{value}" for key, value in measurement.context.items())]
    plain = ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", part) for part in parts)
    return f"measured/{plain[:_MAX_NAME_LENGTH]}"


def _list_files(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    return {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()}


def _only_finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _parse_time(iso: str) -> float:
    """Since 1970; 0 for what is no date."""
    try:
        return _clamp_time(datetime.fromisoformat(iso).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _clamp_time(at: float) -> float:
    return min(max(at, 0.0), _MAX_TIME)
