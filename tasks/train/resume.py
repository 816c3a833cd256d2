"""`inv train --resume`: reattach to a training, or restart it from its last checkpoint.

It continues as planned. Changed settings and changed content of data or model are errors, field by field. With
--changed they are applied, and the ledger and the training's record list them. A training that has failed is resumed
unchanged with --retry-failed only.

Settings that changed since the plan are an error, or applied with --changed. Changed content of the data files and the
model folder is found by the workers.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.paths import LEDGER_FILE
from bench.records.run import RunRecord
from bench.records.status import TrialStatus
from bench.records.training import OTHER_SHAPE, Training, TrainingData
from bench.records.validation import settings_of
from remote.fleet.ledger import Entry, Ledger
from tasks.cli.answer import Answer, plan_answer
from tasks.cli.lock import acquire_lock
from tasks.clients.workers import fleet_hosts
from tasks.commands import TrainOptions
from tasks.errors import ConfirmationRequired, RetryableError, UsageError
from tasks.fleet import runner, trial_spec
from tasks.fleet.collect import collect_run
from tasks.fleet.declared import SETTING_NAMES, setting_errors
from tasks.fleet.gpu_faults import cordon_faulty_node
from tasks.fleet.k8s_training import is_job_active, is_k8s_training
from tasks.fleet.run_store import TRAIN, newest_training, open_run, resume_command
from tasks.fleet.trial_spec import TRIAL_ID
from tasks.settings.load import Settings
from tasks.train import forecast, init_adapter, submit_job
from tasks.train.session import TrainingSession, reachable_workers

# Settings without influence on the result: the current value always applies.
OPERATOR_SETTINGS = {
    *("workers", "max_restarts", "replacement_timeout_sec", "elastic", "budget_usd", "max_hours"),
}
DATA_SETTINGS = {setting.name for setting in settings_of(TrainingData).values()} | {
    *("data", "data_weights", "max_seq_len", "data.path")
}
TRIAL_FIELDS = {setting.name: field for field, setting in settings_of(Trial).items()}  # by setting, like the next
TRAINING_FIELDS = {setting.name: field for field, setting in settings_of(Training).items()}
FIXED_SETTINGS = {"lora_targets": OTHER_SHAPE} | {
    setting.name: setting.fixed
    for record in (Trial, Training)
    for setting in settings_of(record).values()
    if setting.fixed is not None
}


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A setting with its planned and its current value."""

    setting: str
    planned: Any
    current: Any

    @property
    def text(self) -> str:
        """One line for messages and the ledger."""
        return f"{self.setting}: {self.planned} as planned, {self.current} now"

    @property
    def key(self) -> str:
        """The setting's name without the section `train`; other sections stay."""
        return self.setting.removeprefix("train.")


def find_changes(run: RunRecord, settings: Settings) -> list[SettingChange]:
    """List the settings that differ from the run's plan, in the order of the settings."""
    planned_settings, current_settings = run.settings, settings.public()
    planned_train = planned_settings.get("train", {})
    names = [name for name in current_settings["train"] if name in planned_train and name not in OPERATOR_SETTINGS]
    values = [(f"train.{name}", planned_train[name], current_settings["train"][name]) for name in names]
    sections = [
        section
        for section in ("model", "data")
        if section in planned_settings and (section == "model" or not current_settings["train"]["data"])
    ]
    values += [
        (f"{section}.path", planned_settings[section]["path"], current_settings[section]["path"])
        for section in sections
    ]
    derived = _derived_values(run)
    return [
        SettingChange(setting=name, planned=planned, current=current)
        for name, planned, current in ((name, derived.get(name, planned), current) for name, planned, current in values)
        if planned != current and not (name in derived and current is None)  # without a value the plan's stays
    ]


def _derived_values(run: RunRecord) -> dict[str, Any]:
    """Return the plan's values of the settings that may be derived from the data, by name."""
    training = run.planned[0].trial.training
    if training is None:
        return {}
    values = {field: getattr(training, field, None) for field in trial_spec.DERIVED_FIELDS}
    if training.data.validation_file is None:
        values["validation_share"] = training.data.validation_share
    return {f"train.{SETTING_NAMES[field]}": value for field, value in values.items() if value is not None}


