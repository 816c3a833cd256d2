"""A run's folder as tables: every result verified, and what cannot be used listed by file and reason.

Nothing is dropped silently. A planned trial is in exactly one place: among the results, or among the missing. A file
that may not be averaged in (damaged, foreign, not in the plan) is among the rejected.
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.records.layout import LEDGER_FILE, RESULT_FILE, RUN_FILE, TRIALS_FOLDER
from bench.records.result import End, Measurement, Steps, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.sealed import ResultError
from reports import text
from reports.read import fingerprint, measurements, starts
from reports.read.run import KINDS_WITH_STEPS, Configuration, Missing, Rejected, ReportError, Run, trials_frame


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
        trials=trials_frame(results, label_of),
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
        fault = steps_fault(steps)
        if fault is not None:
            return f"{phase}: {fault}"
    fault = measurements_fault(result.measurements)
    if fault is not None:
        return fault
    if result.status is not End.SUCCEEDED:
        return None
    if result.trial.kind in KINDS_WITH_STEPS:
        has_steps = result.metrics is not None and result.steps.step_time_sec
        return None if has_steps else "says SUCCEEDED but holds no measured step"
    return None if result.measurements else "says SUCCEEDED but holds no measurement"


def steps_fault(steps: Steps) -> str | None:
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


def measurements_fault(taken: Iterable[Measurement]) -> str | None:
    """What makes a record of measurements impossible, or None. NaN cannot come this far: JSON has no word for it."""
    for number, one in enumerate(taken, start=1):
        called = f"measurement {number}, {text.shorten(one.name, 60)!r},"
        if not one.name.strip():
            return f"measurement {number} has no name"
        spread = one.interval
        values = [one.value, *([] if spread is None else [spread.median, spread.low, spread.high])]
        known = [value for value in [*values, one.share_percent] if value is not None]
        if not all(map(math.isfinite, known)):
            return f"{called} is not a finite number"
        if one.name.endswith(measurements.NEVER_NEGATIVE) and min(known, default=0.0) < 0:
            what = (
                "a rate"
                if measurements.is_rate(one.name)
                else f"a value in {measurements.words_unit_scale(one.name)[1]}"
            )
            return f"{called} is {min(known):g}; {what} is not below 0"
        if spread is not None and (spread.low > spread.high or spread.n < 1):
            return f"{called} has the interval {spread.low:g} to {spread.high:g} over {spread.n} values"
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
