"""One product of a frozen NF4 weight, or of several that share their input, with the LoRA adapters on it.

q, k and v are one product, and so are gate and up: one wide matrix product uses the GPU better than three or two, and
the input is read once. The weights stay apart; the joined bf16 matrix exists only during the product.

    u   = s drop(x) A^T
    y   = x W^T + u B^T            the adapters' product first, to which the base product is added inside the library's
                                   own kernel, in float32
    d_u = d_y B
    d_x = d_y W + s drop(d_u A)
    d_A = s d_u^T drop(x)
    d_B = d_y^T u

x: (T, K); W: (N, K), its linear layers' rows one below the other; A: (R, K) and B: (N_j, R) of each adapted layer; s =
lora_alpha / R. W is frozen and gets no gradient.

The products with W can be done in 8 bits (`bench.qlora.recipes.int8`): d_y W alone, or both.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import lora, lora_out, nf4
from bench.kernels.int8.block_quant import Blocks
from bench.kernels.int8.matmul import SideInputs
from bench.kernels.int8.row_quant import Columns, Rows
from bench.kernels.int8.swiglu import swiglu_backward_rows, swiglu_rows
from bench.kernels.lora import LoraInput, Seed
from bench.kernels.swiglu import swiglu, swiglu_backward_
from bench.qlora.recipes.int8 import Int8Linear


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter: its trained parameters, float32, and its columns of the product."""

    a: Any
    b: Any
    columns: slice


@dataclass(frozen=True, kw_only=True)
class SmallGradients:
    """The gradients of u, (T, n R), and of every B, (N, R) float32."""

    d_u: Any
    d_b: Any


