"""From settings, flags and a trial file to the trial that a training is, and each refusal by the setting's name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.records import choose, suite
from tasks.errors import UsageError
from tasks.train import trial_spec
from tests.unit.tasks.train.conftest import MakeSettings


def test_the_defaults_are_a_training(settings: MakeSettings) -> None:
    trial = trial_spec.trial_of(settings(), None, workers=4, max_hours=None)
    assert (trial.kind, trial.world_size, trial.layout, trial.suite) == ("finetune", 4, "varlen", "train")
    assert trial.training is not None
    data = trial.training.data
    assert (data.files, data.weights, data.labels) == (["data/python-docstrings.jsonl"], [1.0], "assistant")


def test_every_setting_of_a_training_reaches_it(settings: MakeSettings) -> None:
    chosen = {
        "rows_per_step": 8, "epochs": 2.5, "max_steps": 9, "schedule": "linear", "warmup_share": 0.1,
        "weight_decay": 0.01, "max_gradient_norm": 0.5, "rank_stabilized": True, "lora_plus_ratio": 16.0,
        "gradients": "bf16", "evaluate_every": 3, "patience": 2, "checkpoint_sec": 9.0, "keep_checkpoints": 5,
        "answer_tokens": 12,
    }  # fmt: skip
    own = {"recipe": "stock", "lora_rank": 4, "learning_rate": 1e-3, "seed": 7, "max_seq_len": 64, "lora_dropout": 0.0}
    given = settings(**chosen, **own, prompts=["Hello?"], lora_targets="all-linear")
    trial = trial_spec.trial_of(given, None, workers=1, max_hours=1.5)
    assert {name: getattr(trial.training, name) for name in chosen} == chosen
    assert {name: getattr(trial, name) for name in own} == own
    assert trial.training is not None
    assert (trial.training.prompts, trial.training.max_hours) == (("Hello?",), 1.5)
    assert "down_proj" in trial.lora_targets


@pytest.mark.parametrize(
    ("train", "asked", "message"),
    [
        ({}, "9", "train: --workers: 9 workers, but the fleet has 4"),
        ({}, "x", "train: --workers: expected a whole number from 1 to 4, found 'x'"),
        ({"workers": 5}, None, "train.workers: 5 workers, but the fleet has 4"),
        ({"rows_per_step": 2}, None, "train.rows_per_step: 2 packed rows in a step, too few for 4 workers"),
    ],
)
def test_workers_that_cannot_be_are_refused(
    train: dict[str, Any], asked: str | None, message: str, settings: MakeSettings
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.how_many(settings(**train), asked)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"patience": 2}, "train.patience: expected 0 where evaluate_every is 0"),
        ({"validation": 0.0, "evaluate_every": 5}, "train.evaluate_every: expected 0 where no data is held out"),
        ({"weights": [1.0, 2.0]}, "train.weights: expected one for each of 1 files, found 2"),
        ({"weights": [-1.0]}, "train.weights: expected numbers above 0"),
        ({"data": ["a", "a"]}, "train.data: expected at least one data file, each named once"),
        ({"labels": "some"}, 'train.labels: expected one of assistant, all, found "some"'),
        ({"validation": 0.9}, "train.validation: expected a number from 0 to 0.5, found 0.9"),
        ({"max_seq_len": 1}, "train.max_seq_len: expected a whole number from 8"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(
    train: dict[str, Any], message: str, settings: MakeSettings
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.trial_of(settings(**train), None, workers=1, max_hours=None)


def test_the_smaller_of_hours_and_budget_is_the_limit() -> None:
    limits = trial_spec.TrainLimits(max_hours=5.0, budget_usd=12.0)
    assert limits.hours(2.0, 4) == (1.5, "train.budget_usd")
    assert limits.hours(0.1, 4) == (5.0, "train.max_hours")
    assert trial_spec.TrainLimits(budget_usd=12.0).hours(0.1, 4) == (30.0, "train.budget_usd")
    assert trial_spec.TrainLimits().hours(None, 4) == (None, "train.max_hours")
    with pytest.raises(UsageError, match=r"train\.budget_usd: no price is known"):
        limits.hours(None, 4)


def test_a_trial_file_gives_the_configuration_and_the_settings_the_rest(settings: MakeSettings, project: Path) -> None:
    given = settings(learning_rate=5e-4)
    found = choose(suite("recipes", "tiny", given.model.path, "d"), ("fast-lean",))[0]
    (project / "best.json").write_text(found.to_text())
    with_lengths, trial = trial_spec.with_trial_file(given, "best.json")
    made = trial_spec.trial_of(with_lengths, trial, workers=1, max_hours=None)
    assert (made.recipe, made.offload_checkpoints, made.max_seq_len) == ("fast", True, found.max_seq_len)
    assert made.learning_rate == 5e-4
    assert made.training is not None
    assert made.training.data.max_seq_len == found.max_seq_len


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "elsewhere"}, "is for the model elsewhere, but model.path is"),
        ({"lora_targets": ["query_key_value"]}, "'query_key_value' is no layer of this architecture"),
        ({"profile": "gpu"}, "profile gpu, but bench.profile is tiny"),
        ({"speed": 3}, "speed: unknown field"),
    ],
)
def test_a_trial_file_of_something_else_is_refused(
    changed: dict[str, Any], message: str, settings: MakeSettings, project: Path
) -> None:
    given = settings()
    found = choose(suite("quick", "tiny", given.model.path, "d"), ("optimized",))[0]
    (project / "best.json").write_text(json.dumps({**found.to_json(), **changed}))
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.with_trial_file(given, "best.json")