def raise_if_changed(run: RunRecord, changes: Sequence[SettingChange], *, is_allowed: bool) -> None:
    """Raise UsageError for changes if they are not allowed, and always for settings that cannot change."""
    if fixed := [change for change in changes if change.key in FIXED_SETTINGS]:
        reasons = "; ".join(f"{change.text} ({FIXED_SETTINGS[change.key]})" for change in fixed)
        raise UsageError(f"run {run.run_id}: {reasons}", remedy="restore the planned value, or start a new training")
    if changes and not is_allowed:
        texts = "; ".join(change.text for change in changes)
        raise UsageError(
            f"run {run.run_id}: {texts}",
            remedy="restore the planned values, or resume with the current settings: "
            f"`{resume_command(run)} --changed`",
        )


def apply_changes(
    trial: Trial, settings: Settings, changes: Sequence[SettingChange], extra_differences: Sequence[str]
) -> Trial:
    """Return the trial with the current value of each changed setting.

    `extra_differences` (`model`, `data`) may differ as well. Raises UsageError if the current settings are invalid.
    """
    new_trial = trial_spec.make_trial(settings, None, workers=trial.world_size, max_hours=None)
    if trial.training is None or new_trial.training is None:
        raise ValueError("only a training has a checkpoint to resume from")
    keys, trial_fields, training_fields = {change.key for change in changes}, dict[str, Any](), dict[str, Any]()
    may_differ = {*trial.training.may_differ, *extra_differences}
    for key in keys:
        if key in TRIAL_FIELDS:
            trial_fields[TRIAL_FIELDS[key]] = getattr(new_trial, TRIAL_FIELDS[key])
            may_differ.add(TRIAL_FIELDS[key])
        if key in TRAINING_FIELDS:
            name = TRAINING_FIELDS[key]
            training_fields[name] = getattr(new_trial.training, name)
            may_differ.add(f"training.{name}")
    if keys & DATA_SETTINGS:
        data, share = new_trial.training.data, trial.training.data.validation_share
        if share and "validation_share" in new_trial.training.derive:
            data = dataclasses.replace(data, validation_share=share)
        if "chat_template" not in keys:  # its file may have changed since it was read for the plan
            data = dataclasses.replace(data, chat_template=trial.training.data.chat_template)
        trial_fields["data"], training_fields["data"] = new_trial.data, data
        may_differ.add("data")
    if "model.path" in keys:
        trial_fields["model"] = new_trial.model
    training_fields["may_differ"] = tuple(sorted(may_differ))
    training_fields["revision"] = trial.training.revision + 1
    if {"model", "data"} & may_differ:
        training_fields["input_digests"] = {}
    with setting_errors():
        return dataclasses.replace(
            trial, **trial_fields, training=dataclasses.replace(trial.training, **training_fields)
        )


ALREADY_DONE = "succeeded, nothing to resume"


def resume(settings: Settings, name: str | None, options: TrainOptions) -> Answer | None:
    """Resume the training of this name, or the newest. Returns its state for a dry run."""
    run, folder = open_run(settings, name or newest_training(settings.results_folder))
    if run.suite != TRAIN or len(run.planned) != 1:
        raise UsageError(
            f"run {run.run_id} is not a training", remedy=f"resume it with `inv bench --resume={run.run_id}`"
        )
    if is_k8s_training(run):
        return _resume_k8s_training(settings, run, folder, options)
    if options.job:
        raise UsageError(f"train: --job: run {run.run_id} was started without --job", remedy="leave --job out")
    with runner.ledger_errors(run.run_id):
        ledger = (
            Ledger.create(folder / LEDGER_FILE, [TRIAL_ID]) if not options.dry_run else Ledger(folder / LEDGER_FILE)
        )
    if options.dry_run:
        return _describe_state(settings, run, ledger.entries.get(TRIAL_ID))
    command = f"train --resume (run {run.run_id})"
    with (
        acquire_lock(settings.results_folder, command, follows=run.run_id),
        runner.ledger_errors(run.run_id),
    ):
        session = TrainingSession.create(settings, run, folder, ledger, fleet_hosts(settings))
        if not (ledger.needs_work(TRIAL_ID) or _can_resume(ledger.entries[TRIAL_ID], options)):
            print(f"run {run.run_id}: nothing to resume")
            session.report_outcome()
            return None
        if not ledger.is_open(TRIAL_ID):
            _reopen(settings, session, options)
        else:
            _check_unchanged_plan(settings, session, options)
        session.wait(plain=options.plain)
    return None


def _can_resume(entry: Entry, options: TrainOptions) -> bool:
    """Check whether a failed training may restart: its last attempt was rejected, or a flag asks for it."""
    is_requested = options.changed or options.retry_failed
    return _was_rejected(entry) or (is_requested and entry.status is not TrialStatus.SUCCEEDED)