@dataclass(frozen=True, kw_only=True)
class FusedLinear:
    """Linear layers with one input. `scaling` is s, `dropout` its probability; `adapters` may be empty.

    `work_a` is every A in compute precision, one below the other, `work_b` every B, (N, R), 0 where no adapter is;
    `held` is W in 16 bit, where it is not dequantized each time. With `eight` products are done in 8 bits.
    """

    weights: tuple[nf4.Nf4, ...]
    adapters: tuple[Adapter, ...] = ()
    scaling: float = 1.0
    dropout: float = 0.0
    work_a: Any = None
    work_b: Any = None
    held: Any = None
    eight: Int8Linear | None = None

    @property
    def rows(self) -> int:
        """N, of all its layers together."""
        return sum(weight.shape[0] for weight in self.weights)

    @property
    def rank(self) -> int:
        return int(self.adapters[0].a.shape[0]) if self.adapters else 0

    @property
    def parameters(self) -> tuple[Any, ...]:
        """Every A and its B, in the order of `backward`'s gradients."""
        return tuple(parameter for adapter in self.adapters for parameter in (adapter.a, adapter.b))

    @property
    def working_copies(self) -> tuple[Any, ...]:
        """Of `parameters`, in their order."""
        works = zip(self.work_a.split(self.rank), self.adapters, strict=True) if self.adapters else ()
        return tuple(copy for a, adapter in works for copy in (a, self.work_b[adapter.columns]))

    @property
    def columns(self) -> tuple[slice, ...]:
        """Which columns of y the adapters are on."""
        return tuple(adapter.columns for adapter in self.adapters)

    def weight(self, like: Any) -> Any:
        """W of shape (N, K), of the dtype and on the device of `like`."""
        return self.held if self.held is not None else dequantized(self.weights, like.dtype, like.device)

    @property
    def columns_apart(self) -> Columns | None:
        """Which columns of an input stand apart; None where the product is not in 8 bits, or has had no input yet."""
        return self.eight.columns if self.eight is not None and self.eight.forward else None

    @property
    def factors(self) -> Any:
        """What a gradient of y is multiplied by before it becomes 8 bits; None where it does not."""
        return None if self.eight is None else self.eight.scales

    def forward(
        self, x: Any, seed: Seed | None, in_eight: Rows | None = None, *, in_blocks: bool = False
    ) -> tuple[Any, Any]:
        """(y, u); u is None without adapters. With `in_blocks` y is `Blocks` where it is made in 8 bits and fits.

        `in_eight` is x in 8 bits, where it is so already; without adapters x may be None then.
        """
        side = self._side(seed)
        u = lora.down(x, self.work_a, side) if self.adapters else None
        if self.eight is not None and self.eight.forward:
            beside = SideInputs(u=u, work_b=self.work_b, columns=self.columns, rank=self.rank)
            return self.eight.product(x, in_eight, beside, in_blocks=in_blocks), u
        weight = self.weight(x)
        if u is None:
            return x @ weight.T, None
        return lora_out.out(u, self.work_b, self.columns, side).addmm_(x, weight.T), u

    def activated(self, joined: Any) -> tuple[Any, Rows | None]:
        """swiglu(joined), (x, x in 8 bits) for `forward`; x is None where nothing wants it in 16 bits.

        joined: `Blocks` or a tensor.
        """
        if self.eight is None or not self.eight.forward:
            return swiglu(joined), None
        columns = self.columns_apart
        in_eight, act = swiglu_rows(joined, columns, keep_act=columns is None or bool(self.adapters))
        return act, None if columns is None else in_eight

    def activated_gradient(self, joined: Any, d_act: Any, *, keep_act: bool) -> tuple[Any, Rows | None]:
        """The gradient of `joined`, this product's y, from d_act, that of swiglu(joined): what `backward` takes.

        Both are used up; with `keep_act`, d_act is swiglu(joined) afterwards.
        """
        if self.eight is None:
            swiglu_backward_(joined, d_act, keep_act=keep_act)
            return joined, None
        keeps = {"keep_act": keep_act, "keep_gradient": bool(self.adapters)}
        in_eight, d_joined = swiglu_backward_rows(joined, d_act, self.eight.scales, **keeps)
        return d_joined, in_eight

    def activated_gradients(self, joined: Blocks, d_acts: Iterator[Any], parts: int) -> Rows:
        """`activated_gradient` without adapters, for so many parts of the tokens, a d_act for each."""
        scales = []
        for part in joined.split(parts):
            in_eight, _ = swiglu_backward_rows(part, next(d_acts), self.factors)
            if in_eight.values is not part.values:  # without a GPU it is not written over them
                part.values.copy_(in_eight.values)
            scales.append(in_eight.scales)
        return Rows(values=joined.values, scales=torch.cat(scales), dtype=joined.dtype)

    def backward(
        self, d_y: Any, x: Any, u: Any, seed: Seed | None, in_eight: Rows | None = None
    ) -> tuple[Any, tuple[Any, ...]]:
        """(d_x, gradients of `parameters` in their order). `x` may be a `lora.Normed`.

        `in_eight` is d_y times `factors` in 8 bits, where it is so already; without adapters d_y may be None then.
        """
        d_x = self._frozen_gradient(d_y, in_eight)
        small = self.small_gradients(d_y, u)
        if small is None:
            return d_x, ()
        room = lora.sums(d_y, self.work_a)
        lora.backward_(d_x, small.d_u, self.work_a, x, self._side(seed), room)
        return d_x, self._gradients(small, room)

    def input_gradient(self, d_y: Any, u: Any, seed: Seed | None) -> tuple[Any, SmallGradients | None]:
        """(d_x, what `parameter_gradients` takes), without x."""
        d_x, small = self._frozen_gradient(d_y, None), self.small_gradients(d_y, u)
        if small is not None:
            lora.add_input_gradient_(d_x, small.d_u, self.work_a, self._side(seed))
        return d_x, small

    def _frozen_gradient(self, d_y: Any, in_eight: Rows | None) -> Any:
        """d_y W."""
        return d_y @ self.weight(d_y) if self.eight is None else self.eight.input_gradient(d_y, in_eight)

    def small_gradients(self, d_y: Any, u: Any) -> SmallGradients | None:
        """What needs d_y alone; None without adapters."""
        if not self.adapters:
            return None
        d_u, d_b = lora_out.out_gradients(d_y, self.work_b, u, self.columns, self._side(None))
        return SmallGradients(d_u=d_u, d_b=d_b)

    def parameter_gradients(self, small: SmallGradients | None, x: Any, seed: Seed | None) -> tuple[Any, ...]:
        """Gradients of `parameters`, in their order. `x` may be a `lora.Normed`."""
        if small is None:
            return ()
        room = lora.sums(small.d_u, self.work_a)
        lora.weight_gradient(small.d_u, x, self._side(seed), room)
        return self._gradients(small, room)

    def _gradients(self, small: SmallGradients, room: Any) -> tuple[Any, ...]:
        pairs = zip(room.sum(0).split(self.rank), self.adapters, strict=True)
        found = (gradient for d_a, adapter in pairs for gradient in (d_a, small.d_b[adapter.columns]))
        return tuple(gradient.to(self.adapters[0].a.dtype) for gradient in found)

    def _side(self, seed: Seed | None) -> LoraInput:
        drops = seed is not None and self.dropout > 0.0
        return LoraInput(
            rank=self.rank, scaling=self.scaling, p=self.dropout if drops else 0.0, seed=seed if drops else None
        )


def dequantized(weights: Iterable[nf4.Nf4], dtype: Any, device: Any) -> Any:
    """These weights one below the other, dequantized by one launch and rounded as in the library."""
    weights = tuple(weights)
    rows = sum(weight.shape[0] for weight in weights)
    whole = torch.empty((rows, weights[0].shape[1]), dtype=weights[0].dtype, device=device)
    nf4.dequantize_joined(weights, whole)
    return whole.to(dtype)
