"""Check that a trial's model, data and recipe suit each other, before torch is imported.

A forecast names the fallback of the recipe `fast` from config.json and the GPU before anything is loaded;
`bench.qlora.recipes` repeats the checks with the loaded model and builds `stock` if one fails.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from bench.architectures import Feature, find
from bench.architectures.architecture import UnknownLayer
from bench.data.inputs import Conversation, DataFacts, InputError, Inputs, ModelFacts
from bench.data.model_folder import check_model, check_template, read_config
from bench.data.readers import read_data
from bench.records import Trial
from bench.records.training import DataOptions
from bench.records.trial import FAST_ONLY_FIELDS

FEATURES = frozenset(
    {Feature.QKV_BIAS, Feature.QK_NORM, Feature.SCALED_ROTATION, Feature.SLIDING_WINDOW, Feature.TIED_HEAD}
)
MIN_CAPABILITY = (8, 0)  # bf16 matrix products and FlashAttention 2
MAX_HEAD_WIDTH = 256  # FlashAttention 2's limit
NF4_BLOCK = 64  # numbers with a common scale

DataContent: TypeAlias = tuple[DataFacts, list[Conversation]]
DataReader: TypeAlias = Callable[[Path, DataOptions], DataContent]


def check_trials(trials: Iterable[Trial]) -> None:
    """Check trials like `check_trial`, reading each folder and file once. Raises InputError with the trial's id.

    For a fine-tuning only the model is checked: its data has a separate check.
    """
    load_model, loaded = functools.cache(check_model), dict[str, DataContent]()

    def load_data(path: Path, options: DataOptions) -> DataContent:
        key = f"{path}\0{options}"
        if key not in loaded:
            loaded[key] = read_data(path, options)
        return loaded[key]

    for trial in trials:
        try:
            if trial.workload.has_training:
                check_trial_model(trial, load_model)
            else:
                check_trial(trial, load_model, load_data)
        except InputError as error:
            raise InputError(f"trial {trial.trial_id}: {error}") from error


def check_trial(
    trial: Trial, load_model: Callable[[Path], ModelFacts] = check_model, load_data: DataReader = read_data
) -> Inputs:
    """Check a trial's inputs as far as possible without torch. Raises InputError."""
    model = check_trial_model(trial, load_model)
    data, conversations = load_data(Path(trial.data), trial.reading)
    needed = trial.micro_batch_size * trial.world_size  # with fewer, a batch would contain a sample twice
    if trial.workload.has_steps and data.samples < needed:
        factors = "micro_batch_size" if trial.world_size == 1 else "micro_batch_size x world_size"
        raise InputError(
            f"{trial.data}: expected at least {needed} usable samples ({factors}), found {data.samples}",
            remedy="add data, or reduce micro_batch_size",
        )
    return model, data, conversations


def check_trial_model(trial: Trial, load_model: Callable[[Path], ModelFacts] = check_model) -> ModelFacts:
    """Check the trial's model, its positions and its layers. Raises InputError."""
    model = load_model(Path(trial.model))
    if trial.reading.needs_own_template:
        check_template(Path(trial.model))
    if trial.max_seq_len > model.max_position_embeddings:
        raise InputError(
            f"max_seq_len: {trial.max_seq_len} is more than the {model.max_position_embeddings} positions of "
            f"{trial.model} (config.json: max_position_embeddings)",
            remedy="reduce max_seq_len",
        )
    config = read_config(Path(trial.model))
    architecture = find(config)
    try:
        architecture.select(trial.lora_targets)
    except UnknownLayer as error:
        reason = (
            ": experts have no adapters, because one parameter holds the weights of all" if _has_experts(config) else ""
        )
        raise InputError(
            f"lora_targets: {trial.model} has no layer {error.name!r}{reason}",
            remedy=f"it has {', '.join(sorted(layer.name for layer in architecture.linear_layers))}",
        ) from error
    return model


def _has_experts(config: Mapping[str, Any]) -> bool:
    """Return whether config.json counts experts."""
    text = config.get("text_config")
    sizes = {**config, **(text if isinstance(text, dict) else {})}
    return any("experts" in name and type(value) is int and value > 1 for name, value in sizes.items())


# The recipe fast ------------------------------------------------------------------------------------------------------


def unsupported_reason(config: Mapping[str, Any], trial: Trial, capability: tuple[int, int] | None) -> str | None:
    """Return the first reason why `fast` does not support this trial; None if none is known.

    `capability` is the GPU's compute capability, None without a GPU.
    """
    return (
        unsupported_model(config, trial.max_seq_len)
        or (None if capability is None else unsupported_capability(capability))
        or unsupported_precision(trial)
        or _unsupported_widths(config)
    )


def unsupported_model(config: Mapping[str, Any], positions: int) -> str | None:
    """Return the first reason in a checked model's config; None if `fast` supports it for that many positions."""
    architecture = find(config)
    if (reason := architecture.unsupported_feature(config, FEATURES, positions)) is not None:
        return reason
    width = architecture.geometry(config).head_width
    if width % 8 or width > MAX_HEAD_WIDTH:
        return f"heads {width} wide, not a multiple of 8 up to {MAX_HEAD_WIDTH}"
    return None


def unsupported_capability(capability: tuple[int, int]) -> str | None:
    """Return the reason in a GPU's compute capability; None if it suffices."""
    if capability >= MIN_CAPABILITY:
        return None
    return f"a GPU of compute capability {capability[0]}.{capability[1]}; the kernels need 8.0 (A100, A10) or newer"


def unsupported_precision(trial: Trial) -> str | None:
    """Return the reason in the base's precision; None if it is NF4."""
    return None if trial.base_precision == "nf4" else f"a base in {trial.base_precision}, not NF4"


def _unsupported_widths(config: Mapping[str, Any]) -> str | None:
    for name, (width, _) in find(config).shapes(config).items():
        if width % NF4_BLOCK:
            return f"{name} takes {width} numbers, not a multiple of {NF4_BLOCK}"
    return None


def as_stock(trial: Trial) -> Trial:
    """Return the trial as `stock` computes it: without the options that only `fast` has."""
    defaults: dict[str, Any] = {name: getattr(Trial, name) for name in FAST_ONLY_FIELDS}
    return dataclasses.replace(trial, recipe="stock", **defaults)


def built_recipe(trial: Trial, reason: str | None) -> str:
    """Return the recipe that is built: the trial's, or `stock (fast is not supported: REASON)`."""
    if reason is None:
        return trial.recipe
    names = [f"matmul {trial.matmul}" if name == "matmul" else name for name in trial.fast_only_changes]
    lost = f"; without {', '.join(names)}" if names else ""
    return f"stock (fast is not supported: {reason}{lost})"
