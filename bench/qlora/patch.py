"""`patch(peft_model)`: the recipe `fast` in one's own training loop, or in transformers' Trainer.

Only the model's `forward` is replaced, and only for calls with `labels`. Parameters, `state_dict`, `save_pretrained`,
`train`, `eval`, `generate` and the switch of gradient checkpointing stay the model's own. `del model.forward` undoes
the patch. A call with `labels` takes:

- rows padded at their end, with an `attention_mask` or without; labels of padding are -100;
- packed rows: `position_ids` that restart at 0 with each sample, without an `attention_mask`. Set the label of each
  sample's first token to -100, as transformers' collators do.

It returns the loss only; `logits` is None. A call without `labels` is the unpatched model's, with logits.

Differences from a run of the recipe: no CUDA graphs; a check of `attention_mask` or `position_ids` waits for the device
once a call. Checkpointing with `offload=True` recomputes without offloading.
"""

import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import MethodType
from typing import Any

import torch

from bench.architectures import find
from bench.architectures.architecture import BLOCKS, PRODUCT_INPUTS, ConfigError
from bench.kernels import nf4
from bench.kernels.loss import IGNORED
from bench.qlora.recipes import fast, int8
from bench.qlora.step import Placement
from bench.records import Trial
from bench.torch_stack import Stack

DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.bfloat16,)}  # dtypes of norms, embeddings and head


class UnsupportedModel(ValueError):
    """Model, adapter or device that the recipe does not support, or that changed after `patch`; names the reason."""


class UnsupportedBatch(ValueError):
    """Input of a call that the recipe does not support: `argument` is its name."""

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(f"{argument}: {problem}")
        self.argument = argument


def patch(peft_model: Any, *, held_layers: int = 0, matmul: str = "bf16") -> Any:
    """Make a peft model compute its loss by the recipe `fast`; return the same model. Raises UnsupportedModel.

    The base is in NF4 with double quantization and has one LoRA adapter on linear layers of its decoder blocks. Without
    a GPU the kernels' references in PyTorch run, in bf16 or float32. `held_layers` and `matmul` are those of a trial
    (`bench.records.Trial`).
    """
    if not hasattr(peft_model, "get_base_model"):
        raise UnsupportedModel(f"{type(peft_model).__name__} is not a peft model")
    base = peft_model.get_base_model()
    trial = Trial(
        name="patch", reason="patch", suite="patch", profile="gpu", model="-", data="-", recipe="fast",
        gradient_checkpointing=False, held_layers=held_layers, matmul=matmul,
    )  # fmt: skip
    try:
        if (reason := _unsupported_reason(peft_model, base, trial)) is not None:
            raise UnsupportedModel(reason)
        vars(peft_model)["_fast"] = _PatchedModel(peft_model, base, trial)
    except (ConfigError, nf4.UnsupportedQuantization) as error:
        raise UnsupportedModel(str(error)) from error
    peft_model.forward = MethodType(_forward, peft_model)
    return peft_model


def _forward(
    self: Any,
    input_ids: Any = None,
    attention_mask: Any = None,
    *,
    labels: Any = None,
    position_ids: Any = None,
    num_items_in_batch: Any = None,
    **others: Any,
) -> Any:
    """Return transformers' CausalLMOutput with `loss`: the mean over the targets, or their sum / `num_items_in_batch`.

    input_ids, labels, attention_mask, position_ids: (B, L). Raises UnsupportedBatch, and UnsupportedModel if the
    adapters were replaced, switched or merged since `patch`.
    """
    model: _PatchedModel = vars(self)["_fast"]
    if labels is None or model.is_adapter_disabled:
        names = ("labels", "position_ids", "num_items_in_batch")
        values = zip(names, (labels, position_ids, num_items_in_batch), strict=True)
        others |= {name: value for name, value in values if value is not None}
        return type(self).forward(self, input_ids=input_ids, attention_mask=attention_mask, **others)
    for name, value in others.items():
        if value is not None and value is not (name == "return_dict"):
            raise UnsupportedBatch(name, "not supported together with labels")
    model.follow(self)
    _check_shapes(model.device, input_ids, labels, attention_mask)
    samples = _find_samples(labels, attention_mask, position_ids)
    with torch.autocast(model.device.type, enabled=False):
        loss = model.loss(input_ids.contiguous(), labels.contiguous(), position_ids, samples)
    if num_items_in_batch is not None:
        loss = loss * (labels[:, 1:] != IGNORED).sum() / num_items_in_batch
    return model.output_class(loss=loss)


