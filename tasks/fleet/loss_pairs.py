"""Held-out losses of configurations against the reference: pairs of short trainings on the user's data.

`inv bench --quality` compares the fastest configuration with the reference before it names it. If it is not shown to
be at the same loss, the next fastest is compared. A comparison has two stages, each of whose trainings are an ordinary
run: the deviation between the pairs of the first decides how many pairs the second has. The losses are in quality.json
of the run whose configurations are compared, from which the command resumes.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records import Trial
from bench.records.checksummed import ResultError
from bench.records.paths import LEDGER_FILE, QUALITY_FILE, RESULT_FILE, TRIALS_FOLDER
from bench.records.quality import LossCheck, LossPair, QualityRecord, loss_fields, reference_of
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from bench.records.training import Training
from bench.records.trial import FAST_ONLY_FIELDS
from bench.records.workloads import QUALITY
from remote.fleet.ledger import Ledger
from remote.hosts.host_protocol import Host
from reports.read.loaded_run import ReportError
from reports.read.run_folder import load
from reports.statistics.paired_losses import pairs_needed, pairs_of_both_stages
from reports.summary.loss_verdicts import first_difference_of, verdict_of
from reports.summary.sentences import difference_text
from reports.summary.summarize import summarize
from tasks.errors import (
    ConfirmationRequired,
    RetryableError,
    SomeTrialsFailed,
    UsageError,
    escape_controls,
    translate_errors,
)
from tasks.fleet import runner, trial_spec
from tasks.fleet.plan import divide_trials, new_record, plan_fleet
from tasks.fleet.run_store import open_run
from tasks.settings.layers import Settings

LOSS = "held_out_loss_nats"
PAIR_SD_PERCENT = 0.05  # assumed before stage 1 has measured it (docs/measurements.md)
HELD_OUT_SHARE = 0.2  # at least: a pair is evaluated on its part of it
MAX_PAIRS_SETTING = 100  # the largest quality.max_pairs
MAX_ROW_TOKENS = 4096  # longer rows might not fit into memory with the reference
EPOCHS = 1000.0  # the number of steps ends a training, also on little data
# Settings of the section train that these trainings share with `inv train`.
TRAINING_FIELDS = ("rows_per_step", "schedule", "warmup_share", "weight_decay", "max_gradient_norm")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A configuration to compare with `reference`."""

    label: str
    trial: Trial
    reference: Trial


def compare_run(settings: Settings, folder: Path, hosts: Sequence[Host]) -> None:
    """Compare the recommended configuration of a benchmark with the reference, then the next, until one is at its loss.

    Raises UsageError for a run that cannot be read, ConfirmationRequired for a damaged record, and the errors of a run.
    """
    record = read_record(folder)
    if record is not None:  # comparisons whose trainings failed are repeated
        record = dataclasses.replace(record, checks=[check for check in record.checks if check.reason is None])
    while (comparison := _next_stage(settings, record) or next_comparison(folder, record)) is not None:
        record = _compare(settings, hosts, folder, record, comparison)


def read_record(folder: Path) -> QualityRecord | None:
    """Read a run's record; None without one. Raises ConfirmationRequired if it is damaged."""
    if not (folder / QUALITY_FILE).exists():
        return None
    with translate_errors(ConfirmationRequired, ResultError, remedy="remove it to compare the losses again"):
        return QualityRecord.read(folder / QUALITY_FILE)


def next_comparison(folder: Path, record: QualityRecord | None) -> Comparison | None:
    """Return the comparison of the configuration that a run recommends; None if it was compared, or has none."""
    with translate_errors(UsageError, ReportError):
        summary = summarize(load(folder))
    row, baseline = summary.best_row, next((row.trial for row in summary.rows if row.is_baseline), None)
    if row is None or baseline is None or summary.recommended_label is None:
        print(f"run {folder.name} recommends no configuration: no loss is compared")
        return None
    reference = reference_of(baseline, row.trial)
    if loss_fields(row.trial) == loss_fields(reference):
        print(escape_controls(f"{row.label} trains as the reference does: it has no loss to compare"))
    elif verdict_of(record, row.trial) == "unknown":
        return Comparison(label=row.label, trial=row.trial, reference=reference)
    return None


