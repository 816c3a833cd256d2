"""Mixtures of experts whose weights are parameters of three dimensions, in NF4 with double quantization.

bitsandbytes quantizes linear layers only, and since version 5 transformers joins a layer's experts into parameters
(experts, rows, columns). Here they become NF4 as they are loaded, one at a time, in blocks of 64 along their memory.

A layer's weights are dequantized for a product and again in the backward pass, and never kept. With x the tokens' rows
sorted by expert, s their routing weights, and a product per group of equal expert,

    forward    out = sum of a token's s * (act(x up^T) down^T), in the order of its choices
    backward   d = d_out[token] down;  d_s = d . act;  d_x = (s d act') up

The backward pass computes x up^T again, but not the second product. Routing, gate and biases are transformers' own. A
module that transformers itself cannot compute by groups (Llama 4, JetMoE) runs as it is, recomputed in its backward.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from bench.kernels import nf4
from bench.kernels.groups import Groups, combine, grouped_product
from bench.kernels.swiglu import swiglu, swiglu_backward_
from bench.torch_stack import Stack

MXFP4_WEIGHTS = ("gate_up_proj", "down_proj")
QUANTIZER = "bitsandbytes_4bit"  # transformers' name of what loads a model in NF4
_HAS_PRODUCTS = ContextVar("has_products", default=True)


def is_expert_weight(module: Any, name: str) -> bool:
    """Return whether a parameter of a module holds its experts: three dimensions, the first of which it counts so."""
    parameter = module._parameters.get(name)
    counts = {value for key, value in vars(module).items() if "experts" in key and type(value) is int}
    return parameter is not None and parameter.dim() == 3 and len(parameter) in counts


def use_nf4(stack: Stack) -> None:
    """Let transformers load experts in NF4, too, wherever it loads linear layers so; before version 5 it has none."""
    if int(stack.transformers.__version__.split(".")[0]) < 5:
        return
    quantizers = importlib.import_module("transformers.quantizers.auto").AUTO_QUANTIZER_MAPPING
    if not hasattr(quantizers[QUANTIZER], "reads_experts"):
        quantizers[QUANTIZER] = _make_quantizer(stack, quantizers[QUANTIZER])


def _make_quantizer(stack: Stack, base: Any) -> Any:
    core = importlib.import_module("transformers.core_model_loading")
    mxfp4 = importlib.import_module("transformers.integrations.mxfp4")

    class Quantize(core.ConversionOps):  # type: ignore[misc, name-defined]
        """One parameter of experts to NF4, everything else as the library does it."""

        def __init__(self, quantizer: Any) -> None:
            self._linear = base.get_quantize_ops(quantizer)

        def convert(self, input_dict: dict[str, Any], **options: Any) -> dict[str, Any]:
            model, converted = options["model"], {}
            for name, value in input_dict.items():
                path, _, parameter = name.rpartition(".")
                tensor = value[0] if isinstance(value, list) else value
                if is_expert_weight(model.get_submodule(path), parameter):
                    converted[name] = quantize(stack, tensor)
                else:
                    converted |= self._linear.convert({name: value}, **options)
            return converted

    class Quantizer(base):  # type: ignore[misc]
        """bitsandbytes' quantizer that also takes experts, and reads those of a folder in MXFP4."""

        reads_experts = True

        def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
            super()._process_model_before_weight_loading(model, **options)
            for module in model.modules():
                for name in [name for name in module._parameters if is_expert_weight(module, name)]:
                    module._parameters[name] = _as_nf4(stack, module._parameters[name])

        def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
            path, _, name = param_name.rpartition(".")
            is_linear: bool = super().param_needs_quantization(model, param_name, **options)
            return is_linear or is_expert_weight(model.get_submodule(path), name)

        def get_quantize_ops(self) -> Any:
            return Quantize(self)

        def get_weight_conversions(self) -> list[Any]:
            of_mxfp4 = [
                core.WeightConverter([f"{name}_blocks", f"{name}_scales"], name, [mxfp4.Mxfp4Dequantize(self)])
                for name in MXFP4_WEIGHTS
            ]
            return [*super().get_weight_conversions(), *of_mxfp4]

        def _process_model_after_weight_loading(self, model: Any, **options: Any) -> Any:
            install(model)
            return super()._process_model_after_weight_loading(model, **options)

    return Quantizer


def quantize(stack: Stack, weight: Any) -> Any:
    """Return a parameter in NF4 on the device of `weight`; of its shape only `quant_state` knows."""
    return _as_nf4(stack, weight.contiguous()).to(weight.device)


def _as_nf4(stack: Stack, weight: Any) -> Any:
    """Return a parameter that is quantized when it is moved to a device."""
    return stack.bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", compress_statistics=True, blocksize=nf4.BLOCK
    )


def quantized_experts(model: Any) -> Iterator[tuple[Any, list[str]]]:
    """Yield each module that has experts in NF4, with the names of these parameters in it."""
    for module in model.modules():
        states = {name: getattr(weight, "quant_state", None) for name, weight in module._parameters.items()}
        if names := [name for name, state in states.items() if state is not None and len(state.shape) == 3]:
            yield module, names


def install(model: Any, *, is_compiled: bool = False) -> None:
    """Let modules with experts in NF4 compute with them. Again after a patch that replaced their `forward`.

    `is_compiled`: compiled code calls them, which the compiler shall not look into.
    """
    for module, _ in quantized_experts(model):
        vars(module).pop("forward", None)
        # transformers marks experts that can be computed by groups, and since 5.23 those with a norm behind each
        is_grouped = hasattr(module, "is_transposed") and not getattr(module, "has_post_expert_norm", False)
        base: Any = getattr(module, "unquantized", type(module))
        module.__class__ = _with_nf4(base, is_grouped=is_grouped, is_compiled=is_compiled)


