"""The trial of a training, built from settings, flags and a trial file; each error names the setting."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invoke import Context

from bench.records import Trial, choose, suite
from reports.training import repeat, training_facts
from reports.training.training_facts import TrainingReport
from tasks.errors import UsageError
from tasks.fleet import declared, trial_spec
from tasks.settings.layers import Settings, load
from tasks.train import forecast
from tests.support.reports import training_run
from tests.unit.tasks.train.conftest import MakeSettings


def test_the_defaults_are_a_training(settings: MakeSettings) -> None:
    trial = trial_spec.make_trial(settings(), None, workers=4, max_hours=None)
    assert (trial.kind, trial.world_size, trial.layout, trial.suite) == ("finetune", 4, "varlen", "train")
    assert trial.training is not None
    data = trial.training.data
    assert (data.files, data.weights, data.labels) == (["data/python-docstrings.jsonl"], [1.0], "assistant")


def test_every_setting_of_a_training_reaches_it(settings: MakeSettings) -> None:
    training_settings = {
        "rows_per_step": 8, "epochs": 2.5, "max_steps": 9, "schedule": "linear", "warmup_share": 0.1,
        "weight_decay": 0.01, "max_gradient_norm": 0.5, "rank_stabilized": True, "lora_plus_ratio": 16.0,
        "gradient_dtype": "bf16", "evaluate_every": 3, "early_stopping_patience": 2, "checkpoint_sec": 9.0,
        "keep_checkpoints": 5,
    }  # fmt: skip
    trial_settings = {
        "recipe": "stock",
        "lora_rank": 4,
        "learning_rate": 1e-3,
        "seed": 7,
        "max_seq_len": 64,
        "lora_dropout": 0.0,
    }
    configured = settings(**training_settings, **trial_settings, lora_targets="all-linear")
    trial = trial_spec.make_trial(configured, None, workers=1, max_hours=1.5)
    fields = {setting: field for field, setting in declared.SETTING_NAMES.items()}
    assert {name: getattr(trial.training, fields.get(name, name)) for name in training_settings} == training_settings
    assert {name: getattr(trial, name) for name in trial_settings} == trial_settings
    assert trial.training is not None
    assert trial.training.max_hours == 1.5
    assert "down_proj" in trial.lora_targets


@pytest.mark.parametrize(
    ("train", "workers", "file_changes"),
    [
        ({"rows_per_step": 2}, 2, {}),  # too few rows for the four workers of the settings
        ({"workers": 3, "seed": 9, "base_precision": "bf16", "lora_targets": "all-linear"}, None, {}),
        ({"workers": 3}, 1, {}),
        ({"recipe": "fast"}, None, {"recipe": "stock", "lora_rank": 4}),
        ({"recipe": "fast"}, None, {"recipe": "fast", "held_layers": 1}),
        ({"recipe": "fast"}, None, {"recipe": "fast", "lora_targets": ("q_proj",)}),
    ],
)
def test_the_command_on_a_trainings_page_repeats_it(
    train: dict[str, Any],
    workers: int | None,
    file_changes: dict[str, Any],
    settings: MakeSettings,
    context: Callable[..., Context],
    project: Path,
) -> None:
    configured, file_trial = settings(**train), None
    if file_changes:
        written = dataclasses.replace(
            trial_spec.make_trial(configured, None, workers=1, max_hours=None), **file_changes
        )
        (project / "typed.json").write_text(written.to_text())
        file_trial = trial_spec.read_trial(configured, str(project / "typed.json"))
    count = trial_spec.worker_count(configured, workers)
    trial = trial_spec.make_trial(configured, file_trial, workers=count, max_hours=None)
    training = written_training(project / "results" / "r", configured, trial)

    (command,) = [command for _, command in repeat.commands(training) if " train" in command]
    assert " train" in command
    assert ("--trial-file" in command) == bool(file_changes)
    (project / "repeat.json").write_bytes(repeat.repeat_settings(training))
    (project / "trial.json").write_text(trial.to_text())
    repeated = load(context("repeat.json"))
    file_trial = trial_spec.read_trial(repeated, str(project / "trial.json")) if file_changes else None
    count = trial_spec.worker_count(repeated, None)
    assert trial_spec.make_trial(repeated, file_trial, workers=count, max_hours=None) == trial


def written_training(folder: Path, configured: Settings, trial: Trial) -> TrainingReport:
    """Return a training of this trial as a report reads it."""
    training = training_facts.read(training_run.write_run(folder))
    planned = dataclasses.replace(training.run.planned[0], trial=trial)
    run = dataclasses.replace(training.run, planned=[planned], settings=configured.public())
    return dataclasses.replace(training, run=run)


@pytest.mark.parametrize(
    ("train", "asked", "message"),
    [
        ({}, 9, "train: --workers: 9 workers, but the fleet has 4"),
        ({"workers": 5}, None, "train.workers: 5 workers, but the fleet has 4"),
        ({"rows_per_step": 2}, None, "train.rows_per_step: 2 packed rows in a step, too few for 4 workers"),
    ],
)
def test_an_invalid_number_of_workers_is_an_error(
    train: dict[str, Any], asked: int | None, message: str, settings: MakeSettings
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.worker_count(settings(**train), asked)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"early_stopping_patience": 2}, "train.early_stopping_patience: expected 0"),
        (
            {"validation_fraction": 0.0, "evaluate_every": 5},
            "train.evaluate_every: expected 0",
        ),
        ({"data_weights": [1.0, 2.0]}, "train.data_weights: expected one for each of 1 files, found 2"),
        ({"data_weights": [-1.0]}, "train.data_weights: expected numbers above 0"),
        ({"data": ["a", "a"]}, "train.data: expected at least one data file, each named once"),
        ({"label_mask": "some"}, 'train.label_mask: expected one of assistant, all, found "some"'),
        ({"validation_fraction": 0.9}, "train.validation_fraction: expected a number from 0 to 0.5, or auto, found"),
        ({"max_seq_len": 1}, "train.max_seq_len: expected a whole number from 8"),
    ],
)
def test_the_error_for_an_invalid_setting_names_it(train: dict[str, Any], message: str, settings: MakeSettings) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.make_trial(settings(**train), None, workers=1, max_hours=None)


def test_a_chat_template_is_read_from_its_file(settings: MakeSettings, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages }}", encoding="utf-8-sig")
    trial = trial_spec.make_trial(settings(chat_template=str(path), system="s"), None, workers=1, max_hours=None)
    assert trial.training is not None
    assert (trial.training.data.chat_template, trial.training.data.system) == ("{{ messages }}", "s")
    for content in (b" \n", b"\xff", b"x" * (declared.MAX_TEMPLATE_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"^train\.chat_template: "):
            trial_spec.training_data(settings(chat_template=str(path)))
    with pytest.raises(UsageError, match=r"^train\.chat_template: .*No such file"):
        trial_spec.training_data(settings(chat_template=str(tmp_path / "none")))


def test_the_smaller_of_hours_and_budget_is_the_limit(settings: MakeSettings) -> None:
    both, hours = {"max_hours": 5.0, "budget_usd": 12.0}, forecast.limit_hours
    assert hours(settings(**both).train, 2.0, 4) == (1.5, "train.budget_usd")
    assert hours(settings(**both).train, 0.1, 4) == (5.0, "train.max_hours")
    assert hours(settings(budget_usd=12.0).train, 0.1, 4) == (30.0, "train.budget_usd")
    assert hours(settings().train, None, 4) == (None, "train.max_hours")
    with pytest.raises(UsageError, match=r"train\.budget_usd: no price is known"):
        hours(settings(**both).train, None, 4)


def test_a_trial_file_gives_the_configuration_and_the_settings_the_rest(settings: MakeSettings, project: Path) -> None:
    configured = settings(learning_rate=5e-4)
    file_trial = choose(suite("recipes", "tiny", configured.model.path, "d"), ("fast-lean",))[0]
    (project / "best.json").write_text(file_trial.to_text())
    trial = trial_spec.read_trial(configured, "best.json")
    training = trial_spec.make_trial(configured, trial, workers=1, max_hours=None)
    assert (training.recipe, training.offload_checkpoints, training.max_seq_len) == (
        "fast",
        True,
        file_trial.max_seq_len,
    )
    assert training.learning_rate == 5e-4
    assert training.training is not None
    assert training.training.data.max_seq_len == file_trial.max_seq_len


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "elsewhere"}, "is for the model elsewhere, but model.path is"),
        ({"profile": "gpu"}, "profile gpu, but bench.profile is tiny"),
        ({"speed": 3}, "speed: unknown field"),
    ],
)
def test_a_trial_file_of_something_else_is_refused(
    changed: dict[str, Any], message: str, settings: MakeSettings, project: Path
) -> None:
    configured = settings()
    file_trial = choose(suite("quick", "tiny", configured.model.path, "d"), ("optimized",))[0]
    (project / "best.json").write_text(json.dumps({**file_trial.to_json(), **changed}))
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.read_trial(configured, "best.json")
