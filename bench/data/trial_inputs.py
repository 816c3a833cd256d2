"""Check that a trial's model and data suit it, before torch is imported. Only the standard library."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from bench.data.inputs import Conversation, DataFacts, InputError, Inputs, ModelFacts
from bench.data.model_folder import check_model
from bench.data.readers import read_data
from bench.records import Trial

DataContent: TypeAlias = tuple[DataFacts, list[Conversation]]


def check_trial(trial: Trial) -> Inputs:
    """Check a trial's inputs as far as possible without torch. Raises InputError."""
    return _check(trial, check_model, read_data)


def check_trials(trials: Iterable[Trial]) -> None:
    """Check trials like `check_trial`, reading each folder and file once. Raises InputError with the trial's id.

    For a fine-tuning only the model is checked: its data has a separate check.
    """
    load_model, load_data = functools.cache(check_model), functools.cache(read_data)
    for trial in trials:
        try:
            if trial.workload.has_training:
                check_trial_model(trial, load_model)
            else:
                _check(trial, load_model, load_data)
        except InputError as error:
            raise InputError(f"trial {trial.trial_id}: {error}") from error


def _check(trial: Trial, load_model: Callable[[Path], ModelFacts], load_data: Callable[[Path], DataContent]) -> Inputs:
    model = check_trial_model(trial, load_model)
    data, conversations = load_data(Path(trial.data))
    if trial.workload.has_steps:
        _check_sample_count(trial, data)
    return model, data, conversations


def check_trial_model(trial: Trial, load_model: Callable[[Path], ModelFacts] = check_model) -> ModelFacts:
    """Check the trial's model, its positions and its layers. Raises InputError."""
    model = load_model(Path(trial.model))
    if trial.max_seq_len > model.max_position_embeddings:
        raise InputError(
            f"max_seq_len: {trial.max_seq_len} is more than the {model.max_position_embeddings} positions of "
            f"{trial.model} (config.json: max_position_embeddings)",
            remedy="reduce max_seq_len",
        )
    for target in trial.lora_targets:
        if target not in model.layers:
            raise InputError(
                f"lora_targets: {trial.model} has no layer {target!r}", remedy=f"it has {', '.join(model.layers)}"
            )
    return model


def _check_sample_count(trial: Trial, data: DataFacts) -> None:
    """Raise InputError for data smaller than a global batch, which would contain a sample twice."""
    needed = trial.micro_batch_size * trial.world_size
    if data.samples < needed:
        factors = "micro_batch_size" if trial.world_size == 1 else "micro_batch_size x world_size"
        raise InputError(
            f"{trial.data}: expected at least {needed} usable samples ({factors}), found {data.samples}",
            remedy="add data, or reduce micro_batch_size",
        )
