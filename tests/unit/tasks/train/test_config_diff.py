"""What is set otherwise than when a training was planned: refused field by field, or taken over as asked."""

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from bench.records.run import PlannedTrial, RunRecord
from bench.records.training import FIXED
from tasks.errors import UsageError
from tasks.settings.load import Settings
from tasks.train import config_diff, trial_spec
from tasks.train.trial_spec import TRIAL_ID
from tests.support.reports import synthetic


@pytest.fixture
def run(settings: Callable[..., Settings]) -> RunRecord:
    """A training with the defaults, read again as from its file."""
    trial = trial_spec.trial_of(settings(), None, workers=2, max_hours=None)
    plan, public = PlannedTrial(trial_id=TRIAL_ID, trial=trial), json.loads(json.dumps(settings().public()))
    return synthetic.record(run_id="20260101-000000-train", suite="train", planned=[plan], settings=public)


def test_the_same_settings_change_nothing_and_limits_never_do(run: RunRecord, settings: Any) -> None:
    assert config_diff.diff(run, settings()) == []
    assert (
        config_diff.diff(run, settings(max_hours=1.0, budget_usd=9.0, max_restarts=99, elastic=True, workers=1)) == []
    )


def test_what_nobody_asked_for_is_refused_field_by_field_with_the_command_that_asks(
    run: RunRecord, settings: Any
) -> None:
    found = config_diff.diff(run, settings(schedule="linear", learning_rate=0.001))
    with pytest.raises(UsageError) as refused:
        config_diff.raise_if_changed(run, found, asked=False)
    said = str(refused.value)
    assert "train.learning_rate: 0.0002 as planned, 0.001 now; train.schedule: cosine as planned, linear now" in said
    assert f"`inv train --resume={run.run_id} --changed`" in said
    config_diff.raise_if_changed(run, found, asked=True)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ({"lora_rank": 8}, "train.lora_rank: 16 as planned, 8 now (the checkpoint's adapters have another shape)"),
        ({"lora_alpha": 16}, "what was learned would be scaled anew"),
        ({"optimizer": "paged_adamw_8bit"}, "the checkpoint's optimizer is laid out otherwise"),
    ],
)
def test_what_no_checkpoint_survives_stays_refused_with_its_reason(
    run: RunRecord, settings: Any, train: dict[str, Any], why: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(why)):
        config_diff.raise_if_changed(run, config_diff.diff(run, settings(**train)), asked=True)


def test_what_is_asked_for_is_taken_over_and_nothing_else(run: RunRecord, settings: Any) -> None:
    before = run.planned[0].trial
    now = settings(learning_rate=0.001, schedule="linear", data=["other.jsonl"], max_seq_len=256)
    made = config_diff.apply_changes(before, now, config_diff.diff(run, now), ["model"])
    assert made.training is not None
    assert (made.learning_rate, made.max_seq_len, made.data) == (0.001, 256, "other.jsonl")
    assert (made.training.schedule, made.training.data.files) == ("linear", ["other.jsonl"])
    assert made.training.may_differ == ("data", "learning_rate", "max_seq_len", "model", "training.schedule")
    put_back = dataclasses.replace(
        made.training, may_differ=(), schedule="cosine", data=before.training.data if before.training else None
    )
    assert dataclasses.replace(made, learning_rate=2e-4, max_seq_len=512, data=before.data, training=put_back) == before


def test_every_setting_of_a_training_can_be_taken_over_or_is_fixed(settings: Any) -> None:
    every = set(settings().public()["train"]) - config_diff.OF_THE_FOLLOWING
    assert every == config_diff.OF_THE_DATA - {"data.path"} | {
        *trial_spec.OF_THE_TRIAL, *trial_spec.OF_THE_TRAINING, "lora_targets",
    }  # fmt: skip
    assert {name.removeprefix("training.") for name in FIXED} <= every
