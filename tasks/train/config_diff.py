"""What is set now and was not when a training was planned: refused, or with --changed taken over by the training.

Pure. Not covered: data files and a model folder whose content is another one (`tasks.train.train` asks the workers).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.records import Trial, TrialError
from bench.records.run import RunRecord
from bench.records.training import FIXED
from tasks.errors import UsageError, translate_errors
from tasks.fleet.run_store import resume_command
from tasks.settings.load import Settings
from tasks.train import trial_spec

# What decides nothing that a training computes, and counts as it is now.
OF_THE_FOLLOWING = {"workers", "max_restarts", "wait", "elastic", "budget_usd", "max_hours"}
OF_THE_DATA = {"data", "weights", "labels", "too_long", "max_seq_len", "validation", "validation_file", "data.path"}
FIXED_SETTINGS = {name.removeprefix("training."): why for name, why in FIXED.items()}


@dataclass(frozen=True, kw_only=True)
class SettingChange:
    """A setting with its value in the plan and now."""

    setting: str
    was: Any
    now: Any

    @property
    def words(self) -> str:
        return f"{self.setting}: {self.was} as planned, {self.now} now"

    @property
    def key(self) -> str:
        """The setting's name within its section; with the section where that is not `train`."""
        return self.setting.removeprefix("train.")


def diff(run: RunRecord, settings: Settings) -> list[SettingChange]:
    """What is set otherwise than when the run was planned, in the order of the settings."""
    before, now = run.settings, settings.public()
    train = before.get("train", {})
    names = [name for name in train if name in now["train"] and name not in OF_THE_FOLLOWING]
    pairs = [(f"train.{name}", train[name], now["train"][name]) for name in names]
    sections = [one for one in ("model", "data") if one in before and (one == "model" or not now["train"]["data"])]
    pairs += [(f"{section}.path", before[section]["path"], now[section]["path"]) for section in sections]
    return [SettingChange(setting=name, was=was, now=is_now) for name, was, is_now in pairs if was != is_now]


def raise_if_changed(run: RunRecord, changes: Sequence[SettingChange], *, asked: bool) -> None:
    """Raises UsageError for changes that nobody asked for, and for those that no training survives."""
    if fixed := [change for change in changes if change.key in FIXED_SETTINGS]:
        why = "; ".join(f"{one.words} ({FIXED_SETTINGS[one.key]})" for one in fixed)
        raise UsageError(f"run {run.run_id}: {why}; put it back, or begin a new training")
    if changes and not asked:
        raise UsageError(
            f"run {run.run_id}: {'; '.join(change.words for change in changes)}; put it back, or go on with what is set now: "
            f"`{resume_command(run.run_id)} --changed`"
        )


def apply_changes(trial: Trial, settings: Settings, changes: Sequence[SettingChange], further: Sequence[str]) -> Trial:
    """The trial with what is set now, for the `changes` alone; `further` may differ too: `model`, `data`.

    Raises UsageError where the settings of now make no trial.
    """
    fresh = trial_spec.trial_of(settings, None, workers=trial.world_size, max_hours=None)
    if trial.training is None or fresh.training is None:
        raise ValueError("only a training goes on from a checkpoint")
    keys, own, training = {change.key for change in changes}, dict[str, Any](), dict[str, Any]()
    may_differ = {*trial.training.may_differ, *further}
    for key in keys:
        if key in trial_spec.OF_THE_TRIAL:
            own[key] = getattr(fresh, key)
            may_differ.add(key)
        if key in trial_spec.OF_THE_TRAINING:
            training[key] = getattr(fresh.training, key)
            may_differ.add(f"training.{key}")
    if keys & OF_THE_DATA:
        own["data"], training["data"] = fresh.data, fresh.training.data
        may_differ.add("data")
    if "model.path" in keys:
        own["model"] = fresh.model
    training["may_differ"] = tuple(sorted(may_differ))
    with translate_errors(UsageError, TrialError, before="train."):
        return dataclasses.replace(trial, **own, training=dataclasses.replace(trial.training, **training))
