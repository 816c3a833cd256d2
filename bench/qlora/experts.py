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
from functools import cache
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from bench.kernels import nf4
from bench.kernels.groups import Groups, combine, grouped_product
from bench.kernels.swiglu import swiglu, swiglu_backward_
from bench.torch_stack import Stack

QUANTIZER = "bitsandbytes_4bit"  # transformers' name of what loads a model in NF4


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
    mxfp4 = importlib.import_module("transformers.quantizers.quantizer_mxfp4").Mxfp4HfQuantizer

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
            operation = mxfp4.get_load_operations(self)["dequantize"](self)
            names = mxfp4.serialized_names.items()
            return [core.WeightConverter(sources, target, [operation]) for target, sources in names]

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


def install(model: Any) -> None:
    """Let modules with experts in NF4 compute with them. Again after a patch that replaced their `forward`."""
    for module, names in quantized_experts(model):
        vars(module).pop("forward", None)
        # transformers marks experts that can be computed by groups with how it holds them
        is_grouped, is_cuda = hasattr(module, "is_transposed"), module._parameters[names[0]].is_cuda
        module.__class__ = _with_nf4(module.__class__, is_grouped=is_grouped, is_cuda=is_cuda)


@cache
def _with_nf4(base: Any, *, is_grouped: bool, is_cuda: bool) -> Any:
    """Make the class of all layers' modules: compiled code that calls them is the same for all layers."""
    if hasattr(base, "unquantized"):
        return base
    forward = _forward_grouped if is_grouped else _forward_dequantized
    forward = torch.compiler.disable(forward) if is_cuda else forward  # elsewhere nothing is compiled
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


def _forward_grouped(module: Any, hidden: Any, ids: Any, scores: Any) -> Any:
    """Return (T, H) from (T, H) and each token's k experts (T, k) and their weights (T, k)."""
    if not torch.is_grad_enabled():
        return _Experts.apply(module, None, hidden, scores, ids)
    kept = _Inputs.apply(hidden, scores, ids)
    return _Experts.apply(module, kept[0].grad_fn, *kept, ids)


class _Inputs(torch.autograd.Function):  # type: ignore[misc]
    """The place in the graph that keeps the inputs of the experts.

    A recomputed layer stops once all that it keeps exists again. Kept by the experts themselves, that would be after
    their products.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Any, scores: Any, ids: Any) -> Any:
        ctx.save_for_backward(hidden, scores, ids)
        return hidden.view_as(hidden), scores.view_as(scores)

    @staticmethod
    def backward(_ctx: Any, *gradients: Any) -> Any:
        return *gradients, None


class _Experts(torch.autograd.Function):  # type: ignore[misc]
    """Forward and backward of the module's docstring."""

    @staticmethod
    def forward(ctx: Any, module: Any, inputs: Any, hidden: Any, scores: Any, ids: Any) -> Any:
        ctx.module, ctx.inputs = module, inputs
        layer = _Layer(module)
        groups = Groups.sort(ids, layer.experts)
        rows = layer.down(layer.act(layer.up(hidden[groups.tokens], groups)), groups)
        return combine(layer.norm(rows), groups, scores).to(hidden.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        hidden, scores, ids = ctx.inputs.saved_tensors  # recomputes the layer up to here
        layer = _Layer(ctx.module)
        groups = Groups.sort(ids, layer.experts)
        joined = layer.up(hidden[groups.tokens], groups)
        act = layer.act(joined)
        weights = scores.reshape(-1, 1)[groups.order].to(act.dtype)
        d_rows = gradient.to(act.dtype)[groups.tokens]
        d_scores = torch.zeros((), device=act.device)
        if layer.has_norm:
            with torch.enable_grad():
                rows = layer.down(act, groups).requires_grad_()
                normed = layer.norm(rows)
            d_scores = _dot(normed, d_rows)
            (d_rows,) = torch.autograd.grad(normed, rows, d_rows * weights)
            weights = torch.ones_like(weights)
        elif layer.down_bias is not None:
            d_scores = _dot(layer.down_bias[groups.experts], d_rows)
        d_act = layer.down_backward(d_rows, groups)
        del d_rows
        if not layer.has_norm:
            d_scores = d_scores + _dot(act, d_act)
        d_joined = layer.act_backward(joined, d_act.mul_(weights))
        d_hidden = combine(layer.up_backward(d_joined, groups), groups)
        return None, None, d_hidden.to(hidden.dtype), d_scores[groups.places].view_as(scores).to(scores.dtype), None


def _dot(first: Any, second: Any) -> Any:
    """Return the rows' scalar products in float32."""
    return (first * second).sum(-1, dtype=torch.float32)


class _Layer:
    """Weights and activation of one module of experts, by transformers' attributes."""

    def __init__(self, module: Any) -> None:
        self._module, self.has_norm = module, module.has_post_expert_norm
        self._up = module.gate_up_proj if module.has_gate else module.up_proj
        self._up_bias, self.down_bias = None, None
        if module.has_bias:
            self._up_bias = module.gate_up_proj_bias if module.has_gate else module.up_proj_bias
            self.down_bias = module.down_proj_bias
        self.experts = int(self._up.quant_state.shape[0])
        plain_gate = importlib.import_module("transformers.integrations.moe")._default_apply_gate
        is_plain = module.has_gate and type(module)._apply_gate is plain_gate
        self._is_swiglu = is_plain and isinstance(module.act_fn, torch.nn.SiLU)

    def up(self, rows: Any, groups: Groups) -> Any:
        return self._product(rows, self._up, self._up_bias, groups)

    def up_backward(self, gradient: Any, groups: Groups) -> Any:
        return self._product(gradient, self._up, None, groups, backward=True)

    def down(self, rows: Any, groups: Groups) -> Any:
        return self._product(rows, self._module.down_proj, self.down_bias, groups)

    def down_backward(self, gradient: Any, groups: Groups) -> Any:
        return self._product(gradient, self._module.down_proj, None, groups, backward=True)

    def act(self, joined: Any) -> Any:
        if self._is_swiglu:
            return swiglu(joined)
        return self._module._apply_gate(joined) if self._module.has_gate else self._module.act_fn(joined)

    def act_backward(self, joined: Any, d_act: Any) -> Any:
        """Return the gradient of `joined`, which may be overwritten."""
        if self._is_swiglu:
            swiglu_backward_(joined, d_act, keep_act=False)
            return joined
        with torch.enable_grad():
            joined = joined.detach().requires_grad_()
            return torch.autograd.grad(self.act(joined), joined, d_act)[0]

    def norm(self, rows: Any) -> Any:
        return self._module.post_expert_norm(rows) if self.has_norm else rows

    def _product(self, rows: Any, parameter: Any, bias: Any, groups: Groups, *, backward: bool = False) -> Any:
        weight = dequantize(parameter)
        # (E, input, output): transformers holds experts as linear layers do, or transposed.
        weight = weight if self._module.is_transposed is not backward else weight.transpose(-2, -1)
        out = grouped_product(rows.to(weight.dtype), weight, groups.ends)
        return out if bias is None else out.add_(bias.to(out.dtype)[groups.experts])
