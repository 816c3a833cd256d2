"""Adapter folders as peft writes them: read, checked against the base model, and applied to its weights.

A base is compared with the one that the adapter was trained on by content, not by name.

    merged = W + scale B A    W (out, in), A (rank, in), B (out, rank); scale = alpha / rank

Not covered: anything but plain LoRA on linear layers (`bench.records.adapter` lists what is understood). It is rejected
by name, because merging it as plain LoRA would silently give another model.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from bench import torch_stack
from bench.data.inputs import InputError, InputRejected, ModelFacts
from bench.data.model_folder import TEMPLATE_FILE, check_model
from bench.qlora import recipes
from bench.qlora.step import Placement, TrainingStep
from bench.records import Trial
from bench.records.adapter import NF4, BaseRecord, read_lora_config
from bench.records.atomic_files import sha256_of
from bench.workloads.finetune.checkpoint import ADAPTER, ADAPTER_CONFIG, TOKENIZER_FILES

RESTORE_BASE = "restore the base of the training at its path"
_MATRIX_NAME = re.compile(r"base_model\.model\.(?P<weight>.+)\.lora_(?P<part>[AB])\.weight")


@dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA matrices of an adapter. `pairs` maps the name of each adapted weight to (A, B) in float32."""

    pairs: Mapping[str, tuple[Any, Any]]
    scale: float
    sha256: str

    def apply(self, name: str, weight: Any) -> Any:
        """Add the adapter's update to a float32 weight; return weights without one unchanged."""
        if name not in self.pairs:
            return weight
        a, b = (part.to(weight.device) for part in self.pairs[name])
        return weight.addmm(b, a, alpha=self.scale)


def check_base(model: Path, adapter: Path, model_sha256: str | None) -> ModelFacts:
    """Return the base's facts. Raises InputRejected if it is not that of the training, InputError if it is unusable.

    Raises ResultError for an adapter that is not plain LoRA.

    The adapter's folder holds copies of the training's tokenizer and chat template, so a change of these is reported as
    such. The template of an unchanged model differs if the training had another one (train.chat_template).
    """
    facts = check_model(model)
    read_lora_config(adapter / ADAPTER_CONFIG)
    for name in TOKENIZER_FILES:
        if name == TEMPLATE_FILE and facts.sha256 == model_sha256:
            continue
        copies = [folder / name for folder in (adapter, model)]
        if all(path.is_file() for path in copies) and len(set(map(sha256_of, copies))) > 1:
            raise InputRejected(
                f"{model / name}: changed since the training, so prompts would differ from those of the training",
                remedy=f"restore it from {adapter / name}",
            )
    if model_sha256 is not None and facts.sha256 != model_sha256:
        raise InputRejected(
            f"{model}: not the model that the adapter was trained on: sha256 {facts.sha256[:12]}, expected "
            f"{model_sha256[:12]}",
            remedy=RESTORE_BASE,
        )
    return facts


def load_trained(modules: Any, trial: Trial, placement: Placement, folder: Path) -> tuple[TrainingStep, Any]:
    """Build (training step, peft model) and load the adapter in `folder` into it. Raises InputError."""
    trial = dataclasses.replace(trial, offload_checkpoints=False)  # no training here: the base stays on the GPU
    step = recipes.load(modules, trial, placement)
    peft_model = getattr(step.model, "peft_model", step.model)
    result = modules.peft.set_peft_model_state_dict(peft_model, load_file(folder / ADAPTER))
    if result.unexpected_keys:
        raise InputError(f"{folder}: {result.unexpected_keys[0]}: not a weight of the trial's adapter")
    return step, peft_model


def read(folder: Path) -> tuple[Lora, BaseRecord]:
    """Read an adapter and how its training held the base; compare them. Raises InputError and ResultError."""
    record, config = BaseRecord.read(folder / BaseRecord.FILE), read_lora_config(folder / ADAPTER_CONFIG)
    rank, alpha = config["r"], config["lora_alpha"]
    path, parts = folder / ADAPTER, {f"{name}.weight": dict[str, Any]() for name in record.adapters}
    try:
        with safe_open(path, "pt") as file:
            for name in sorted(file.keys()):
                match = _MATRIX_NAME.fullmatch(name)
                if match is None:
                    raise InputError(
                        f"{path}: {name}: not a matrix of plain LoRA", remedy="this adapter cannot be merged"
                    )
                parts.setdefault(f"{match['weight']}.weight", {})[match["part"]] = file.get_tensor(name).float()
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    for name, pair in parts.items():
        if (held := record.tensors.get(name)) is None:
            raise InputError(f"{path}: {name}: the base has no such weight", remedy=RESTORE_BASE)
        outputs, inputs = held.shape[::-1] if held.is_transposed else held.shape
        shapes = {part: list(tensor.shape) for part, tensor in sorted(pair.items())}
        if shapes != {"A": [rank, inputs], "B": [outputs, rank]}:
            listed = ", ".join(f"{part} {shape}" for part, shape in shapes.items()) or "none"
            raise InputError(
                f"{path}: {name}: expected A [{rank}, {inputs}] and B [{outputs}, {rank}], found {listed}",
                remedy=f"copy the adapter again, or {RESTORE_BASE}",
            )
    if not parts:
        raise InputError(f"{path}: contains no LoRA matrix", remedy="name the adapter of a finished training")
    weights = Lora(
        pairs={name: (pair["A"], pair["B"]) for name, pair in parts.items()},
        scale=alpha / rank,
        sha256=sha256_of(path),
    )
    return weights, record


@dataclass(frozen=True, kw_only=True)
class MergedWeights:
    """Merge of single tensors of the model, in 16 bits or the dtype of `record`, how the training held them.

    `base` is "bf16", or "nf4" for the base as it was trained on.
    """

    modules: torch_stack.Stack
    record: BaseRecord
    lora: Lora
    base: str

    def dtype(self, name: str) -> Any:
        """Return the torch.dtype of a merged tensor."""
        kind = self.record.tensors[name].kind
        return getattr(self.modules.torch, "bfloat16" if kind == NF4 else kind)

    def __call__(self, name: str, weight: Any) -> Any:
        """Merge one tensor. Raises InputError if the result is not finite."""
        held, dtype = self.record.tensors[name], self.dtype(name)
        if not dtype.is_floating_point:
            return weight
        wide = weight.to(dtype).float()  # as the base was loaded for training
        wide = wide.T.contiguous() if held.is_transposed else wide
        if self.base == NF4 and held.kind == NF4:
            functional = self.modules.bitsandbytes.functional
            wide = functional.dequantize_4bit(
                *functional.quantize_4bit(wide, quant_type=NF4, compress_statistics=True)
            ).float()
        merged = self.lora.apply(name, wide).to(dtype)
        if not bool(self.modules.torch.isfinite(merged).all()):
            raise InputError(
                f"{name}: not finite after the merge: adapter or base is damaged", remedy="fetch them again"
            )
        return merged.T if held.is_transposed else merged
