"""Check, from config.json and the GPU, whether the recipe `fast` supports a model; without torch and without weights.

`bench.qlora.recipes` repeats the checks with the loaded model and builds `stock` if one fails. A forecast names the
fallback before anything is loaded.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bench.records import Trial

ARCHITECTURES = ("llama", "mistral")
MIN_CAPABILITY = (8, 0)  # bf16 matrix products and FlashAttention 2
MAX_HEAD_WIDTH = 256  # FlashAttention 2's limit
NF4_BLOCK = 64  # numbers with a common scale
BIASED = {"attention_bias": "self_attn.q_proj", "mlp_bias": "mlp.gate_proj"}  # the first linear with such a bias


def unsupported_reason(config: Mapping[str, Any], trial: Trial, capability: tuple[int, int] | None) -> str | None:
    """Return the first reason why `fast` does not support this trial; None if none is known.

    `capability` is the GPU's compute capability, None without a GPU.
    """
    biased = next((name for key, name in BIASED.items() if config.get(key)), None)
    return (
        unsupported_model(config)
        or (None if biased is None else f"a bias on model.layers.0.{biased}")
        or (None if capability is None else unsupported_capability(capability))
        or unsupported_precision(trial)
        or _unsupported_widths(config)
    )


def unsupported_model(config: Mapping[str, Any]) -> str | None:
    """Return the first reason in a model's config; None if `fast` supports it."""
    if config.get("model_type") not in ARCHITECTURES:
        return f"architecture {config.get('model_type')}, not {' or '.join(ARCHITECTURES)}"
    activation, dropout = config.get("hidden_act") or "silu", config.get("attention_dropout")
    if activation != "silu":
        return f"activation {activation}, not silu"
    if dropout:
        return f"dropout of {dropout} inside attention"
    heads, width = config["num_attention_heads"], _head_width(config)
    key_heads = config.get("num_key_value_heads") or heads
    if heads % key_heads:
        return f"{heads} query heads, not a multiple of {key_heads} key heads"
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
    widths = {
        "q_proj": config["hidden_size"],
        "o_proj": config["num_attention_heads"] * _head_width(config),
        "down_proj": config["intermediate_size"],
    }
    for name, width in widths.items():
        if width % NF4_BLOCK:
            return f"{name} takes {width} numbers, not a multiple of {NF4_BLOCK}"
    return None


def _head_width(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


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
