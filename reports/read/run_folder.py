"""Loading of a run's folder: verifies every result, and lists unusable files with the reason.

Nothing is dropped silently. Each planned trial is either a result or missing. A file that must not be averaged in
(damaged, of another run, not in the plan) is rejected.
"""

import os
from collections import Counter
from pathlib import Path

from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, QUALITY_FILE, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.quality import QualityRecord
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import TrialStatus
from reports.read import attempts, impossible_values, measurements, worker_fingerprints
from reports.read.loaded_run import Configuration, Missing, Rejected, ReportError, Run


def load(folder: Path) -> Run:
    """Read `folder` (results/<run-id>). Raises ReportError if its run.json is invalid."""
    try:
        record = RunRecord.read(folder / RUN_FILE)
    except ResultError as error:
        exists = (folder / RUN_FILE).exists()
        hint = "a report needs the run's plan" if exists else "expected a run's folder, results/<run-id>"
        raise ReportError.from_error(error, remedy=hint) from error
    if not record.planned:
        raise ReportError(f"{folder / RUN_FILE}: the plan has no trial", remedy="there is nothing to report")
    twice = [trial_id for trial_id, times in Counter(plan.trial_id for plan in record.planned).items() if times > 1]
    if twice:
        raise ReportError(f"{folder / RUN_FILE}: plans trial {twice[0]!r} more than once")
    configurations = _configurations(record)
    label_of = {
        plan.trial_id: configuration.label for configuration in configurations for plan in configuration.planned
    }
    plans = {plan.trial_id: plan for plan in record.planned}
    results, rejected = _read_results(folder, record, plans)
    # A record by `inv collect` may be of a trial that was cancelled before it started.
    own = [each for each in results.values() if each.written_by != "collect"]
    try:
        fault = attempts.ledger_fault(folder, [(result.trial_id, result.attempt) for result in own])
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    rejected += [] if fault is None else [Rejected(file=LEDGER_FILE, reason=fault)]
    quality = None
    if os.path.lexists(folder / QUALITY_FILE):
        try:
            quality = QualityRecord.read(folder / QUALITY_FILE)
        except ResultError as error:
            rejected.append(Rejected(file=QUALITY_FILE, reason=str(error).removeprefix(f"{folder / QUALITY_FILE}: ")))
    if (reason := _misleading_reason(record, results)) is not None:
        results = {trial_id: measurements.without_misleading(result, reason) for trial_id, result in results.items()}
    return Run(
        folder=folder,
        record=record,
        configurations=configurations,
        results=tuple(results[trial_id] for trial_id in plans if trial_id in results),
        label_of=label_of,
        rejected=tuple(rejected),
        missing=tuple(_missing(folder, plans, label_of, results, rejected)),
        quality=quality,
    )


def _misleading_reason(record: RunRecord, results: dict[str, TrialResult]) -> str | None:
    """Return why a percentage of the hardware's peak would be misleading in this run, or None."""
    if record.profile == "tiny":
        return "not shown for profile tiny: its model is too small to measure a chip"
    if worker_fingerprints.describe_hosts(record, results.values()).contention is not None:
        return "not shown: the workers share too few cores"
    return None


def _configurations(record: RunRecord) -> tuple[Configuration, ...]:
    groups: dict[tuple[str, str], list[PlannedTrial]] = {}
    digests: dict[int, str] = {}  # the copies of a trial for each worker are one object
    for plan in record.planned:
        digest = digests.get(id(plan.trial)) or digests.setdefault(id(plan.trial), plan.trial.digest())
        groups.setdefault((plan.trial.name, digest), []).append(plan)
    uses = Counter(name for name, _ in groups)
    # Configurations with equal names would be merged in every table, so their labels include the digest.
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
        with os.scandir(trials) as entries:
            is_link = {entry.name: entry.is_symlink() for entry in entries}
    except FileNotFoundError:
        return results, rejected
    except OSError as error:
        raise ReportError(f"{trials}: cannot be read: {error.strerror}") from error
    for name in sorted(is_link):
        path = Path(f"{trials}/{name}/{RESULT_FILE}")  # joining 10,000 Path objects takes a second
        if not os.path.lexists(path):
            if name not in plans:
                file = _relative_path(path.parent, folder)
                rejected.append(Rejected(file=file, reason="not a trial of this run's plan"))
            continue
        if is_link[name]:
            link = "its folder is a symbolic link, so its files may be another run's"
            rejected.append(Rejected(file=_relative_path(path, folder), reason=link))
            continue
        try:
            result = TrialResult.read(path)
        except ResultError as error:
            # The path is removed from the reason, because the row already names the file.
            rejected.append(Rejected(file=_relative_path(path, folder), reason=str(error).removeprefix(f"{path}: ")))
            continue
        if (reason := _rejection_reason(result, name, record, plans)) is not None:
            rejected.append(Rejected(file=_relative_path(path, folder), reason=reason))
            continue
        results[result.trial_id] = result
    return results, rejected


def _rejection_reason(
    result: TrialResult, folder_name: str, record: RunRecord, plans: dict[str, PlannedTrial]
) -> str | None:
    """Return why a record with a valid checksum still must not be averaged in, or None."""
    if result.trial_id != folder_name:
        return f"holds trial {result.trial_id!r}, but is in the folder of {folder_name!r}"
    if result.run_id != record.run_id:
        return f"belongs to run {result.run_id!r}, not to {record.run_id!r}"
    plan = plans.get(result.trial_id)
    if plan is None:
        return f"trial {result.trial_id!r} is not in this run's plan"
    if result.trial is not plan.trial and result.trial != plan.trial and result.trial.digest() != plan.trial.digest():
        return f"measured another configuration than planned: {_first_difference(result, plan)}"
    if result.worker != plan.worker:
        return f"ran on {result.worker!r}, but was planned for {plan.worker!r}"
    if (fault := impossible_values.result_fault(result)) is not None:
        return fault
    if result.status is not TrialStatus.SUCCEEDED:
        return None
    if result.trial.workload.has_steps:
        has_steps = result.metrics is not None and result.steps.step_time_sec
        return None if has_steps else "status is SUCCEEDED, but it has no measured step"
    return None if result.measurements else "status is SUCCEEDED, but it has no measurement"


def _missing(
    folder: Path,
    plans: dict[str, PlannedTrial],
    label_of: dict[str, str],
    results: dict[str, TrialResult],
    rejected: list[Rejected],
) -> list[Missing]:
    refused = {path.parent.name for entry in rejected if (path := Path(entry.file)).name == RESULT_FILE}
    missing = []
    for trial_id, plan in plans.items():
        if trial_id in results:
            continue
        if trial_id in refused:
            reason = "its result was rejected"
        elif (folder / TRIALS_FOLDER / trial_id).is_dir():
            reason = f"its folder has no {RESULT_FILE}"
        else:
            reason = "nothing was collected"
        missing.append(Missing(trial_id=trial_id, configuration=label_of[trial_id], worker=plan.worker, reason=reason))
    return missing


def _first_difference(result: TrialResult, plan: PlannedTrial) -> str:
    measured, expected = result.trial.to_json(), plan.trial.to_json()
    labels = ("name", "reason", "suite")
    return next(
        f"{key} is {measured[key]!r}, planned {expected[key]!r}"
        for key in expected
        if key not in labels and measured[key] != expected[key]
    )


def _relative_path(path: Path, folder: Path) -> str:
    """Return the relative path as text; bytes that are not valid UTF-8 are escaped."""
    return path.relative_to(folder).as_posix().encode(errors="surrogateescape").decode(errors="backslashreplace")
