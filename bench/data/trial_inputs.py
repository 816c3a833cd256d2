"""Checks whether a trial's model and data suit it, before torch is imported. Standard library alone."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from bench.data.conversations import read_data
from bench.data.inputs import ConversationStats, DataFacts, InputError, Inputs, ModelFacts
from bench.data.model_folder import check_model
from bench.records import Trial

Read: TypeAlias = tuple[DataFacts, list[ConversationStats]]


def check_trial(trial: Trial) -> Inputs:
    """Check a trial's inputs as far as possible without torch. Raises InputError."""
    return _check(trial, check_model, read_data)


def check_trials(trials: Iterable[Trial]) -> None:
    """As `check_trial`, reading each folder and file once. Raises InputError that names the trial.

    Of a fine-tuning the model alone: its data has a check of its own.
    """
    model_at, data_at = functools.cache(check_model), functools.cache(read_data)
    for trial in trials:
        try:
            if trial.kind == "finetune":
                check_model_of(trial, model_at)
            else:
                _check(trial, model_at, data_at)
        except InputError as error:
            raise InputError(f"trial {trial.trial_id}: {error}") from None


def _check(trial: Trial, model_at: Callable[[Path], ModelFacts], data_at: Callable[[Path], Read]) -> Inputs:
    model = check_model_of(trial, model_at)
    data, conversations = data_at(Path(trial.data))
    if trial.kind in ("training", "distributed"):
        _check_enough(trial, data)
    return model, data, conversations


def check_model_of(trial: Trial, model_at: Callable[[Path], ModelFacts] = check_model) -> ModelFacts:
    """Check the trial's model, its positions and its layers. Raises InputError."""
    model = model_at(Path(trial.model))
    if trial.max_seq_len > model.max_position_embeddings:
        raise InputError(
            f"max_seq_len: {trial.max_seq_len} is more than the {model.max_position_embeddings} positions "
            f"{trial.model} was made for (config.json: max_position_embeddings); shorten the trial's sequences"
        )
    for target in trial.lora_targets:
        if target not in model.layers:
            raise InputError(f"lora_targets: {trial.model} has no layer {target!r}; it has {', '.join(model.layers)}")
    return model


def _check_enough(trial: Trial, data: DataFacts) -> None:
    """Refuse a batch that would hold a sample twice: nobody trains like that. Raises InputError."""
    needed = trial.micro_batch_size * trial.world_size
    if data.samples < needed:
        each = "micro_batch_size" if trial.world_size == 1 else "micro_batch_size x world_size"
        raise InputError(
            f"{trial.data}: expected at least {needed} usable samples ({each}), found {data.samples}; "
            "bring more data, or make the batch smaller"
        )
