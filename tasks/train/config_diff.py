"""Settings that changed since a training was planned: an error, or applied with --changed.

Pure. Not covered: changed content of data files and model folder (`tasks.train.resume` has the workers check it).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import Trial
from bench.records.run import RunRecord
from bench.records.training import OTHER_SHAPE, Training, TrainingData
from bench.records.validation import settings_of
from tasks.errors import UsageError
from tasks.fleet.run_store import resume_command
from tasks.settings.load import Settings
from tasks.settings.renamed import translate_recorded
from tasks.train import trial_spec

# Settings without influence on the result: the current value always applies.
OPERATOR_SETTINGS = {"workers", "max_restarts", "replacement_timeout_sec", "elastic", "budget_usd", "max_hours"}
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


def diff(run: RunRecord, settings: Settings) -> list[SettingChange]:
    """List the settings that differ from the run's plan, in the order of the settings."""
    planned_settings, current_settings = translate_recorded(run.settings), settings.public()
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
    return [
        SettingChange(setting=name, planned=planned, current=current)
        for name, planned, current in values
        if planned != current
    ]


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
        trial_fields["data"], training_fields["data"] = new_trial.data, new_trial.training.data
        may_differ.add("data")
    if "model.path" in keys:
        trial_fields["model"] = new_trial.model
    training_fields["may_differ"] = tuple(sorted(may_differ))
    training_fields["revision"] = trial.training.revision + 1
    if {"model", "data"} & may_differ:
        training_fields["input_digests"] = {}
    with trial_spec.setting_errors():
        return dataclasses.replace(
            trial, **trial_fields, training=dataclasses.replace(trial.training, **training_fields)
        )
