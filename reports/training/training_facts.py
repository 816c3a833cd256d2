"""A training from its folder: its plan, record, attempts and forecast, and the check of its adapter."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bench.records.adapter import AdapterCheck
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_CHECK_FILE, LEDGER_FILE, RUN_FILE, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from bench.records.score import TrainingTime
from bench.records.status import TrialStatus
from bench.records.training import Evaluation, TrainingRecord
from reports import formatting
from reports.read import attempts, impossible_values
from reports.read.attempts import AttemptSpan
from reports.read.loaded_run import Rejected, ReportError
from reports.read.worker_fingerprints import CPU

# What a training's time is spent on, its steps excepted.
PARTS = START, EVALUATIONS, CHECKPOINTS, SCORES = ("start and end", "evaluations", "checkpoints", "answers and score")


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """A loaded training: its folder, plan, record, attempts, forecast. `price` is US dollars per worker and hour.

    `rejected` are files that were read in part.
    """

    folder: Path
    run: RunRecord
    record: TrainingRecord
    attempts: Sequence[AttemptSpan]
    rejected: Sequence[Rejected]
    forecast: dict[str, Any]
    price: float | None

    @property
    def has_succeeded(self) -> bool:
        return self.record.outcome.status is TrialStatus.SUCCEEDED

    @property
    def device(self) -> str:
        return str(self.run.provenance.get("inputs", {}).get("device") or "unknown device")

    @property
    def workers_text(self) -> str:
        """The workers, such as `2 NVIDIA A10`."""
        size = self.record.world_size
        return formatting.count(size, "CPU worker") if self.device == CPU else f"{size} {self.device}"

    @property
    def worker_hours(self) -> float:
        """The hours that all workers were held, waits for a restart included, from the ledger."""
        return attempts.total_sec(self.attempts, time.time()) * self.record.world_size / 3600.0

    @property
    def usd(self) -> float | None:
        """The dollars of the workers' time; None without a price."""
        return None if self.price is None else self.worker_hours * self.price

    @property
    def steps_sec(self) -> float:
        return sum(self.record.steps.step_time_sec)

    @property
    def parts_sec(self) -> dict[str, float]:
        """The seconds of everything but the steps by PARTS; empty without a ledger."""
        return divide(self.record, attempts.total_sec(self.attempts, time.time())) if self.attempts else {}

    @property
    def seconds(self) -> list[float]:
        """The seconds of steps after each step, without pauses."""
        return list(accumulate(self.record.steps.step_time_sec))


def read(run_folder: Path) -> TrainingReport:
    """Load a training. Raises ReportError if it was not collected or is invalid."""
    try:
        run = RunRecord.read(run_folder / RUN_FILE)
        if len(run.planned) != 1:
            planned = formatting.count(len(run.planned), "trial")
            raise ValueError(f"{run_folder / RUN_FILE}: plans {planned}; expected 1 for a training")
        trial_id = run.planned[0].trial_id
        path = run_folder / TRIALS_FOLDER / trial_id / TRAINING_FILE
        record = TrainingRecord.read(path)
        if (record.run_id, record.trial_id) != (run.run_id, trial_id):
            raise ValueError(f"{path}: belongs to {record.trial_id!r} of run {record.run_id!r}")
        if (fault := impossible_values.training_fault(record)) is not None:
            raise ValueError(f"{path}: {fault}")
        forecast = _read_forecast(run)
        spans = attempts.read(run_folder, trial_id)
        ledger_fault = attempts.ledger_fault(run_folder, [(trial_id, record.attempt)])
    except (ResultError, ValueError) as error:
        remedy = f"run `inv collect --run={run_folder.name}` to fetch its files"
        raise ReportError.from_error(error, remedy=remedy) from error
    except OSError as error:
        raise ReportError(f"{run_folder / LEDGER_FILE}: cannot be read: {error.strerror}") from error
    return TrainingReport(
        folder=run_folder,
        run=run,
        record=record,
        attempts=spans,
        rejected=() if ledger_fault is None else (Rejected(file=LEDGER_FILE, reason=ledger_fault),),
        forecast=forecast,
        price=forecast.get("usd_per_gpu_hour"),
    )


def divide(record: TrainingRecord, total_sec: float) -> dict[str, float]:
    """Divide the time of a training without its steps by PARTS."""
    spent = record.time or TrainingTime()
    known = (spent.evaluation_sec, spent.checkpoint_sec, spent.score_sec)
    start = total_sec - sum(record.steps.step_time_sec) - sum(known)
    return dict(zip(PARTS, (max(0.0, start), *known), strict=True))


def _read_forecast(run: RunRecord) -> dict[str, Any]:
    """Return the forecast from the plan. Raises ValueError if it is impossible."""
    inputs = run.provenance.get("inputs", {})
    forecast = inputs.get("forecast", {}) if isinstance(inputs, dict) else None
    fault = impossible_values.forecast_fault(forecast) if isinstance(forecast, dict) else "expected an object"
    if fault is not None:
        raise ValueError(f"{RUN_FILE}: forecast: {fault}")
    return dict(forecast or {})


def adapter_evaluation(record: TrainingRecord) -> Evaluation | None:
    """Return the held-out loss of the fetched adapter, else the last one."""
    matches = [evaluation for evaluation in record.evaluations if evaluation.step == record.adapter_step]
    return next(iter(matches or record.evaluations[-1:]), None)


def read_check(training: TrainingReport) -> AdapterCheck:
    """Load the check of the training's adapter. Raises ReportError if it is missing, another adapter's or invalid."""
    path = training.folder / ADAPTER_CHECK_FILE
    if not training.record.evaluations:
        raise ReportError(f"run {training.folder.name}: no data was held out, so its loss is unknown")
    remedy = f"run `{check_command(training)}`"
    try:
        check = AdapterCheck.read(path)
    except ResultError as error:
        raise ReportError.from_error(error, remedy=remedy) from error
    if check.adapter_sha256 != training.record.adapter_sha256:
        raise ReportError(f"{path}: belongs to another adapter than the run's", remedy=remedy)
    if (fault := _check_fault(check)) is not None:
        raise ReportError(f"{path}: {fault}", remedy=remedy)
    return check


def check_command(training: TrainingReport) -> str:
    return f"inv adapter.check --run={training.folder.name}"


def _check_fault(check: AdapterCheck) -> str | None:
    lengths: Sequence[int] = (len(check.examples), len(set(check.examples)), len(check.losses), len(check.targets))
    if len(set(lengths)) != 1 or min(check.targets, default=1) < 1 or not check.forms:
        return "its losses, targets and examples do not match"
    return impossible_values.numbers_fault(check)
