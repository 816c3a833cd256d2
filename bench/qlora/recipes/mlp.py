"""The MLP of a decoder layer of `fast`: Llama's with forward and backward written out, or the model's own module.

Both compute y from the normed input and return what `backward` needs. Arguments that are lists are emptied, so that a
tensor is freed after its last use.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from bench.kernels.int8.row_quant import QuantizedBlocks, QuantizedRows
from bench.kernels.lora import MaskSeed, NormedInput, SwigluInput
from bench.qlora import experts
from bench.qlora.recipes.fused_linear import FusedLinear
from bench.qlora.recipes.offload import Offload

TOKEN_PARTS = 2  # tokens are processed in two halves when memory is short


@dataclass(frozen=True, kw_only=True)
class DenseMlp:
    """gate, up = product(normed); y = product(silu(gate) * up). Saved: gate and up, and the adapters' u."""

    gate_up: FusedLinear
    down: FusedLinear

    @property
    def products(self) -> tuple[FusedLinear, ...]:
        return self.gate_up, self.down

    @property
    def first(self) -> FusedLinear:
        """The product whose input is normed."""
        return self.gate_up

    def forward(
        self,
        inputs: list[Any],
        seeds: Sequence[MaskSeed | None],
        offload: Offload | None,
        *,
        save: bool,
        compute_y: bool,
    ) -> tuple[Any, list[Any]]:
        """Return (y, or None if neither it nor an adapter's u is needed; the tensors saved for backward).

        inputs: the normed input in 16 and in 8 bits. The layer's input has left for `offload` meanwhile.
        """
        gate_up, u_gate_up = self.gate_up.forward(inputs[0], seeds[0], inputs[1], in_blocks=True)
        inputs.clear()
        saved = [gate_up, u_gate_up, None] if save else []
        if offload is not None:
            offload.finish_put()
        if not compute_y and not self.down.adapters:
            return None, saved
        act, quantized = self.down.activate(gate_up)
        del gate_up
        y, u_down = self.down.forward(act, seeds[1], quantized)
        return y, [*saved[:2], u_down] if save else saved

    def backward(
        self, d_y: Any, state: list[Any], normed: NormedInput, seeds: Sequence[MaskSeed | None], *, in_parts: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return (the gradient of the normed input, those of the products' parameters).

        state: what `forward` saved. `in_parts` saves memory where the tokens can be processed in parts.
        """
        ((gate_up, u_gate_up, u_down),) = state
        state.clear()
        d_gate_up, quantized, down_gradients = self._activation_gradient(d_y, gate_up, u_down, seeds[1], in_parts)
        del gate_up, u_down
        d_normed, gradients = self.gate_up.backward(d_gate_up, normed, u_gate_up, seeds[0], quantized)
        return d_normed, (*gradients, *down_gradients)

    def _activation_gradient(
        self, d_y: Any, gate_up: Any, u_down: Any, seed: MaskSeed | None, in_parts: bool
    ) -> tuple[Any, QuantizedRows | None, tuple[Any, ...]]:
        """Return (the gradient of gate and up, the same in 8 bits, the gradients of `down`'s parameters)."""
        down_int8, adapted = self.down.int8, self.gate_up.adapters or self.down.adapters
        if in_parts and down_int8 is not None and isinstance(gate_up, QuantizedBlocks) and not adapted:
            d_acts = down_int8.input_gradient_in_parts(d_y, None, TOKEN_PARTS)
            return None, self.gate_up.activation_gradient_in_parts(gate_up, d_acts, TOKEN_PARTS), ()
        d_act, down_gradients = self.down.backward(d_y, SwigluInput(joined=gate_up), u_down, seed)
        return *self.gate_up.activation_gradient(gate_up, d_act), down_gradients


@dataclass(frozen=True, kw_only=True)
class OwnMlp:
    """The model's own module without adapters, such as a mixture of experts, differentiated by autograd."""

    module: Any

    products = ()
    first = None

    def forward(
        self,
        inputs: list[Any],
        _seeds: Sequence[MaskSeed | None],
        offload: Offload | None,
        *,
        save: bool,
        compute_y: bool,
    ) -> tuple[Any, tuple[Any, Any] | None]:
        """Return (y, of any value without `compute_y`; the module's input and where its gradient enters)."""
        normed = inputs[0]
        inputs.clear()
        if offload is not None:
            offload.finish_put()
        if not save:
            with torch.no_grad():
                return self.module(normed[None])[0], None
        with torch.enable_grad(), nullcontext() if compute_y else experts.without_products():
            leaf = normed.detach().requires_grad_()
            y = self.module(leaf[None])[0]
        return y.detach(), (leaf, get_gradient_edge(y))  # not y: it is not needed after the next norm

    def backward(self, d_y: Any, state: list[Any], *_inputs: Any, **_options: Any) -> tuple[Any, tuple[Any, ...]]:
        """Return (the gradient of the normed input, no others)."""
        ((leaf, edge),) = state
        state.clear()
        return torch.autograd.grad(edge, leaf, d_y)[0], ()
