"""A run's folder as tables: every result verified, and what cannot be used listed by file and reason.

Nothing is dropped silently. A planned trial is in exactly one place: among the results, or among the missing. A file
that may not be averaged in (damaged, foreign, not in the plan) is among the rejected.

Frame `trials`, one row per accepted result:

| column | meaning |
|---|---|
| trial_id, configuration, kind, worker | which trial, the configuration's label, what it measures, and where it ran |
| status, reason, attempt, written_by, started_at | its end, in `bench.records.result.TrialResult`'s words |
| wall_time_sec, load_time_sec | seconds |
| n_steps, n_measurements | measured steps and other measurements the record holds |
| step_time_sec | median over its measured steps, seconds |
| samples_per_sec, tokens_per_sec, useful_tokens_per_sec | per worker |
| padding_percent | share of token positions spent on padding |
| first_loss, last_loss | of the measured steps |
| peak_vram_bytes, peak_rss_bytes | bytes; VRAM missing where there is no GPU |

Frame `steps`, one row per optimizer step of an accepted result: trial_id, configuration, worker, status, phase
("warmup" or "measure"), step (from 1, counted over both phases), step_time_sec (seconds), loss, samples, tokens,
useful_tokens (per step and worker).

Frame `measurements`, one row per measurement of an accepted result: see `reports.read.measurements`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from bench.records.layout import LEDGER_FILE, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.result import End, Steps, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.sealed import ResultError
from reports.read import fingerprint, measurements, starts

KINDS_WITH_STEPS = ("training", "distributed")


class ReportError(ValueError):
    """No report can be made at all; the message names the file or folder and what to do."""


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A file that was not averaged in, relative to the run's folder, and why."""

    file: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A planned trial without a usable result. `worker` is None where any worker could have taken it."""

    trial_id: str
    configuration: str
    worker: str | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One thing that was measured, by one or more planned trials. `label` is unique within its run."""

    label: str
    planned: tuple[PlannedTrial, ...]

    @property
    def kind(self) -> str:
        return self.planned[0].trial.kind


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder as read. `configurations` keep the plan's order; `results` too. `started` is the ledger's word."""

    folder: Path
    record: RunRecord
    configurations: tuple[Configuration, ...]
    results: tuple[TrialResult, ...]
    label_of: dict[str, str]
    trials: pd.DataFrame
    measurements: pd.DataFrame
    rejected: tuple[Rejected, ...]
    missing: tuple[Missing, ...]
    started: starts.Starts = field(default_factory=dict)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """Made when it is first asked for: of ten thousand trials it has a row for each of their steps."""
        return _steps_frame({one.trial_id: one for one in self.results}, self.label_of)


def load(folder: Path) -> Run:
    """Read `folder` (results/<run-id>). Raises ReportError when its run.json cannot be trusted."""
    try:
        record = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        hint = "is this a run's folder?" if not (folder / RUN_FILE).exists() else "without its plan no report is made"
        raise ReportError(f"{error}; {hint}") from None
    configurations = _configurations(record)
    label_of = {plan.trial_id: one.label for one in configurations for plan in one.planned}
    plans = {plan.trial_id: plan for plan in record.planned}
    results, rejected = _read_results(folder, record, plans)
    try:
        started = starts.read(folder)
    except OSError as error:
        raise ReportError(f"{folder / LEDGER_FILE}: cannot be read: {error.strerror}") from None
    if (why := _misleads(record, results)) is not None:
        results = {trial_id: measurements.without_misleading(one, why) for trial_id, one in results.items()}
    return Run(
        folder=folder,
        record=record,
        configurations=configurations,
        results=tuple(results[trial_id] for trial_id in plans if trial_id in results),
        label_of=label_of,
        trials=_trials_frame(results, label_of),
        measurements=measurements.frame(results, label_of),
        rejected=tuple(rejected),
        missing=tuple(_missing(folder, plans, label_of, results, rejected)),
        started=started,
    )


def _misleads(record: RunRecord, results: dict[str, TrialResult]) -> str | None:
    """Why a share of the hardware's peak would mislead in this run, or None."""
    if record.profile == "tiny":
        return "not shown for profile tiny, whose model is too small to say anything about a chip"
    if fingerprint.hosts(record, results.values()).contention is not None:
        return "not shown where workers share too few cores"
    return None