class _PatchedModel(fast.FastModel):
    """The recipe's model, which takes over mode, recomputation and longest sample for each call."""

    def __init__(self, peft_model: Any, base: Any, trial: Trial) -> None:
        super().__init__(peft_model, base, trial)
        config = base.config.to_dict()
        self._plain_positions = find(config).plain_positions(config)
        self.device = base.lm_head.weight.device
        self.output_class = importlib.import_module("transformers.modeling_outputs").CausalLMOutput
        self._lora = [
            (linear, list(linear.active_adapters), adapter)
            for layer in self._layers
            for name, product in zip(PRODUCT_INPUTS, layer.products, strict=False)  # a mixture has the first two only
            for linear, adapter in zip(
                _adapted(find(config).modules(base.model.layers[layer.index], name)), product.adapters, strict=True
            )
        ]

    @property
    def is_adapter_disabled(self) -> bool:
        """True inside peft's `disable_adapter`."""
        return any(linear.disable_adapters for linear, _, _ in self._lora)

    def follow(self, peft_model: Any) -> None:
        """Take over the model's mode and recomputed layers. Raises UnsupportedModel if its adapters are others now."""
        for linear, names, adapter in self._lora:
            is_other = linear.merged or list(linear.active_adapters) != names
            if is_other or linear.lora_A[names[0]].weight is not adapter.a:
                raise UnsupportedModel("the adapters were replaced, switched or merged; call patch again")
        if self.training != peft_model.training:
            self.train(peft_model.training)
        (base,) = self._base
        flags = [bool(getattr(block, "gradient_checkpointing", False)) for block in base.model.layers]
        if flags != [layer.recompute for layer in self._layers]:
            layers = zip(self._layers, flags, strict=True)
            self._layers = tuple(dataclasses.replace(layer, recompute=flag) for layer, flag in layers)

    def loss(self, input_ids: Any, labels: Any, position_ids: Any, samples: tuple[Any, int] | None) -> Any:
        """Return the mean loss. `samples`: edges on the host and the longest sample of packed rows, or None."""
        longest = input_ids.shape[1] if samples is None else samples[1]
        if self._plain_positions is not None and longest > self._plain_positions:
            raise UnsupportedBatch("input_ids", f"queries are scaled from position {self._plain_positions} on")
        if samples is None:
            return self(input_ids, labels).loss
        edges, self._max_seq_len = samples
        position_ids = position_ids.expand(input_ids.shape).contiguous()
        return self(input_ids, labels, position_ids, edges.to(self.device)).loss


def _check_shapes(device: Any, input_ids: Any, labels: Any, attention_mask: Any) -> None:
    if input_ids is None or input_ids.dim() != 2 or input_ids.device != device:
        raise UnsupportedBatch("input_ids", f"expected a tensor (B, L) on {device}")
    for name, tensor in (("labels", labels), ("attention_mask", attention_mask)):
        if tensor is not None and (tensor.shape != input_ids.shape or tensor.device != device):
            raise UnsupportedBatch(name, f"expected the shape {tuple(input_ids.shape)} of input_ids, on {device}")


def _find_samples(labels: Any, attention_mask: Any, position_ids: Any) -> tuple[Any, int] | None:
    """Return (int32 edges, longest sample in tokens) of packed rows, on the host; None if each row is one sample."""
    is_token = torch.ones(labels.shape, dtype=torch.bool)
    if attention_mask is not None:
        is_token = attention_mask.cpu() != 0
        if (is_token[:, 1:] & ~is_token[:, :-1]).any():
            raise UnsupportedBatch("attention_mask", "rows must be padded at their end")
        if (labels.cpu()[:, 1:][~is_token[:, 1:]] != IGNORED).any():
            raise UnsupportedBatch("labels", f"labels of padding must be {IGNORED}")
    if position_ids is None:
        return None
    if position_ids.dim() != 2 or position_ids.shape[1] != labels.shape[1] or len(position_ids) not in (1, len(labels)):
        raise UnsupportedBatch("position_ids", f"expected the shape {tuple(labels.shape)} of input_ids")
    positions = position_ids.cpu().expand(labels.shape)
    is_start = positions == 0
    is_next = torch.nn.functional.pad(positions[:, 1:] == positions[:, :-1] + 1, (1, 0))
    if (is_token & ~is_start & ~is_next).any():
        raise UnsupportedBatch("position_ids", "each sample must count from 0")
    if not (is_start & is_token)[:, 1:].any():
        return None
    if attention_mask is not None:
        raise UnsupportedBatch("attention_mask", "packed rows need none; with one, transformers does not separate them")
    starts = is_start.reshape(-1).nonzero()[:, 0].tolist()
    edges = [*starts, labels.numel()]
    return torch.tensor(edges, dtype=torch.int32), max(last - first for first, last in pairwise(edges))