def _was_rejected(entry: Entry) -> bool:
    """Check whether the last attempt did not begin because of its input: data, model, a full disk."""
    cause = None if entry.outcome is None else entry.outcome.cause
    return cause is not None and cause.is_rejected


def _retry_note(entry: Entry, changes: Sequence[str]) -> list[str]:
    """Return the ledger's note on a restart after a failure without a known change: the reason of the failure."""
    has_failed = entry.status is not None and not entry.status.is_resumable
    return [f"retried after {entry.reason}"] if _was_rejected(entry) or (has_failed and not changes) else []


def _describe_state(settings: Settings, run: RunRecord, entry: Entry | None) -> Answer:
    """Return the state of the training and its changed settings, for --dry-run."""
    if entry is not None and entry.status is TrialStatus.SUCCEEDED:
        return plan_answer([f"run {run.run_id}: {ALREADY_DONE}"], run=run.run_id, state="succeeded", changes=[])
    state = "not started" if entry is None or not entry.attempts else "running" if entry.status is None else "ended"
    end = "" if entry is None or entry.status is None else f" as {entry.status.value}: {entry.reason}"
    changes = [change.text for change in find_changes(run, settings)]
    return plan_answer([*changes, f"run {run.run_id}: {state}{end}"], run=run.run_id, state=state, changes=changes)


def _check_unchanged_plan(settings: Settings, session: TrainingSession, options: TrainOptions) -> None:
    """Check that a running training can continue as planned, and print the settings that changed since the plan."""
    run = session.run
    for flag, is_set in (("--workers", options.workers is not None), ("--changed", options.changed)):
        if is_set:
            raise UsageError(f"train: {flag}: run {run.run_id} has not ended", remedy="stop it first with `inv cancel`")
    if missing_workers := [name for name in run.workers if name not in [host.name for host in session.hosts]]:
        raise UsageError(
            f"fleet.size: {settings.fleet.size}, but the training also runs on {missing_workers[0]}", remedy="raise it"
        )
    for change in find_changes(run, settings):
        print(f"{change.text}; the training continues as planned")


def _reopen(settings: Settings, session: TrainingSession, options: TrainOptions) -> None:
    """Reopen a stopped training with the current limits, and with other workers, settings or data if requested."""
    run, previous = session.run, session.trial
    changes = find_changes(run, settings)
    raise_if_changed(run, changes, is_allowed=options.changed)
    if settings.train.elastic:
        reachable = reachable_workers(session.hosts)
        session.hosts = [*reachable, *(host for host in session.hosts if host not in reachable)]
    hosts = session.hosts
    count = previous.world_size if options.workers is None else trial_spec.worker_count(settings, options.workers)
    if count > len(hosts):
        raise UsageError(
            f"fleet.size: the training has {count} workers, the fleet {len(hosts)}", remedy="pass --workers N"
        )
    trial = dataclasses.replace(previous, world_size=count)
    if changes:
        trial = apply_changes(trial, settings, changes, ())
    probe = forecast.probe_workers(settings, hosts[: count if options.changed else 1], trial)
    content_changes = _content_changes(run, trial.model, probe)
    if content_changes and not options.changed:
        raise ConfirmationRequired(
            f"run {run.run_id}: {next(iter(content_changes.values()))} since the training began",
            remedy="restore it, start a "
            f"new training, or resume with the current content: `{resume_command(run.run_id)} --changed`",
        )
    notes = [*(change.text for change in changes), *content_changes.values()]
    if options.changed:
        if not notes:
            raise UsageError(f"train: --changed: nothing has changed since run {run.run_id} was planned")
        trial = apply_changes(trial, settings, changes, [*content_changes])
        forecast.check_limits(settings, trial, probe)
        predicted = forecast.predict(settings, trial, probe)
        inputs = forecast.run_inputs(trial, probe, predicted)
        session.run = _updated_record(run, settings, inputs)
        for note in notes:
            print(f"changed: {note}")
    trial = forecast.pin_inputs(forecast.cap_steps(settings, trial, probe.device), probe)
    init_adapter.send_again(settings, trial, hosts[:count])
    notes += _retry_note(session.ledger.entries[TRIAL_ID], notes)
    if notes or trial != previous or session.run.workers != [host.name for host in hosts[:count]]:
        session.replan(trial, notes)
    else:
        session.ledger.reopen(TRIAL_ID)


