"""A decoder layer of the Llama and Mistral kind with its forward and its backward written out.

    x = before + y;  normed = rms_norm(x);  q, k, v = rotate(product(normed));  a = product(attend(q, k, v))
    h = x + a;       normed = rms_norm(h);  gate, up = product(normed);         y = product(silu(gate) * up)

It returns h and y; the next norm adds them. Between the sums the stream has eight bits more than bf16
(`bench.kernels.norm.ResidualStream`), which backward does without.

Written out, so that it decides itself what is kept for backward and what is recomputed. Kept: x, h, the joined q k v,
the attention's output, gate and up: (2 H + (Hq + 2 Hk) D + Hq D + 2 I) numbers a token, 94 KB in bf16 at 7B, and 66 KB
with products in 8 bits, where gate and up are in 8 bits. Recomputed in backward from these: the normed inputs (for the
adapters' gradients) and silu(gate) * up. With `recompute` only x is kept, and the layer runs forward again without its
last product, whose value no gradient needs.

The base is frozen, so backward computes only the adapters' weight gradients; for the first layer, below which nothing
is trained, not the gradient of x either.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.attention import Samples, attend, attend_backward
from bench.kernels.int8.block_quant import Blocks
from bench.kernels.int8.row_quant import Rows
from bench.kernels.lora import Normed, Seed
from bench.kernels.norm import ResidualStream, rms_norm_backward, rms_norm_backward_rows, stream_norm, stream_norm_rows
from bench.kernels.rope import AttentionHeads, rotate_
from bench.qlora.recipes.fused_linear import FusedLinear
from bench.qlora.recipes.offload import Offload

PRODUCTS = 4  # of a layer; each has a seed of its own
PARTS = 2  # of the tokens, where memory is short


@dataclass(frozen=True, kw_only=True)
class TokenLayout:
    """What a micro-batch's layers share: the angles of each token's position, the samples, and the dropout's seed.

    cos, sin: (T, D/2) float32; seed: int64 () on the device. Without one there is no dropout.
    """

    cos: Any
    sin: Any
    samples: Samples
    seed: Any = None


@dataclass(kw_only=True)
class SavedForBackward:
    """What a forward keeps for its backward: of a layer that is recomputed x alone, or nothing where x is offloaded."""

    x: Any = None
    rstd_in: Any = None
    joined: Any = None
    out: Any = None
    attention: tuple[Any, ...] = ()
    h: Any = None
    rstd_mid: Any = None
    gate_up: Any = None
    u_joined: Any = None
    u_out: Any = None
    u_gate_up: Any = None
    u_down: Any = None


@dataclass(frozen=True, kw_only=True)
class FastLayer:
    """One layer's frozen weights, its adapters, and how it is trained."""

    index: int
    heads: AttentionHeads
    eps: float
    norm_in: Any
    norm_mid: Any
    joined: FusedLinear
    out: FusedLinear
    gate_up: FusedLinear
    down: FusedLinear
    recompute: bool
    offload: Offload | None = None

    @property
    def products(self) -> tuple[FusedLinear, ...]:
        return self.joined, self.out, self.gate_up, self.down

    @property
    def parameters(self) -> tuple[Any, ...]:
        return tuple(parameter for product in self.products for parameter in product.parameters)

    def seeds(self, tokens: TokenLayout) -> tuple[Seed | None, ...]:
        """A seed for each product's dropout."""
        if tokens.seed is None:
            return (None,) * PRODUCTS
        return tuple(Seed(number=tokens.seed, plus=self.index * PRODUCTS + place) for place in range(PRODUCTS))

    @property
    def is_away(self) -> bool:
        """Whether its input is in the host's memory between forward and backward."""
        return self.recompute and self.offload is not None

    def forward(
        self,
        before: ResidualStream,
        y: Any,
        tokens: TokenLayout,
        *,
        keeps: bool = True,
        puts: bool = False,
        whole: bool = True,
    ) -> tuple[ResidualStream, Any, SavedForBackward]:
        """(h, y, what backward needs) of the sum of `before` and y, which may be None.

        Unless it `keeps` what backward needs, numbers are freed as soon as they are used. x goes to `offload` where it
        `puts` it. y is None unless `whole`.
        """
        seeds, to = self.seeds(tokens), self.offload if puts else None
        (normed, in_eight), rstd_in, x = self._normed(self.joined, before, self.norm_in, y)
        if to is not None:
            to.put(self.index, x.high)
        joined, u_joined = self.joined.forward(normed, seeds[0], in_eight)
        rotate_(joined, tokens.cos, tokens.sin, self.heads)
        out, attention = attend(joined, self.heads, tokens.samples)
        added, u_out = self.out.forward(out.view(len(joined), -1), seeds[1])
        (normed, in_eight), rstd_mid, h = self._normed(self.gate_up, x, self.norm_mid, added)
        kept = SavedForBackward(x=None if puts else x.high)
        if keeps:
            kept.rstd_in, kept.joined, kept.u_joined = rstd_in, joined, u_joined
            kept.out, kept.attention, kept.u_out = out, attention, u_out
            kept.h, kept.rstd_mid = h.high, rstd_mid
        if not whole:
            h = ResidualStream(high=h.high)
        del before, x, joined, out, attention, added  # the next product needs most memory
        gate_up, u_gate_up = self.gate_up.forward(normed, seeds[2], in_eight, in_blocks=True)
        del normed, in_eight
        if keeps:
            kept.gate_up, kept.u_gate_up = gate_up, u_gate_up
        if to is not None:
            to.settle()
        if not whole and not self.down.adapters:
            return h, None, kept
        act, in_eight = self.down.activated(gate_up)
        del gate_up
        y, kept.u_down = self.down.forward(act, seeds[3], in_eight)
        return h, y, kept

    def _normed(
        self, product: FusedLinear, before: ResidualStream, weight: Any, y: Any
    ) -> tuple[tuple[Any, Any], Any, ResidualStream]:
        """((the input of `product` in 16 bits, the same in 8 bits), rstd, the sum); of the two what it wants."""
        columns = product.columns_apart
        if columns is None:
            normed, rstd, total = stream_norm(before, weight, self.eps, y)
            return (normed, None), rstd, total
        keeps = bool(product.adapters)
        normed, rstd, total, in_eight = stream_norm_rows(before, weight, self.eps, y, columns, keep_normed=keeps)
        return (normed, in_eight), rstd, total

    def backward(
        self, d_y: Any, kept: SavedForBackward, tokens: TokenLayout, *, needs_x: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """(d_x or None, the gradients of `parameters`). `kept` is used up."""
        seeds = self.seeds(tokens)
        d_gate_up, in_eight, d_down = self._activated_gradient(d_y, kept, seeds[3])
        kept.gate_up = None
        normed = Normed(total=kept.h, rstd=kept.rstd_mid, weight=self.norm_mid)
        d_normed, of_gate_up = self.gate_up.backward(d_gate_up, normed, kept.u_gate_up, seeds[2], in_eight)
        del d_gate_up, in_eight, normed
        if self.offload is not None:
            self.offload.begin(self.index - 1)
        of_norm = d_normed, kept.h, kept.rstd_mid, self.norm_mid, d_y
        if self.out.factors is None:
            d_h, in_eight = rms_norm_backward(*of_norm), None
        else:
            d_h, in_eight = rms_norm_backward_rows(*of_norm, self.out.factors)
        kept.h = None
        d_out, d_o = self.out.backward(d_h, kept.out.view(len(d_h), -1), kept.u_out, seeds[1], in_eight)
        del of_norm, d_normed, in_eight  # attention needs much memory
        d_joined = attend_backward(
            d_out.view_as(kept.out), kept.joined, self.heads, kept.out, kept.attention, tokens.samples, tokens.cos,
            tokens.sin,
        )  # fmt: skip
        del d_out
        normed = Normed(total=kept.x, rstd=kept.rstd_in, weight=self.norm_in)
        if needs_x:
            d_normed, d_in = self.joined.backward(d_joined, normed, kept.u_joined, seeds[0])
            d_x = rms_norm_backward(d_normed, kept.x, kept.rstd_in, self.norm_in, d_h)
        else:
            small = self.joined.small_gradients(d_joined, kept.u_joined)
            d_x, d_in = None, self.joined.parameter_gradients(small, normed, seeds[0])
        return d_x, (*d_in, *d_o, *of_gate_up, *d_down)

    def _activated_gradient(
        self, d_y: Any, kept: SavedForBackward, seed: Seed | None
    ) -> tuple[Any, Rows | None, tuple[Any, ...]]:
        """(the gradient of gate and up, the same in 8 bits, the gradients of `down`'s parameters)."""
        eight, adapted = self.down.eight, self.gate_up.adapters or self.down.adapters
        if self.is_away and eight is not None and isinstance(kept.gate_up, Blocks) and not adapted:
            d_acts = eight.input_gradients(d_y, None, PARTS)
            return None, self.gate_up.activated_gradients(kept.gate_up, d_acts, PARTS), ()
        d_act, small = self.down.input_gradient(d_y, kept.u_down, seed)
        keep_act = bool(self.down.adapters)
        d_gate_up, in_eight = self.gate_up.activated_gradient(kept.gate_up, d_act, keep_act=keep_act)
        # Where an adapter needs it, d_act now holds the activation.
        return d_gate_up, in_eight, self.down.parameter_gradients(small, d_act, seed)


class _Function(torch.autograd.Function):
    """A layer for autograd, a function of its input and its adapters' parameters: DDP gets each gradient at once.

    Of a sum's two parts y alone passes the gradient on, which is that of the sum.
    """

    @staticmethod
    def forward(ctx: Any, high: Any, low: Any, y: Any, layer: FastLayer, tokens: TokenLayout, *_parameters: Any) -> Any:
        before, keeps = ResidualStream(high=high, low=low), not layer.recompute
        h, y, ctx.kept = layer.forward(before, y, tokens, keeps=keeps, puts=layer.is_away)
        ctx.layer, ctx.tokens = layer, tokens
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(part for part in (h.high, h.low) if part is not None))
        return h.high, h.low, y

    @staticmethod
    def backward(ctx: Any, _high: Any, _low: Any, d_y: Any) -> Any:
        layer: FastLayer = ctx.layer
        kept, ctx.kept = ctx.kept, None
        if layer.recompute:
            x = kept.x if layer.offload is None else layer.offload.take(layer.index)
            kept = layer.forward(ResidualStream(high=x), None, ctx.tokens, whole=False)[2]
        d_x, gradients = layer.backward(d_y.contiguous(), kept, ctx.tokens, needs_x=ctx.needs_input_grad[2])
        return None, None, d_x, None, None, *gradients


def run_layer(high: Any, low: Any, y: Any, layer: FastLayer, tokens: TokenLayout, *parameters: Any) -> Any:
    """(h in two parts, y) of an input in two parts and y, which may be None. With autograd off nothing is kept."""
    if torch.is_grad_enabled():
        return _Function.apply(high, low, y, layer, tokens, *parameters)
    h, y, _ = layer.forward(ResidualStream(high=high, low=low), y, tokens, keeps=False)
    return h.high, h.low, y