# Supported models -----------------------------------------------------------------------------------------------------


def _unsupported_reason(peft_model: Any, base: Any, trial: Trial) -> str | None:
    """Return the first reason against this model; None if it is supported. Raises ConfigError."""
    names = ("torch", "transformers", "peft", "bitsandbytes")
    stack = Stack(**{name: importlib.import_module(name) for name in names})
    shapes = find(base.config.to_dict()).shapes(base.config.to_dict())
    if getattr(base, "lm_head", None) is None:
        return f"{type(base).__name__} has no output layer for tokens"
    placement = Placement(device=base.lm_head.weight.device, compute_dtype=base.lm_head.weight.dtype)
    reason = fast.unsupported_reason(stack, trial, placement, base)
    if reason is None and trial.matmul != "bf16":
        reason = int8.unsupported_reason(placement, [(height, width) for width, height in shapes.values()])
        reason = reason and f"matmul {trial.matmul}: {reason}"
    return reason or _unsupported_tensors(base, placement) or _unsupported_adapters(peft_model, base)


def _unsupported_tensors(base: Any, placement: Placement) -> str | None:
    for name, parameter in base.named_parameters():
        if parameter.device != placement.device:
            return f"{name} is on {parameter.device}, lm_head on {placement.device}"
        if "lora_" not in name and parameter.is_floating_point() and parameter.dtype != placement.compute_dtype:
            return f"{name} is in {parameter.dtype}, lm_head in {placement.compute_dtype}"
    if placement.compute_dtype not in DTYPES.get(placement.device.type, ()):
        return f"norms, embeddings and head in {placement.compute_dtype} on {placement.device.type}"
    return None


def _unsupported_adapters(peft_model: Any, base: Any) -> str | None:
    """Return the first reason against the adapters: the recipe computes plain LoRA on the blocks' linear layers."""
    for config in peft_model.peft_config.values():
        if config.peft_type != "LORA":
            return f"adapters of type {config.peft_type.value}, not LoRA"
    architecture = find(base.config.to_dict())
    supported: set[str] = set()
    for index, block in enumerate(base.model.layers):
        supported |= {f"{BLOCKS}.{index}.{layer.path}" for layer in architecture.linear_layers}
        for product in PRODUCT_INPUTS:
            linears = _adapted(architecture.modules(block, product))
            if (reason := next(_unsupported_lora(linears), None)) is not None:
                return f"{reason} on {' and '.join(layer.name for layer in architecture.product(product))}"
    for name, module in base.named_modules():
        is_below = any(".".join(name.split(".")[:end]) in supported for end in range(1, name.count(".") + 2))
        if type(module).__module__.startswith("peft.") and not is_below:
            return f"an adapter on {name}"
    for name, parameter in peft_model.named_parameters():
        if parameter.requires_grad and "lora_" not in name:
            return f"a trained parameter outside the adapters: {name}"
    return None


def _unsupported_lora(linears: Sequence[Any]) -> Iterator[str]:
    """Yield the reasons against the LoRA layers of one product."""
    shapes = set()
    for linear in linears:
        if len(linear.active_adapters) != 1 or linear.active_adapters[0] not in linear.lora_A:
            yield "no single active adapter"
            return
        (name,) = linear.active_adapters
        if linear.merged:
            yield "a merged adapter"
        if getattr(linear, "lora_variant", {}).get(name) is not None or getattr(linear, "use_dora", {}).get(name):
            yield "a variant of LoRA"
        if linear.lora_B[name].bias is not None:
            yield "an adapter with a bias"
        if type(linear.lora_dropout[name]) not in (torch.nn.Dropout, torch.nn.Identity):
            yield "another dropout than torch's"
        shapes.add((linear.r[name], linear.scaling[name], getattr(linear.lora_dropout[name], "p", 0.0)))
    if len(shapes) > 1:
        yield "adapters of several ranks, scalings or dropouts"


def _adapted(linears: Sequence[Any]) -> list[Any]:
    return [linear for linear in linears if hasattr(linear, "lora_A")]