def _configurations(record: RunRecord) -> tuple[Configuration, ...]:
    groups: dict[tuple[str, str], list[PlannedTrial]] = {}
    digests: dict[Any, str] = {}  # every worker's copy of a trial has the same
    for plan in record.planned:
        digest = digests.get(plan.trial) or digests.setdefault(plan.trial, plan.trial.digest())
        groups.setdefault((plan.trial.name, digest), []).append(plan)
    uses = Counter(name for name, _ in groups)
    # One name over two configurations would merge two rows of every table; the digest tells them apart.
    return tuple(
        Configuration(label=name if uses[name] == 1 else f"{name} ({digest[:8]})", planned=tuple(plans))
        for (name, digest), plans in groups.items()
    )


def _read_results(
    folder: Path, record: RunRecord, plans: dict[str, PlannedTrial]
) -> tuple[dict[str, TrialResult], list[Rejected]]:
    results: dict[str, TrialResult] = {}
    rejected: list[Rejected] = []
    try:
        places = sorted((folder / TRIALS_FOLDER).iterdir())
    except FileNotFoundError:
        return results, rejected
    except OSError as error:
        raise ReportError(f"{folder / TRIALS_FOLDER}: cannot be read: {error.strerror}") from None
    for place in places:
        path = place / RESULT_FILE
        if not path.exists():
            if place.name not in plans:
                rejected.append(Rejected(file=_relative(place, folder), reason="not a trial of this run's plan"))
            continue
        try:
            result = TrialResult.read(path)
        except ResultError as error:
            # The path is left out: the row names the file already.
            rejected.append(Rejected(file=_relative(path, folder), reason=str(error).removeprefix(f"{path}: ")))
            continue
        reason = _objection(result, place.name, record, plans)
        if reason is None:
            results[result.trial_id] = result
        else:
            rejected.append(Rejected(file=_relative(path, folder), reason=reason))
    return results, rejected


def _objection(result: TrialResult, folder_name: str, record: RunRecord, plans: dict[str, PlannedTrial]) -> str | None:
    """Why a verified record still may not be averaged in, or None."""
    if result.trial_id != folder_name:
        return f"holds trial {result.trial_id!r}, but stands in the folder of {folder_name!r}"
    if result.run_id != record.run_id:
        return f"belongs to run {result.run_id!r}, not to {record.run_id!r}"
    plan = plans.get(result.trial_id)
    if plan is None:
        return f"trial {result.trial_id!r} is not in this run's plan"
    if result.trial != plan.trial and result.trial.digest() != plan.trial.digest():
        return f"measured another configuration than the plan's: {_first_difference(result, plan)}"
    if plan.worker is not None and result.worker != plan.worker:
        return f"ran on {result.worker!r}, but the plan pins it to {plan.worker!r}"
    for phase, steps in (("warmup", result.warmup), ("steps", result.steps)):
        fault = _fault(steps)
        if fault is not None:
            return f"{phase}: {fault}"
    fault = measurements.fault(result.measurements)
    if fault is not None:
        return fault
    if result.status is not End.SUCCEEDED:
        return None
    if result.trial.kind in KINDS_WITH_STEPS:
        has_steps = result.metrics is not None and result.steps.step_time_sec
        return None if has_steps else "says SUCCEEDED but holds no measured step"
    return None if result.measurements else "says SUCCEEDED but holds no measurement"


def _fault(steps: Steps) -> str | None:
    """What makes a record of steps impossible, or None."""
    lengths = {
        "step_time_sec": len(steps.step_time_sec),
        "loss": len(steps.loss),
        "samples": len(steps.samples),
        "tokens": len(steps.tokens),
        "useful_tokens": len(steps.useful_tokens),
    }
    if len(set(lengths.values())) != 1:
        return "its lists differ in length: " + ", ".join(f"{name} {count}" for name, count in lengths.items())
    for number, seconds in enumerate(steps.step_time_sec, start=1):
        if not (math.isfinite(seconds) and seconds > 0):
            return f"step {number} took {seconds!r} s; a step takes more than 0 s"
    for number, (samples, tokens, useful) in enumerate(
        zip(steps.samples, steps.tokens, steps.useful_tokens, strict=True), start=1
    ):
        if not (math.isfinite(samples) and samples > 0) or tokens < 1 or not 0 <= useful <= tokens:
            return f"step {number} counts {samples:g} samples, {tokens} tokens, {useful} useful tokens"
    if steps.useful_tokens and not any(steps.useful_tokens):
        return "no step has a useful token; all of them were padding"
    return None


