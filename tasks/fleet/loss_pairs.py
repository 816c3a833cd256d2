"""Held-out losses of configurations against the reference: pairs of short trainings on the user's data.

`inv bench --quality` compares the fastest configuration with the reference before it names it. If it is not shown to
be at the same loss, the next fastest is compared. The trainings of a comparison are an ordinary run; an undecided one
goes on with a larger quality.pairs. The losses are in quality.json of the run whose configurations are compared, from
which the command resumes.
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
from reports.statistics.paired_losses import MAX_PAIRS, pairs_needed
from reports.summary.loss_verdicts import difference_of, verdict_of
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
HELD_OUT_SHARE = 0.2  # at least: a pair is evaluated on its part of it
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
    while (comparison := _undecided(settings, record) or next_comparison(folder, record)) is not None:
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


def _undecided(settings: Settings, record: QualityRecord | None) -> Comparison | None:
    """Return an undecided comparison of the record that had fewer pairs than the settings ask for."""
    for check in () if record is None else record.checks:
        if check.planned_pairs < settings.quality.pairs and verdict_of(record, check.trial) == "undecided":
            return Comparison(label=check.label, trial=check.trial, reference=check.reference)
    return None


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
        check = _plan(settings, hosts, folder, record, comparison)
        record = record.with_check(check)
    try:
        runner.act(plan_fleet(settings, *open_run(settings, check.run_ids[-1]), hosts))
    except SomeTrialsFailed as error:
        print(error)
    check = _finish(settings, record, check)
    record = record.with_check(check)
    record.write(folder)
    print(escape_controls(_outcome(record, check)))
    return record


def _outcome(record: QualityRecord, check: LossCheck) -> str:
    """Return one line: what is shown of a configuration, and how many pairs would decide it."""
    difference, margin, verdict = difference_of(check), record.max_increase_percent, verdict_of(record, check.trial)
    shown = {
        "same": "at the same loss as the reference",
        "worse": f"more than {margin:g} % above the reference",
    }.get(verdict, "undecided, so not at the same loss as the reference")
    line = f"{check.label}: {shown} ({difference_text(check)})"
    if verdict != "undecided" or difference is None or check.planned_pairs >= MAX_PAIRS:
        return line
    needed = max(check.planned_pairs + 1, pairs_needed(difference.sd, margin))
    return f"{line}; to compare more pairs, set quality.pairs to {needed} and resume the command"


def _plan(
    settings: Settings, hosts: Sequence[Host], folder: Path, record: QualityRecord, comparison: Comparison
) -> LossCheck:
    """Write the plan of the trainings that are missing, and name its run in the record before any of them starts."""
    check, pairs = record.find(comparison.trial), settings.quality.pairs
    done, seed = (check.planned_pairs, min(pair.seed for pair in check.pairs)) if check else (0, settings.bench.seed)
    arms = [training_arm(settings, comparison, seed + number, pairs) for number in range(done, pairs)]
    known = {result.trial.digest() for result in _all_results(settings, record)}
    references = [reference_arm(arm, comparison.reference) for arm in arms]
    trials = [trial for trial in (*references, *arms) if trial.digest() not in known]
    print(escape_controls(f"comparing the held-out loss of {comparison.label}: {len(trials)} short trainings"))
    names = [host.name for host in hosts]
    planned = divide_trials(trials, names)
    run = new_record(settings, QUALITY.name, planned, names, inputs={"quality_of": folder.name})
    run = runner.write_plan(settings.results_folder, run, is_newest=False)  # the newest one is the benchmark
    check = LossCheck(
        label=comparison.label,
        trial=comparison.trial,
        reference=comparison.reference,
        run_ids=[*(check.run_ids if check else []), run.run_id],
        planned_pairs=pairs,
    )
    record.with_check(check).write(folder)
    return check


def _finish(settings: Settings, record: QualityRecord, check: LossCheck) -> LossCheck:
    """Return the comparison with its pairs. Raises RetryableError if a resumed run may add some."""
    results, newest = list(_all_results(settings, record)), check.run_ids[-1]
    losses = {result.trial.digest(): loss for result in results if (loss := _loss(result)) is not None}
    pairs = []
    for arm in (result.trial for result in results if result.run_id in check.run_ids):
        reference = losses.get(reference_arm(arm, check.reference).digest())
        if loss_fields(arm) == loss_fields(check.trial) and reference is not None and arm.digest() in losses:
            pairs.append(LossPair(seed=arm.seed, reference=reference, loss=losses[arm.digest()]))
    with runner.ledger_errors(newest):
        entries = Ledger(settings.results_folder / newest / LEDGER_FILE).entries
    if not entries or any(entry.status is None or entry.status.is_external for entry in entries.values()):
        raise RetryableError(f"run {newest}: its trainings have not ended")
    if len(pairs) > 1:
        return dataclasses.replace(check, pairs=sorted(pairs, key=lambda pair: pair.seed))
    failed = ((name, entry) for name, entry in entries.items() if entry.status is not TrialStatus.SUCCEEDED)
    reasons = (f"{name}: {entry.status.value}: {entry.reason}" for name, entry in failed if entry.status)
    return dataclasses.replace(check, reason=next(reasons, "its trainings were of other settings"))


def _all_results(settings: Settings, record: QualityRecord) -> Iterable[TrialResult]:
    """Yield the results of all trainings of a record."""
    for run_id in (run_id for check in record.checks for run_id in check.run_ids):
        for path in sorted((settings.results_folder / run_id / TRIALS_FOLDER).glob(f"*/{RESULT_FILE}")):
            with translate_errors(ConfirmationRequired, ResultError, remedy=f"remove {path}, then resume the command"):
                yield TrialResult.read(path)


def _loss(result: TrialResult) -> float | None:
    values = [each.value for each in result.measurements if each.name == LOSS]
    return values[-1] if values and result.status is TrialStatus.SUCCEEDED else None