def _content_changes(run: RunRecord, model: str, probe: forecast.ProbeResult) -> dict[str, str]:
    """Return a message for each input (`model`, `data`) whose content differs from the plan's."""
    inputs, changes = run.provenance.get("inputs", {}), dict[str, str]()
    planned_model = inputs.get("model", {})
    if planned_model.get("path", model) == model and planned_model.get("sha256") not in (
        None,
        probe.forecast.model_sha256,
    ):
        changes["model"] = f"the model at {model} has changed"
    planned_files = inputs.get("files", {})
    changed_files = [file.path for file in probe.data.files if planned_files.get(file.path) not in (None, file.sha256)]
    if changed_files:
        changes["data"] = f"{', '.join(changed_files)} has changed"
    return changes


def _updated_record(run: RunRecord, settings: Settings, inputs: dict[str, Any]) -> RunRecord:
    """Return the record with the current settings and inputs, so that later changes are compared with these."""
    public = settings.public()
    sections = {name: public[name] for name in ("train", "model", "data")}
    return dataclasses.replace(
        run,
        settings={**run.settings, **sections},
        provenance={**run.provenance, "inputs": {**run.provenance.get("inputs", {}), **inputs}},
    )


def _resume_k8s_training(settings: Settings, run: RunRecord, folder: Path, options: TrainOptions) -> Answer | None:
    """Submit another Job for a training that Kubernetes did not finish: its next turn."""
    run_id, job_command = run.run_id, resume_command(run)
    if not options.job or options.workers is not None:
        raise UsageError(
            f"run {run_id} runs as a Job with a fixed number of pods", remedy=f"resume it with `{job_command}`"
        )
    with runner.ledger_errors(run):
        if Ledger(folder / LEDGER_FILE).is_open(TRIAL_ID):
            if is_job_active(settings, run):
                raise RetryableError(
                    f"run {run_id}: its Job is still running", remedy=f"watch it with `inv monitor --run={run_id}`"
                )
            # If no pod is left to read the volume, the next pods read the state themselves.
            with contextlib.suppress(RetryableError):
                collect_run(settings, run, folder, [], may_be_open=True)
        ledger = Ledger(folder / LEDGER_FILE)
        entry = ledger.entries[TRIAL_ID]
        if entry.status is TrialStatus.SUCCEEDED:
            done = f"run {run_id}: {ALREADY_DONE}; `inv collect --run={run_id}` fetches the adapter"
            if options.dry_run:
                return plan_answer([done], run=run_id, state="succeeded", changes=[])
            print(done)
            return None
        if not (ledger.needs_work(TRIAL_ID) or _can_resume(entry, options)):
            end = "unknown" if entry.status is None else f"{entry.status.value}: {entry.reason}"
            raise UsageError(
                f"run {run_id}: it has ended as {end}",
                remedy=f"`{job_command} --retry-failed` retries it unchanged from its "
                "last checkpoint, --changed with the current settings",
            )
        changes = find_changes(run, settings)
        raise_if_changed(run, changes, is_allowed=options.changed)
        next_run = _next_turn(settings, run, entry, changes if options.changed else None)

        def on_accepted() -> None:
            next_run.write(folder)
            if entry.status is not None:
                notes = [change.text for change in changes]
                ledger.reopen(TRIAL_ID, [*notes, *_retry_note(entry, notes)])

        if settings.fleet.cordon and not options.dry_run:
            cordon_faulty_node(settings, run, folder)
        plan = submit_job.submit(settings, next_run, options, on_accepted)
    submit_job.print_submitted(run_id, options)
    return plan


def _next_turn(settings: Settings, run: RunRecord, entry: Entry, changes: Sequence[SettingChange] | None) -> RunRecord:
    """Return the plan of a Job's next turn. `changes` is None without --changed.

    With --changed, data and model may differ as well: no worker has checked them, and the pods' log lists differences.
    """
    (planned,), job = run.planned, run.provenance["inputs"]["job"]
    trial = planned.trial
    if changes is not None:
        trial = apply_changes(trial, settings, changes, ("model", "data"))
    if trial.training is not None:
        unlimited = dataclasses.replace(trial.training, max_hours=settings.train.max_hours)
        trial = forecast.cap_steps(settings, dataclasses.replace(trial, training=unlimited), "")
    last_attempt = max((attempt.number for attempt in entry.attempts), default=0)
    inputs = {"model": {"path": trial.model}, "job": {**job, "turn": job["turn"] + 1, "after": last_attempt}}
    next_run = dataclasses.replace(run, planned=[dataclasses.replace(planned, trial=trial)])
    return _updated_record(next_run, settings, inputs)
