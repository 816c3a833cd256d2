"""An adapter's folder as peft writes it, checked against the base model, and the weights that it changes.

    merged = W + scale B A    W (out, in), A (rank, in), B (out, rank); scale = alpha / rank, or alpha / sqrt(rank)

Not covered: anything but plain LoRA on linear layers (DoRA, ranks by layer, trained biases or embeddings). Each is
refused by name: merging it as plain LoRA would give another model without a word.
"""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from bench import torch_stack
from bench.data.inputs import InputError
from bench.qlora import recipes
from bench.qlora.step import Placement, TrainingStep, load_base
from bench.records import Trial
from bench.records.atomic_files import read_regular, sha256_of
from bench.workloads.finetune.checkpoints.checkpoint import ADAPTER, ADAPTER_CONFIG

MOST_CONFIG_BYTES = 1 << 20
NOT_PLAIN = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out", "layers_to_transform")
QUANTIZED = re.compile(r"model\.layers\.\d+\..+_proj\.weight")  # what NF4 holds: the layers, not embedding and head
_NAME = re.compile(r"base_model\.model\.(?P<weight>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """`pairs`: (A, B) in float32 by the name of the weight that they change."""

    pairs: Mapping[str, tuple[Any, Any]]
    scale: float
    sha256: str

    def onto(self, name: str, weight: Any) -> Any:
        """The weight, in float32, with its part of the adapter."""
        if name not in self.pairs:
            return weight
        a, b = (part.to(weight.device) for part in self.pairs[name])
        return weight.addmm(b, a, alpha=self.scale)


def as_trained(modules: Any, trial: Trial, placement: Placement, folder: Path) -> tuple[TrainingStep, Any]:
    """(the training's own step, its peft model), with the weights of the adapter in `folder`. Raises InputError."""
    trial = dataclasses.replace(trial, offload_checkpoints=False)  # nothing is trained: the base stays on the GPU
    step = recipes.build(trial.recipe, modules, trial, placement, load_base(modules, trial, placement))
    peft_model = getattr(step.model, "peft_model", step.model)
    found = modules.peft.set_peft_model_state_dict(peft_model, load_file(folder / ADAPTER))
    if found.unexpected_keys:
        raise InputError(f"{folder}: {found.unexpected_keys[0]}: not of the trial's adapter")
    return step, peft_model


def read(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Lora:
    """The adapter for a base with weights of these shapes. Raises InputError."""
    config = _config(folder / ADAPTER_CONFIG)
    rank, alpha = config["r"], config["lora_alpha"]
    path, parts = folder / ADAPTER, dict[str, dict[str, Any]]()
    try:
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                found = _NAME.fullmatch(name)
                if found is None:
                    raise InputError(f"{path}: {name}: no matrix of plain LoRA; this adapter cannot be merged")
                parts.setdefault(f"{found['weight']}.weight", {})[found["part"]] = file.get_tensor(name).float()
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    for name, pair in parts.items():
        _check_pair(path, name, {part: tuple(tensor.shape) for part, tensor in pair.items()}, shapes.get(name), rank)
    if not parts:
        raise InputError(f"{path}: holds no matrix; nothing was trained")
    return Lora(
        pairs={name: (pair["A"], pair["B"]) for name, pair in parts.items()},
        scale=alpha / (math.sqrt(rank) if config.get("use_rslora") else rank),
        sha256=sha256_of(path),
    )


def through_nf4(modules: torch_stack.Stack, weight: Any) -> Any:
    """A weight as the training saw it: to NF4 with double quantization and back, in float32."""
    functional = modules.bitsandbytes.functional
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    return functional.dequantize_4bit(packed, state).float()


@dataclass(frozen=True, kw_only=True)
class MergedWeights:
    """A base's weights with the adapter in them, as bf16; `base` is bf16, or nf4 for the base as it was trained on."""

    modules: torch_stack.Stack
    lora: Lora
    base: str

    def __call__(self, name: str, weight: Any) -> Any:
        """The weight of this name as it is written. Raises InputError where it is no number."""
        torch = self.modules.torch
        wide = weight.to(torch.bfloat16).float()  # as the base was loaded for training
        if self.base == "nf4" and QUANTIZED.fullmatch(name):
            wide = through_nf4(self.modules, wide)
        made = self.lora.onto(name, wide).to(torch.bfloat16)
        if not bool(torch.isfinite(made).all()):
            raise InputError(f"{name}: not every number is finite once merged; the adapter or the base is damaged")
        return made


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(read_regular(path, most_bytes=MOST_CONFIG_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: not complete JSON; the file is truncated or damaged") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise InputError(f"{path}: peft_type: expected LORA")
    used = [name for name in NOT_PLAIN if config.get(name)]
    if used or config.get("bias", "none") != "none":
        raise InputError(f"{path}: {(used or ['bias'])[0]}: not plain LoRA; merging would leave a part of it out")
    for name in ("r", "lora_alpha"):
        if type(config.get(name)) not in (int, float) or not 0 < config[name] < 1 << 20:
            raise InputError(f"{path}: {name}: expected a number above 0, found {config.get(name)!r}")
    return config


def _check_pair(
    path: Path, name: str, pair: Mapping[str, tuple[int, ...]], shape: tuple[int, ...] | None, rank: int
) -> None:
    if set(pair) != {"A", "B"}:
        raise InputError(f"{path}: {name}: only one of its two matrices is there; the file is damaged")
    if shape is None:
        raise InputError(f"{path}: {name}: the base has no such weight; the adapter is of another model")
    (inner, into), (out, inner_b) = pair["A"], pair["B"]
    if inner != rank or inner_b != rank:
        raise InputError(
            f"{path}: {name}: rank {inner} x {inner_b}, {ADAPTER_CONFIG} says {rank}; they are of two trainings"
        )
    if (out, into) != shape:
        raise InputError(f"{path}: {name}: for a weight of {out} x {into}, the base's is {' x '.join(map(str, shape))}")
