"""A run's folder as tables: every result verified, and what cannot be used listed by file and reason.

Nothing is dropped silently. A planned trial is in exactly one place: among the results, or among the missing. A file
that may not be averaged in (damaged, foreign, not in the plan) is among the rejected.
"""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, RESULT_FILE, RUN_FILE, TELEMETRY_FILE, TRIALS_FOLDER
from bench.records.result import TrialResult, TrialStatus
from bench.records.run import PlannedTrial, RunRecord
from reports.read import attempts, fingerprint, measurements, telemetry, validation
from reports.read.run import KINDS_WITH_STEPS, Configuration, Missing, Rejected, ReportError, Run, trials_frame


def load(folder: Path) -> Run:
    """Read `folder` (results/<run-id>). Raises ReportError when its run.json cannot be trusted."""
    try:
        record = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        hint = "is this a run's folder?" if not (folder / RUN_FILE).exists() else "without its plan no report is made"
        raise ReportError(f"{error}; {hint}") from None
    if not record.planned:
        raise ReportError(f"{folder / RUN_FILE}: it plans no trial; there is nothing to report")
    record, rejected = _planned_once(record)
    configurations = _configurations(record)
    label_of = {
        plan.trial_id: configuration.label for configuration in configurations for plan in configuration.planned
    }
    plans = {plan.trial_id: plan for plan in record.planned}
    results, refused = _read_results(folder, record, plans)
    rejected += refused
    started: attempts.Starts = {}
    try:
        started = attempts.starts(folder)
    except OSError as error:
        rejected.append(Rejected(file=LEDGER_FILE, reason=f"cannot be read: {error.strerror}"))
    if (why := _misleads(record, results)) is not None:
        results = {trial_id: measurements.without_misleading(one, why) for trial_id, one in results.items()}
    return Run(
        folder=folder,
        record=record,
        configurations=configurations,
        results=tuple(results[trial_id] for trial_id in plans if trial_id in results),
        label_of=label_of,
        trials=trials_frame(results, label_of),
        measurements=measurements.frame(results, label_of),
        rejected=tuple(rejected),
        missing=tuple(_missing(folder, plans, label_of, results, rejected)),
        started=started,
    )


def _planned_once(record: RunRecord) -> tuple[RunRecord, list[Rejected]]:
    """The plan with each trial once, and what names one again: it would be counted as a trial of its own."""
    first = {plan.trial_id: plan for plan in reversed(record.planned)}
    again = [trial_id for trial_id, times in Counter(plan.trial_id for plan in record.planned).items() if times > 1]
    if not again:
        return record, []
    planned = [plan for plan in record.planned if first.pop(plan.trial_id, None) is not None]
    return replace(record, planned=planned), [
        Rejected(file=RUN_FILE, reason=f"plans trial {trial_id!r} more than once; it is counted once")
        for trial_id in again
    ]


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
    trials = folder / TRIALS_FOLDER
    try:
        names = sorted(place.name for place in trials.iterdir())
    except FileNotFoundError:
        return results, rejected
    except OSError as error:
        raise ReportError(f"{trials}: cannot be read: {error.strerror}") from None
    for name in names:
        path = Path(f"{trials}/{name}/{RESULT_FILE}")  # joined as text: of ten thousand paths, joining takes a second
        if not os.path.lexists(path):
            if name not in plans:
                rejected.append(Rejected(file=_relative(path.parent, folder), reason="not a trial of this run's plan"))
            continue
        try:
            result = TrialResult.read(path)
        except ResultError as error:
            # The path is left out: the row names the file already.
            rejected.append(Rejected(file=_relative(path, folder), reason=str(error).removeprefix(f"{path}: ")))
            continue
        if (reason := _objection(result, name, record, plans)) is not None:
            rejected.append(Rejected(file=_relative(path, folder), reason=reason))
            continue
        results[result.trial_id] = result
        beside = f"{trials}/{name}/{TELEMETRY_FILE}"
        if os.path.lexists(beside) and (reason := telemetry.objection(Path(beside))) is not None:
            rejected.append(Rejected(file=_relative(Path(beside), folder), reason=reason))
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
    if result.trial is not plan.trial and result.trial != plan.trial and result.trial.digest() != plan.trial.digest():
        return f"measured another configuration than the plan's: {_first_difference(result, plan)}"
    if plan.worker is not None and result.worker != plan.worker:
        return f"ran on {result.worker!r}, but the plan pins it to {plan.worker!r}"
    if (fault := validation.fault(result)) is not None:
        return fault
    if result.status is not TrialStatus.SUCCEEDED:
        return None
    if result.trial.kind in KINDS_WITH_STEPS:
        has_steps = result.metrics is not None and result.steps.step_time_sec
        return None if has_steps else "says SUCCEEDED but holds no measured step"
    return None if result.measurements else "says SUCCEEDED but holds no measurement"


def _missing(
    folder: Path,
    plans: dict[str, PlannedTrial],
    label_of: dict[str, str],
    results: dict[str, TrialResult],
    rejected: list[Rejected],
) -> list[Missing]:
    refused = {path.parent.name for one in rejected if (path := Path(one.file)).name == RESULT_FILE}
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


def _first_difference(result: TrialResult, plan: PlannedTrial) -> str:
    found, expected = result.trial.to_json(), plan.trial.to_json()
    labels = ("name", "reason", "suite")
    return next(
        f"{key} is {found[key]!r}, planned {expected[key]!r}"
        for key in expected
        if key not in labels and found[key] != expected[key]
    )


def _relative(path: Path, folder: Path) -> str:
    """As text that can be written as UTF-8: bytes that are none as escapes."""
    return path.relative_to(folder).as_posix().encode(errors="surrogateescape").decode(errors="backslashreplace")
