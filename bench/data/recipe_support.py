"""Check, from config.json and the GPU, whether the recipe `fast` supports a model; without torch and without weights.

`bench.qlora.recipes` repeats the checks with the loaded model and builds `stock` if one fails. A forecast names the
fallback before anything is loaded.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bench.architectures import Feature, find
from bench.records import Trial

FEATURES = frozenset({Feature.SCALED_ROTATION, Feature.SLIDING_WINDOW, Feature.TIED_HEAD})
MIN_CAPABILITY = (8, 0)  # bf16 matrix products and FlashAttention 2
MAX_HEAD_WIDTH = 256  # FlashAttention 2's limit
NF4_BLOCK = 64  # numbers with a common scale


def unsupported_reason(config: Mapping[str, Any], trial: Trial, capability: tuple[int, int] | None) -> str | None:
    """Return the first reason why `fast` does not support this trial; None if none is known.

    `capability` is the GPU's compute capability, None without a GPU.
    """
    return (
        unsupported_model(config)
        or (None if capability is None else unsupported_capability(capability))
        or unsupported_precision(trial)
        or _unsupported_widths(config)
    )


def unsupported_model(config: Mapping[str, Any]) -> str | None:
    """Return the first reason in a checked model's config; None if `fast` supports it."""
    architecture = find(config)
    if (reason := architecture.unsupported_feature(config, FEATURES)) is not None:
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
    return dataclasses.replace(
        trial, recipe="stock", checkpoint_every=1, offload_checkpoints=False, held_layers=0, matmul="bf16"
    )


def built_recipe(trial: Trial, reason: str | None) -> str:
    """Return the recipe that is built: the trial's, or `stock (fast is not supported: REASON)`."""
    if reason is None:
        return trial.recipe
    options = {
        "checkpoint_every": trial.checkpoint_every > 1,
        "offload_checkpoints": trial.offload_checkpoints,
        "held_layers": trial.held_layers > 0,
        f"matmul {trial.matmul}": trial.matmul != "bf16",
    }
    names = [name for name, is_set in options.items() if is_set]
    lost = f"; without {', '.join(names)}" if names else ""
    return f"stock (fast is not supported: {reason}{lost})"
