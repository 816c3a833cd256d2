"""A product of one frozen NF4 weight, or of several with a common input, and their LoRA adapters.

q, k and v are one product, and so are gate and up: one wide matrix product uses the GPU better than three or two, and
the input is read once. The weights are stored separately; the joined bf16 matrix exists only during the product.

    u   = s drop(x) A^T
    y   = x W^T + u B^T            the adapters' product first; the library's kernel adds the base product to it in
                                   float32
    d_u = d_y B
    d_x = d_y W + s drop(d_u A)
    d_A = s d_u^T drop(x)
    d_B = d_y^T u

x: (T, K); W: (N, K), its linear layers' rows concatenated; A: (R, K) and B: (N_j, R) of each adapted layer; s =
lora_alpha / R. W is frozen and gets no gradient.

The products with W can be done in 8 bits (`bench.qlora.recipes.int8`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import lora, lora_out, nf4
from bench.kernels.int8.matmul import SideInputs
from bench.kernels.int8.row_quant import OutlierColumns, QuantizedBlocks, QuantizedRows, split
from bench.kernels.int8.swiglu import swiglu_backward_rows, swiglu_rows
from bench.kernels.lora import LoraInput, MaskSeed
from bench.kernels.swiglu import swiglu, swiglu_backward_
from bench.qlora.recipes.int8 import Int8Linear


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """One LoRA adapter: its trained float32 parameters, and its columns of the product."""

    a: Any
    b: Any
    columns: slice


@dataclass(frozen=True, kw_only=True)
class FusedLinear:
    """Linear layers with a common input. `scaling` is s, `dropout` its probability; `adapters` may be empty.

    `work_a` is all A in compute precision, concatenated by rows; `work_b` is all B, (N, R), 0 in rows without an
    adapter. `held` is W in 16 bits if it is not dequantized each time. With `int8`, products are done in 8 bits.
    """

    weights: tuple[nf4.Nf4, ...]
    adapters: tuple[Adapter, ...] = ()
    scaling: float = 1.0
    dropout: float = 0.0
    work_a: Any = None
    work_b: Any = None
    held: Any = None
    int8: Int8Linear | None = None

    @property
    def rows(self) -> int:
        """The rows N of W, of all layers together."""
        return sum(weight.shape[0] for weight in self.weights)

    @property
    def rank(self) -> int:
        return int(self.adapters[0].a.shape[0]) if self.adapters else 0

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The A and B of each adapter, in the order of `backward`'s gradients."""
        return tuple(parameter for adapter in self.adapters for parameter in (adapter.a, adapter.b))

    @property
    def working_copies(self) -> tuple[Any, ...]:
        """The working copies of `parameters`, in their order."""
        works = zip(self.work_a.split(self.rank), self.adapters, strict=True) if self.adapters else ()
        return tuple(copy for a, adapter in works for copy in (a, self.work_b[adapter.columns]))

    @property
    def columns(self) -> tuple[slice, ...]:
        """The columns of y that have adapters."""
        return tuple(adapter.columns for adapter in self.adapters)

    def weight(self, like: Any) -> Any:
        """Return W of shape (N, K), in the dtype and on the device of `like`."""
        return self.held if self.held is not None else dequantize(self.weights, like.dtype, like.device)

    @property
    def outlier_columns(self) -> OutlierColumns | None:
        """The outlier columns of an input; None if the product is not in 8 bits, or before its first input."""
        return self.int8.outlier_columns if self.int8 is not None and self.int8.is_training else None

    @property
    def factors(self) -> Any:
        """The factors of y's gradient before its quantization to 8 bits; None if it is not quantized."""
        return None if self.int8 is None else self.int8.scales

    def forward(
        self, x: Any, seed: MaskSeed | None, x_int8: QuantizedRows | None = None, *, in_blocks: bool = False
    ) -> tuple[Any, Any]:
        """Compute (y, u); u is None without adapters. With `in_blocks`, an int8 y that fits is `QuantizedBlocks`.

        `x_int8` is x in 8 bits, if already quantized; then x may be None without adapters.
        """
        lora_input = self._lora_input(seed)
        u = lora.down(x, self.work_a, lora_input) if self.adapters else None
        if self.int8 is not None and self.int8.is_training:
            side_inputs = SideInputs(u=u, work_b=self.work_b, columns=self.columns, rank=self.rank)
            return self.int8.product(x, x_int8, side_inputs, in_blocks=in_blocks), u
        weight = self.weight(x)
        if u is None:
            return x @ weight.T, None
        return lora_out.out(u, self.work_b, self.columns, lora_input).addmm_(x, weight.T), u

    def activate(self, gate_up: Any) -> tuple[Any, QuantizedRows | None]:
        """Compute swiglu(gate_up), the input of `forward`, in 16 and in 8 bits. Unused results are None.

        gate_up: `QuantizedBlocks` or a tensor.
        """
        if self.int8 is None or not self.int8.is_training:
            return swiglu(gate_up), None
        columns = self.outlier_columns
        quantized, act = swiglu_rows(gate_up, columns, keep_act=columns is None or bool(self.adapters))
        return act, None if columns is None else quantized

    def activation_gradient(self, gate_up: Any, d_act: Any) -> tuple[Any, QuantizedRows | None]:
        """Compute the gradient of `gate_up`, this product's y, from d_act, the gradient of swiglu(gate_up).

        The result is in 16 and in 8 bits, for `backward`. Overwrites `gate_up`.
        """
        if self.int8 is None:
            swiglu_backward_(gate_up, d_act)
            return gate_up, None
        keep = bool(self.adapters)
        quantized, d_gate_up = swiglu_backward_rows(gate_up, d_act, self.int8.scales, keep_gradient=keep)
        return d_gate_up, quantized

    def activation_gradient_in_parts(
        self, gate_up: QuantizedBlocks, d_acts: Iterator[Any], parts: int
    ) -> QuantizedRows:
        """Compute `activation_gradient` without adapters, with the tokens in `parts`, one d_act for each part."""
        scales = []
        for part in split(gate_up, parts):
            quantized, _ = swiglu_backward_rows(part, next(d_acts), self.factors)
            if quantized.values is not part.values:  # without a GPU the kernel does not work in place
                part.values.copy_(quantized.values)
            scales.append(quantized.scales)
        return QuantizedRows(values=gate_up.values, scales=torch.cat(scales), dtype=gate_up.dtype)

    def backward(
        self,
        d_y: Any,
        x: Any,
        u: Any,
        seed: MaskSeed | None,
        d_y_int8: QuantizedRows | None = None,
        *,
        needs_x: bool = True,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Compute (d_x, None without `needs_x`; gradients of `parameters` in their order).

        `x` may be a `lora.NormedInput` or a `lora.SwigluInput`. `d_y_int8` is d_y times `factors` in 8 bits, if already
        quantized; then d_y may be None without adapters.
        """
        d_x = None
        if needs_x:
            d_x = d_y @ self.weight(d_y) if self.int8 is None else self.int8.input_gradient(d_y, d_y_int8)
        if not self.adapters:
            return d_x, ()
        d_u, d_b = lora_out.out_gradients(d_y, self.work_b, u, self.columns, self._lora_input(None))
        d_a = lora.backward_(d_x, d_u, self.work_a, x, self._lora_input(seed))
        pairs = zip(d_a.split(self.rank), self.adapters, strict=True)
        gradients = (gradient for d_a, adapter in pairs for gradient in (d_a, d_b[adapter.columns]))
        return d_x, tuple(gradient.to(self.adapters[0].a.dtype) for gradient in gradients)

    def _lora_input(self, seed: MaskSeed | None) -> LoraInput:
        return LoraInput(rank=self.rank, scaling=self.scaling, p=0.0 if seed is None else self.dropout, seed=seed)


def dequantize(weights: Iterable[nf4.Nf4], dtype: Any, device: Any) -> Any:
    """Dequantize weights, concatenated by rows, in one launch; rounding equals the library's."""
    weights = tuple(weights)
    rows = sum(weight.shape[0] for weight in weights)
    whole = torch.empty((rows, weights[0].shape[1]), dtype=weights[0].dtype, device=device)
    nf4.dequantize_joined(weights, whole)
    return whole.to(dtype)