def _next_stage(settings: Settings, record: QualityRecord | None) -> Comparison | None:
    """Return a comparison of the record that needs more pairs than were planned, within quality.max_pairs."""
    if record is None:
        return None
    for check in record.checks:
        if _pairs_wanted(settings, record, check) > check.planned_pairs:
            return Comparison(label=check.label, trial=check.trial, reference=check.reference)
    return None


def _pairs_wanted(settings: Settings, record: QualityRecord, check: LossCheck) -> int:
    """Return the number of pairs that the deviation in stage 1 asks for, within the budget.

    It does not depend on the difference, which would raise the share of false claims. What stage 2 has decided is not
    compared again.
    """
    first = first_difference_of(check)
    if first is None or (check.more_run_ids and verdict_of(record, check.trial) != "undecided"):
        return 0
    return pairs_of_both_stages(first, record.max_increase_percent, settings.quality.max_pairs)


def planned_pairs(settings: Settings) -> int:
    """Return the number of pairs of stage 1."""
    enough = pairs_needed(PAIR_SD_PERCENT, settings.quality.max_increase_percent)
    return settings.quality.pairs or min(enough, settings.quality.max_pairs)


def training_arm(settings: Settings, comparison: Comparison, seed: int, pairs: int) -> Trial:
    """Return the short training of a configuration. Raises UsageError that names a setting of the section train."""
    configuration = trial_spec.with_training_row(settings, comparison.trial)
    trial_spec.check_trial(settings, configuration, f"quality: {comparison.label}")
    trial = trial_spec.make_trial(settings, 1, configuration)
    training = trial_spec.training_of(trial)
    data = training.data
    if data.validation_file is None:
        data = dataclasses.replace(data, validation_share=max(HELD_OUT_SHARE, data.validation_share))
    rows = max(1, min(trial.micro_batch_size, MAX_ROW_TOKENS // trial.max_seq_len))
    return dataclasses.replace(
        trial,
        name=f"{comparison.trial.trial_id[:60]}-{seed}",
        reason=f"held-out loss after {settings.quality.steps} steps",
        suite=QUALITY.name,
        kind=QUALITY.name,
        micro_batch_size=rows,
        seed=seed,
        held_out_parts=pairs,
        deadline_sec=QUALITY.deadline_sec,
        training=Training(
            data=data,
            max_steps=settings.quality.steps,
            epochs=EPOCHS,
            **{name: getattr(training, name) for name in TRAINING_FIELDS},
        ),
    )


def reference_arm(arm: Trial, reference: Trial) -> Trial:
    """Return the reference's training on the same rows and held-out examples."""
    fields = {name: getattr(Trial, name) for name in FAST_ONLY_FIELDS} | loss_fields(reference)
    return dataclasses.replace(arm, name=f"reference-{arm.seed}", gradient_checkpointing=True, **fields)


def _compare(
    settings: Settings,
    hosts: Sequence[Host],
    folder: Path,
    record: QualityRecord | None,
    comparison: Comparison,
) -> QualityRecord:
    """Run or resume one comparison and write its losses into the record."""
    record = record or QualityRecord(
        max_increase_percent=settings.quality.max_increase_percent, steps=settings.quality.steps
    )
    check = record.find(comparison.trial)
    if check is None or check.is_complete:
        check = _plan_stage(settings, hosts, folder, record, comparison)
        record = record.with_check(check)
    try:
        runner.act(plan_fleet(settings, *open_run(settings, check.run_ids[-1]), hosts))
    except SomeTrialsFailed as error:
        print(error)
    check = _finish(settings, record, check)
    record = record.with_check(check)
    record.write(folder)
    print(escape_controls(_outcome(settings, record, check)))
    return record


def _outcome(settings: Settings, record: QualityRecord, check: LossCheck) -> str:
    """Return one line: what a stage has shown of a configuration, and what follows."""
    first, margin, planned = first_difference_of(check), record.max_increase_percent, check.planned_pairs
    shown = {
        "same": "at the same loss as the reference",
        "worse": f"more than {margin:g} % above the reference",
    }.get(verdict_of(record, check.trial), "undecided, so not at the same loss as the reference")
    line = f"{check.label}: {shown} ({difference_text(check)})"
    if first is None:
        return line
    if (wanted := _pairs_wanted(settings, record, check)) > planned:
        return f"{line}; the deviation of {first.sd:.2g} % between {planned} pairs needs {wanted - planned} more"
    needed = pairs_of_both_stages(first, margin, MAX_PAIRS_SETTING)
    if shown.startswith("undecided") and needed > planned:
        line += f"; to compare {needed - planned} pairs more, set quality.max_pairs to {needed} and resume the command"
    return line


def _plan_stage(
    settings: Settings, hosts: Sequence[Host], folder: Path, record: QualityRecord, comparison: Comparison
) -> LossCheck:
    """Write the plan of a stage's trainings, and name its run in the record before any of them starts."""
    check = record.find(comparison.trial)
    if check is None:
        done, seed, pairs = 0, settings.bench.seed, planned_pairs(settings)
    else:
        done, seed = check.planned_pairs, min(pair.seed for pair in check.pairs)
        pairs = _pairs_wanted(settings, record, check)
    parts = max(pairs, settings.quality.max_pairs)
    arms = [training_arm(settings, comparison, seed + number, parts) for number in range(done, pairs)]
    known = {result.trial.digest() for result in _all_results(settings, record)}
    references = [reference_arm(arm, comparison.reference) for arm in arms]
    trials = [trial for trial in (*references, *arms) if trial.digest() not in known]
    print(escape_controls(f"comparing the held-out loss of {comparison.label}: {len(trials)} short trainings"))
    names = [host.name for host in hosts]
    planned = divide_trials(trials, names)
    run = new_record(settings, QUALITY.name, planned, names, inputs={"quality_of": folder.name})
    run = runner.write_plan(settings.results_folder, run, is_newest=False)  # the newest one is the benchmark
    if check is None:
        trial, reference = comparison.trial, comparison.reference
        check = LossCheck(
            label=comparison.label, trial=trial, reference=reference, run_id=run.run_id, planned_pairs=pairs
        )
    else:
        more = [*check.more_run_ids, run.run_id]
        check = dataclasses.replace(check, pairs=[], more_run_ids=more, planned_pairs=pairs)
    record.with_check(check).write(folder)
    return check


def _finish(settings: Settings, record: QualityRecord, check: LossCheck) -> LossCheck:
    """Return the comparison with its pairs. Raises RetryableError if a resumed run may add some."""
    results = list(_all_results(settings, record))
    losses = {result.trial.digest(): loss for result in results if (loss := _loss(result)) is not None}
    pairs, newest, has_new = [], check.run_ids[-1], False
    for run_id, arm in ((result.run_id, result.trial) for result in results if result.run_id in check.run_ids):
        reference = losses.get(reference_arm(arm, check.reference).digest())
        if loss_fields(arm) == loss_fields(check.trial) and reference is not None and arm.digest() in losses:
            stage = 1 if run_id == check.run_id else 2
            pairs.append(LossPair(seed=arm.seed, reference=reference, loss=losses[arm.digest()], stage=stage))
            has_new = has_new or run_id == newest
    compared = dataclasses.replace(check, pairs=sorted(pairs, key=lambda pair: pair.seed))
    if has_new and len(pairs) > 1:
        return compared
    with runner.ledger_errors(newest):
        entries = Ledger(settings.results_folder / newest / LEDGER_FILE).entries
    if not entries or any(entry.status is None or entry.status.is_external for entry in entries.values()):
        raise RetryableError(f"run {newest}: its trainings have not ended")
    if len(pairs) > 1:
        return compared
    unsuccessful = {name: entry for name, entry in entries.items() if entry.status is not TrialStatus.SUCCEEDED}
    reason = "its trainings were of other settings"
    for name, entry in list(unsuccessful.items())[:1]:
        reason = f"{name} ended {entry.status.value if entry.status else 'unknown'}: {entry.reason}"
    return dataclasses.replace(check, reason=reason)


def _all_results(settings: Settings, record: QualityRecord) -> Iterable[TrialResult]:
    """Yield the results of all trainings of a record."""
    for run_id in (run_id for check in record.checks for run_id in check.run_ids):
        for path in sorted((settings.results_folder / run_id / TRIALS_FOLDER).glob(f"*/{RESULT_FILE}")):
            with translate_errors(ConfirmationRequired, ResultError, remedy=f"remove {path}, then resume the command"):
                yield TrialResult.read(path)


def _loss(result: TrialResult) -> float | None:
    values = [each.value for each in result.measurements if each.name == LOSS]
    return values[-1] if values and result.status is TrialStatus.SUCCEEDED else None