@cache
def _with_nf4(base: Any, *, is_grouped: bool, is_compiled: bool) -> Any:
    """Make the class of all layers' modules: compiled code that calls them is the same for all layers."""
    forward = _forward_grouped if is_grouped else _forward_dequantized
    forward = torch.compiler.disable(forward) if is_compiled else forward
    return type(base.__name__, (base,), {"forward": forward, "unquantized": base})


def dequantize(parameter: Any) -> Any:
    """Return the weight in 16 bits or float32, as it was before quantization, in its shape."""
    weight = nf4.from_bitsandbytes(parameter)
    out = torch.empty(weight.shape, dtype=weight.dtype, device=parameter.device)
    nf4.dequantize_joined((weight,), out)
    return out.view(parameter.quant_state.shape)


def _forward_dequantized(module: Any, *args: Any, **options: Any) -> Any:
    """Run a module's own forward over dequantized weights."""
    ((_, names),) = quantized_experts(module)

    def run(*args: Any, **options: Any) -> Any:
        vars(module).update({name: dequantize(module._parameters[name]) for name in names})
        try:
            return module.unquantized.forward(module, *args, **options)
        finally:
            for name in names:
                del vars(module)[name]

    return checkpoint(run, *args, use_reentrant=False, **options) if torch.is_grad_enabled() else run(*args, **options)


# Products by groups ---------------------------------------------------------------------------------------------------


@contextmanager
def without_products() -> Iterator[None]:
    """Let grouped experts keep what their backward pass needs, and return an output of any value."""
    token = _HAS_PRODUCTS.set(False)
    try:
        yield
    finally:
        _HAS_PRODUCTS.reset(token)


def _forward_grouped(module: Any, hidden: Any, ids: Any, scores: Any) -> Any:
    """Return (T, H) from (T, H) and each token's k experts (T, k) and their weights (T, k)."""
    if not torch.is_grad_enabled():
        return _Experts.apply(module, None, hidden, scores, ids)
    kept = _Inputs.apply(hidden, scores)
    return _Experts.apply(module, kept[0].grad_fn, *kept, ids)


class _Inputs(torch.autograd.Function):  # type: ignore[misc]
    """The place in the graph that keeps the inputs of the experts.

    A recomputed layer stops once all that it keeps exists again. Kept by the experts themselves, that would be after
    their products.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, scores: Any) -> Any:
        ctx.save_for_backward(hidden, scores)
        return hidden.view_as(hidden), scores.view_as(scores)

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return gradients


class _Experts(torch.autograd.Function):  # type: ignore[misc]
    """Forward and backward of the module's docstring."""

    @staticmethod
    def forward(ctx: Any, module: Any, inputs: Any, hidden: Any, scores: Any, ids: Any) -> Any:
        ctx.module, ctx.inputs = module, inputs
        ctx.groups = groups = Groups.sort(ids, module.num_experts)
        if not _HAS_PRODUCTS.get():
            return torch.empty_like(hidden)
        act = _act(module, _product(module, _up(module), hidden[groups.tokens], groups))
        return combine(_product(module, "down_proj", act, groups), groups, scores).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        module, groups = ctx.module, ctx.groups
        hidden, scores = ctx.inputs.saved_tensors  # recomputes the layer up to here
        joined = _product(module, _up(module), hidden[groups.tokens], groups)
        act = _act(module, joined)
        d_rows = gradient.to(act.dtype)[groups.tokens]
        d_act = _product(module, "down_proj", d_rows, groups, is_backward=True)
        d_scores = _dot(act, d_act)
        if module.has_bias:
            d_scores += _dot(module.down_proj_bias[groups.experts], d_rows)
        d_act *= scores.reshape(-1, 1)[groups.order].to(act.dtype)
        del d_rows, act
        d_rows = _product(module, _up(module), _act_backward(module, joined, d_act), groups, is_backward=True)
        d_scores = d_scores[groups.places].view_as(scores).to(scores.dtype)
        return None, None, combine(d_rows, groups).to(hidden.dtype), d_scores, None


def _dot(first: Any, second: Any) -> Any:
    """Return the rows' scalar products in float32."""
    return (first * second).sum(-1, dtype=torch.float32)


def _up(module: Any) -> str:
    return "gate_up_proj" if module.has_gate else "up_proj"


def _product(module: Any, name: str, rows: Any, groups: Groups, *, is_backward: bool = False) -> Any:
    weight = dequantize(module._parameters[name])
    # (E, input, output): transformers holds experts as linear layers do, or transposed.
    weight = weight if module.is_transposed is not is_backward else weight.transpose(-2, -1)
    out = grouped_product(rows.to(weight.dtype), weight, groups.ends)
    if module.has_bias and not is_backward:
        out += module._parameters[f"{name}_bias"].to(out.dtype)[groups.experts]
    return out


def _is_swiglu(module: Any) -> bool:
    plain_gate = importlib.import_module("transformers.integrations.moe")._default_apply_gate
    silu = type(importlib.import_module("transformers.activations").ACT2FN["silu"])  # in 5.17 a class of its own
    return module.has_gate and type(module)._apply_gate is plain_gate and isinstance(module.act_fn, silu)


def _act(module: Any, joined: Any) -> Any:
    if _is_swiglu(module):
        return swiglu(joined)
    return module._apply_gate(joined) if module.has_gate else module.act_fn(joined)


def _act_backward(module: Any, joined: Any, d_act: Any) -> Any:
    """Return the gradient of `joined`, which may be overwritten."""
    if _is_swiglu(module):
        swiglu_backward_(joined, d_act)
        return joined
    with torch.enable_grad():
        joined = joined.detach().requires_grad_()
        return torch.autograd.grad(_act(module, joined), joined, d_act)[0]