def _missing(
    folder: Path,
    plans: dict[str, PlannedTrial],
    label_of: dict[str, str],
    results: dict[str, TrialResult],
    rejected: list[Rejected],
) -> list[Missing]:
    refused = {Path(one.file).parent.name for one in rejected}
    missing = []
    for trial_id, plan in plans.items():
        if trial_id in results:
            continue
        if trial_id in refused:
            reason = "its result was rejected"
        elif (folder / TRIALS_FOLDER / trial_id).is_dir():
            reason = f"its folder holds no {RESULT_FILE}"
        else:
            reason = "nothing was collected"
        missing.append(Missing(trial_id=trial_id, configuration=label_of[trial_id], worker=plan.worker, reason=reason))
    return missing


_TRIAL_COLUMNS = {
    "trial_id": "str",
    "configuration": "str",
    "kind": "str",
    "worker": "str",
    "status": "str",
    "reason": "str",
    "attempt": "int64",
    "written_by": "str",
    "started_at": "str",
    "wall_time_sec": "float64",
    "load_time_sec": "float64",
    "n_steps": "int64",
    "n_measurements": "int64",
    "step_time_sec": "float64",
    "samples_per_sec": "float64",
    "tokens_per_sec": "float64",
    "useful_tokens_per_sec": "float64",
    "padding_percent": "float64",
    "first_loss": "float64",
    "last_loss": "float64",
    "peak_vram_bytes": "Int64",
    "peak_rss_bytes": "Int64",
}
_FROM_METRICS = (
    "load_time_sec",
    "samples_per_sec",
    "tokens_per_sec",
    "useful_tokens_per_sec",
    "padding_percent",
    "first_loss",
    "last_loss",
    "peak_vram_bytes",
    "peak_rss_bytes",
)


def _trials_frame(results: dict[str, TrialResult], label_of: dict[str, str]) -> pd.DataFrame:
    rows = []
    for trial_id, label in label_of.items():
        if (result := results.get(trial_id)) is None:
            continue
        row: dict[str, Any] = {
            "trial_id": trial_id,
            "configuration": label,
            "kind": result.trial.kind,
            "worker": result.worker,
            "status": result.status.value,
            "reason": result.reason,
            "attempt": result.attempt,
            "written_by": result.written_by,
            "started_at": result.started_at,
            "wall_time_sec": result.wall_time_sec,
            "n_steps": len(result.steps.step_time_sec),
            "n_measurements": len(result.measurements),
        }
        if (metrics := result.metrics) is not None:
            row["step_time_sec"] = metrics.step_time_sec.median
            row |= {name: getattr(metrics, name) for name in _FROM_METRICS}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(_TRIAL_COLUMNS)).astype(_TRIAL_COLUMNS)


def _steps_frame(results: dict[str, TrialResult], label_of: dict[str, str]) -> pd.DataFrame:
    columns: dict[str, list[Any]] = {
        name: []
        for name in (
            "trial_id",
            "configuration",
            "worker",
            "status",
            "phase",
            "step",
            "step_time_sec",
            "loss",
            "samples",
            "tokens",
            "useful_tokens",
        )
    }
    for trial_id, label in label_of.items():
        if (result := results.get(trial_id)) is None:
            continue
        done = len(result.warmup.step_time_sec)
        for phase, steps, before in (("warmup", result.warmup, 0), ("measure", result.steps, done)):
            count = len(steps.step_time_sec)
            columns["trial_id"] += [trial_id] * count
            columns["configuration"] += [label] * count
            columns["worker"] += [result.worker] * count
            columns["status"] += [result.status.value] * count
            columns["phase"] += [phase] * count
            columns["step"] += range(before + 1, before + count + 1)
            for name in ("step_time_sec", "loss", "samples", "tokens", "useful_tokens"):
                columns[name] += getattr(steps, name)
    frame = pd.DataFrame(columns)
    return frame.astype(
        dict.fromkeys(("step", "tokens", "useful_tokens"), "int64")
        | dict.fromkeys(("step_time_sec", "loss", "samples"), "float64")  # packed samples are fractions
        | dict.fromkeys(("trial_id", "configuration", "worker", "status", "phase"), "str")
    )


def _first_difference(result: TrialResult, plan: PlannedTrial) -> str:
    found, expected = result.trial.to_json(), plan.trial.to_json()
    labels = ("name", "reason", "suite")
    return next(
        f"{key} is {found[key]!r}, planned {expected[key]!r}"
        for key in expected
        if key not in labels and found[key] != expected[key]
    )


def _relative(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()
