"""A decoder layer with forward and backward written out: Llama's, and each that differs only by supported features.

    x = before + y;  normed = rms_norm(x);  q, k, v = rotate(product(normed));  a = product(attend(q, k, v))
    h = x + a;       normed = rms_norm(h);  y = mlp(normed)  (`bench.qlora.recipes.mlp`)

It returns h and y; the next norm adds them. The residual stream has eight bits more than bf16 in forward
(`bench.kernels.norm.ResidualStream`); backward uses only its bf16 part.

Forward and backward are written out so that the layer decides what is saved for backward and what is recomputed. Saved:
x, h, the joined q k v, the attention's output, and what the MLP needs; with Llama's gate and up (2 H + (Hq + 2 Hk) D +
Hq D + 2 I) numbers per token, 94 KB in bf16 at 7B, and 66 KB with int8 products, where gate and up are in 8 bits.
Recomputed in backward from these: the normed inputs (for the adapters' gradients). With `recompute` only x is saved,
and backward runs forward again without the last product, whose value no gradient needs.

The base is frozen, so backward computes only the adapters' weight gradients; in the first layer, below which nothing is
trained, it also omits the gradient of x.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.attention import Samples, attend, attend_backward
from bench.kernels.lora import MaskSeed, NormedInput
from bench.kernels.norm import ResidualStream, rms_norm_backward, stream_norm
from bench.kernels.rope import AttentionHeads, rotate_
from bench.qlora.recipes.fused_linear import FusedLinear
from bench.qlora.recipes.mlp import DenseMlp, OwnMlp
from bench.qlora.recipes.offload import Offload

PRODUCTS_PER_LAYER = 4  # each has its own seed


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """The data shared by a micro-batch's layers: the angles of each token's position, the samples, the dropout seed.

    cos, sin: (T, D/2) float32; seed: int64 () on the device. Without one there is no dropout.
    """

    cos: Any
    sin: Any
    samples: Samples
    seed: Any = None


@dataclass(kw_only=True)
class SavedForBackward:
    """Tensors saved for backward: only x if the layer is recomputed, nothing if x is offloaded too."""

    x: Any = None
    rstd_in: Any = None
    head_norms: tuple[Any, ...] = ()
    qkv: Any = None
    out: Any = None
    attention: tuple[Any, ...] = ()
    h: Any = None
    rstd_mid: Any = None
    u_qkv: Any = None
    u_out: Any = None
    mlp: Any = None


@dataclass(frozen=True, kw_only=True)
class HeadNorms:
    """RMSNorms of each query head and each key head before the rotation; frozen weights (D,)."""

    query: Any
    key: Any
    eps: float

    def forward_(self, joined: Any, heads: AttentionHeads) -> tuple[Any, ...]:
        """Normalize queries and keys in place; return their former values, (T x heads, D), and rstd of each."""
        saved = []
        for part, weight in zip(heads.split(joined)[:2], (self.query, self.key), strict=True):
            before = part.clone(memory_format=torch.contiguous_format).view(-1, heads.width)
            normed, rstd, *_ = stream_norm(ResidualStream(high=before), weight, self.eps)
            part.copy_(normed.view(part.shape))
            saved += [before, rstd]
        return tuple(saved)

    def backward_(self, d_joined: Any, heads: AttentionHeads, saved: tuple[Any, ...]) -> None:
        """Turn the gradient after the norms into the one before them, in place."""
        inputs = zip(heads.split(d_joined)[:2], (self.query, self.key), saved[::2], saved[1::2], strict=True)
        for part, weight, before, rstd in inputs:
            gradient, _ = rms_norm_backward(part.reshape(-1, heads.width), before, rstd, weight)
            part.copy_(gradient.view(part.shape))


@dataclass(frozen=True, kw_only=True)
class FastLayer:
    """One layer's frozen weights, adapters and training options. `qkv_bias`: (N,), None without biases."""

    index: int
    heads: AttentionHeads
    eps: float
    norm_in: Any
    norm_mid: Any
    qkv: FusedLinear
    out: FusedLinear
    mlp: DenseMlp | OwnMlp
    recompute: bool
    offload: Offload | None = None
    qkv_bias: Any = None
    head_norms: HeadNorms | None = None

    @property
    def products(self) -> tuple[FusedLinear, ...]:
        return self.qkv, self.out, *self.mlp.products

    @property
    def parameters(self) -> tuple[Any, ...]:
        return tuple(parameter for product in self.products for parameter in product.parameters)

    def seeds(self, tokens: TokenLayout) -> tuple[MaskSeed | None, ...]:
        """Return a seed for each product's dropout."""
        if tokens.seed is None:
            return (None,) * PRODUCTS_PER_LAYER
        first = self.index * PRODUCTS_PER_LAYER
        return tuple(MaskSeed(base=tokens.seed, offset=first + index) for index in range(PRODUCTS_PER_LAYER))

    @property
    def is_offloaded(self) -> bool:
        """True if the layer's input is in host memory between forward and backward."""
        return self.recompute and self.offload is not None

    def forward(
        self,
        before: ResidualStream,
        y: Any,
        tokens: TokenLayout,
        *,
        save: bool = True,
        offload_input: bool = False,
        compute_y: bool = True,
    ) -> tuple[ResidualStream, Any, SavedForBackward]:
        """Compute (h, y, the tensors saved for backward) from the sum of `before` and y, which may be None.

        Without `save`, tensors are freed after their last use. `offload_input` puts x into `offload`. Without
        `compute_y`, y may be None.
        """
        seeds, offload = self.seeds(tokens), self.offload if offload_input else None
        (normed, quantized), rstd_in, x = self._normalize(self.qkv, before, self.norm_in, y)
        if offload is not None:
            offload.put(self.index, x.high)
        qkv, u_qkv = self.qkv.forward(normed, seeds[0], quantized)
        if self.qkv_bias is not None:
            qkv.add_(self.qkv_bias)
        head_norms = () if self.head_norms is None else self.head_norms.forward_(qkv, self.heads)
        rotate_(qkv, tokens.cos, tokens.sin, self.heads)
        out, attention = attend(qkv, self.heads, tokens.samples)
        added, u_out = self.out.forward(out.view(len(qkv), -1), seeds[1])
        mlp_inputs, rstd_mid, h = self._normalize(self.mlp.first, x, self.norm_mid, added)
        saved = SavedForBackward(x=None if offload_input else x.high)
        if save:
            saved.rstd_in, saved.head_norms, saved.qkv, saved.u_qkv = rstd_in, head_norms, qkv, u_qkv
            saved.out, saved.attention, saved.u_out = out, attention, u_out
            saved.h, saved.rstd_mid = h.high, rstd_mid
        if not compute_y:
            h = ResidualStream(high=h.high)
        del before, x, head_norms, normed, quantized, qkv, out, attention, added  # the next product needs most memory
        y, mlp = self.mlp.forward(mlp_inputs, seeds[2:], offload, save=save, compute_y=compute_y)
        saved.mlp = mlp
        return h, y, saved

    def _normalize(
        self, product: FusedLinear | None, before: ResidualStream, weight: Any, y: Any
    ) -> tuple[list[Any], Any, ResidualStream]:
        """Return ([the input of `product` in 16 bits, in 8 bits], rstd, the sum); an unused input is None."""
        columns = None if product is None else product.outlier_columns
        keep = product is None or columns is None or bool(product.adapters)
        normed, rstd, total, quantized = stream_norm(before, weight, self.eps, y, columns, keep_normed=keep)
        return [normed, quantized], rstd, total

    def backward(
        self, d_y: Any, saved: SavedForBackward, tokens: TokenLayout, *, needs_x: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Do the layer's backward pass: return (d_x or None, the gradients of `parameters`). Frees `saved`."""
        seeds = self.seeds(tokens)
        normed = NormedInput(total=saved.h, rstd=saved.rstd_mid, weight=self.norm_mid)
        state, saved.mlp = [saved.mlp], None
        d_normed, mlp_gradients = self.mlp.backward(d_y, state, normed, seeds[2:], in_parts=self.is_offloaded)
        del normed
        if self.offload is not None:
            self.offload.prefetch(self.index - 1)
        norm_inputs = d_normed, saved.h, saved.rstd_mid, self.norm_mid, d_y
        d_h, quantized = rms_norm_backward(*norm_inputs, self.out.factors)
        saved.h = None
        d_out, out_gradients = self.out.backward(d_h, saved.out.view(len(d_h), -1), saved.u_out, seeds[1], quantized)
        del norm_inputs, d_normed, quantized  # attention needs much memory
        d_qkv = attend_backward(
            d_out.view_as(saved.out), saved.qkv, self.heads, saved.out, saved.attention, tokens.samples, tokens.cos,
            tokens.sin,
        )  # fmt: skip
        del d_out
        if self.head_norms is not None:
            self.head_norms.backward_(d_qkv, self.heads, saved.head_norms)
        normed = NormedInput(total=saved.x, rstd=saved.rstd_in, weight=self.norm_in)
        d_x, qkv_gradients = self.qkv.backward(d_qkv, normed, saved.u_qkv, seeds[0], needs_x=needs_x)
        if needs_x:
            d_x, _ = rms_norm_backward(d_x, saved.x, saved.rstd_in, self.norm_in, d_h)
        return d_x, (*qkv_gradients, *out_gradients, *mlp_gradients)


class _Function(torch.autograd.Function):
    """The autograd function of a layer, over its input and its adapters' parameters: DDP gets each gradient at once.

    The gradient of the sum h + y is passed on only through y.
    """

    @staticmethod
    def forward(ctx: Any, high: Any, low: Any, y: Any, layer: FastLayer, tokens: TokenLayout, *_parameters: Any) -> Any:
        before, save = ResidualStream(high=high, low=low), not layer.recompute
        h, y, ctx.saved = layer.forward(before, y, tokens, save=save, offload_input=layer.is_offloaded)
        ctx.layer, ctx.tokens = layer, tokens
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(part for part in (h.high, h.low) if part is not None))
        return h.high, h.low, y

    @staticmethod
    def backward(ctx: Any, _high: Any, _low: Any, d_y: Any) -> Any:
        layer: FastLayer = ctx.layer
        saved, ctx.saved = ctx.saved, None
        if layer.recompute:
            x = saved.x if layer.offload is None else layer.offload.pop(layer.index)
            saved = layer.forward(ResidualStream(high=x), None, ctx.tokens, compute_y=False)[2]
        d_x, gradients = layer.backward(d_y.contiguous(), saved, ctx.tokens, needs_x=ctx.needs_input_grad[2])
        return None, None, d_x, None, None, *gradients


def run_layer(high: Any, low: Any, y: Any, layer: FastLayer, tokens: TokenLayout, *parameters: Any) -> Any:
    """Return (h in two parts, y) for an input in two parts and y, which may be None. Without autograd, save nothing."""
    if torch.is_grad_enabled():
        return _Function.apply(high, low, y, layer, tokens, *parameters)
    h, y, _ = layer.forward(ResidualStream(high=high, low=low), y, tokens, save=False)
    return h.high, h.low, y
