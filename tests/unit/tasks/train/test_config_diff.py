"""Settings that changed since a training was planned: an error, field by field, or applied with --changed."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bench.records.run import PlannedTrial, RunRecord
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.settings.renamed import RENAMED
from tasks.train import config_diff, trial_spec
from tasks.train.trial_spec import TRIAL_ID
from tests.support.reports import synthetic


@pytest.fixture
def run(settings: Callable[..., Settings]) -> RunRecord:
    """A training with the defaults, as read from its file."""
    trial = trial_spec.make_trial(settings(), None, workers=2, max_hours=None)
    plan, public = PlannedTrial(trial_id=TRIAL_ID, trial=trial), json.loads(json.dumps(settings().public()))
    return synthetic.record(run_id="20260101-000000-train", suite="train", planned=[plan], settings=public)


def test_equal_settings_and_changed_limits_are_no_changes(run: RunRecord, settings: Any) -> None:
    assert config_diff.diff(run, settings()) == []
    assert (
        config_diff.diff(run, settings(max_hours=1.0, budget_usd=9.0, max_restarts=99, elastic=True, workers=1)) == []
    )


def test_unrequested_changes_are_an_error_with_the_command_that_applies_them(run: RunRecord, settings: Any) -> None:
    changes = config_diff.diff(run, settings(schedule="linear", learning_rate=0.001))
    with pytest.raises(UsageError) as error_info:
        config_diff.raise_if_changed(run, changes, is_allowed=False)
    message = str(error_info.value)
    assert [change.text in message for change in changes] == [True, True]
    assert "train.learning_rate: 0.0002 as planned, 0.001 now" in message
    assert f"`inv train --resume={run.run_id} --changed`" in message
    config_diff.raise_if_changed(run, changes, is_allowed=True)


@pytest.mark.parametrize(
    ("train", "change", "field"),
    [
        ({"lora_rank": 8}, "train.lora_rank: 16 as planned, 8 now", "lora_rank"),
        ({"lora_alpha": 16}, "train.lora_alpha: 32 as planned, 16 now", "lora_alpha"),
        (
            {"optimizer": "paged_adamw_8bit"},
            "train.optimizer: adamw_torch as planned, paged_adamw_8bit now",
            "optimizer",
        ),
    ],
)
def test_changes_that_no_checkpoint_survives_are_always_an_error_with_the_reason(
    run: RunRecord, settings: Any, train: dict[str, Any], change: str, field: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{change} ({config_diff.FIXED_SETTINGS[field]})")):
        config_diff.raise_if_changed(run, config_diff.diff(run, settings(**train)), is_allowed=True)


def test_requested_changes_are_applied_and_nothing_else(run: RunRecord, settings: Any) -> None:
    before = run.planned[0].trial
    now = settings(learning_rate=0.001, schedule="linear", data=["other.jsonl"], max_seq_len=256)
    changed = config_diff.apply_changes(before, now, config_diff.diff(run, now), ["model"])
    assert changed.training is not None
    assert (changed.learning_rate, changed.max_seq_len, changed.data) == (0.001, 256, "other.jsonl")
    assert (changed.training.schedule, changed.training.data.files) == ("linear", ["other.jsonl"])
    assert changed.training.may_differ == ("data", "learning_rate", "max_seq_len", "model", "training.schedule")
    assert changed.training.revision == 1
    restored = dataclasses.replace(
        changed.training,
        may_differ=(),
        schedule="cosine",
        revision=0,
        data=before.training.data if before.training else None,
    )
    assert (
        dataclasses.replace(changed, learning_rate=2e-4, max_seq_len=512, data=before.data, training=restored) == before
    )


@pytest.mark.parametrize(("differences", "are_kept"), [((), True), (("data",), False), (("model",), False)])
def test_a_confirmed_change_of_an_input_drops_the_planned_digests(
    run: RunRecord, settings: Any, differences: tuple[str, ...], are_kept: bool
) -> None:
    before, digests = run.planned[0].trial, {"data.jsonl": "0" * 64}
    assert before.training is not None
    before = dataclasses.replace(before, training=dataclasses.replace(before.training, input_digests=digests))
    now = settings(learning_rate=0.001)
    changed = config_diff.apply_changes(before, now, config_diff.diff(run, now), differences)
    assert changed.training is not None
    assert changed.training.input_digests == (digests if are_kept else {})


def test_a_plan_with_old_names_of_settings_is_compared_under_todays(run: RunRecord, settings: Any) -> None:
    old_names = {new[1]: old[1] for old, new in RENAMED.items() if old[0] == new[0] == "train"}
    train = {old_names.get(name, name): value for name, value in run.settings["train"].items()}
    old_run = dataclasses.replace(run, settings={**run.settings, "train": {**train, "patience": 3, "wait": 9.0}})
    (change,) = config_diff.diff(old_run, settings())
    assert (change.setting, change.planned, change.current) == ("train.early_stopping_patience", 3, 0)


def test_every_setting_of_a_training_can_be_changed_or_is_fixed(settings: Any) -> None:
    every = set(settings().public()["train"]) - config_diff.OPERATOR_SETTINGS
    assert every == config_diff.DATA_SETTINGS - {"data.path"} | {
        *config_diff.TRIAL_FIELDS, *config_diff.TRAINING_FIELDS, "lora_targets",
    }  # fmt: skip
    assert set(config_diff.FIXED_SETTINGS) <= every
