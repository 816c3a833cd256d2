"""A frozen weight of a product in 8 bits: which products it serves, which columns of its input stand apart.

The columns apart are those with the largest numbers in the first input that this process sees, and stay the same: which
columns hold a model's outliers hardly changes from text to text, and looking for them each time would cost a pass over
every input. For the same bits after a restart, the first input must be the same one, with fresh adapters.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from bench.kernels import nf4
from bench.kernels.int8 import row_quant, weight_quant
from bench.kernels.int8.block_quant import BLOCK
from bench.kernels.int8.matmul import SideInputs, product, product_in_blocks
from bench.kernels.int8.row_quant import Columns, Rows
from bench.kernels.triton_compat import HAS_TRITON

APART = 32  # columns; fewer for a narrow input, of which they would be a large part
SHARE_APART = 18  # of the input's width, at most one in so many
LEAST_CAPABILITY = (8, 0)
ALIGNED = 16  # bytes, of a matrix's row, for the engine that copies tiles


class Int8Linear:
    """The weights `parts` of one product, one below the other.

    `forward`: y = x W^T is done in 8 bits too, not only d_x = d_y W. `hold`: the values in 8 bits are kept, in the
    orientations that are used.
    """

    def __init__(self, parts: tuple[nf4.Nf4, ...], *, forward: bool, hold: bool) -> None:
        self._forward = forward
        self.is_training = True
        self.scales = weight_quant.scales_of(parts)
        self.columns: Columns | None = None
        self._parts, self._apart = parts, None
        self._held = weight_quant.copy(parts, self.scales) if hold and forward else None
        self._held_transposed = weight_quant.transposed(parts, self.scales) if hold else None

    @property
    def forward(self) -> bool:
        """Whether y = x W^T is to be done in 8 bits now."""
        return self._forward and self.is_training

    def product(self, x: Any, in_eight: Rows | None, beside: SideInputs, *, in_blocks: bool) -> Any:
        """y (T, N) of x's dtype, with what stands beside it; with `in_blocks` as `Blocks`, where its parts fit them.

        `in_eight` is x in 8 bits without `columns`, where it is so already; x may be None then.
        """
        if in_eight is None:
            if self.columns is None:
                self._choose(x)
            in_eight = row_quant.rows(x, columns=self.columns)
        values = weight_quant.copy(self._parts, self.scales) if self._held is None else self._held
        beside = dataclasses.replace(beside, apart=self._apart)
        in_blocks = in_blocks and all(part.shape[0] % BLOCK == 0 for part in self._parts)
        multiply = product_in_blocks if in_blocks else product
        return multiply(in_eight, Rows(values=values, scales=self.scales), beside, dtype=in_eight.dtype)

    def input_gradient(self, d_y: Any, in_eight: Rows | None) -> Any:
        """d_x (T, K) of d_y's dtype. `in_eight` is d_y times `scales` in 8 bits, where it is so already."""
        return next(self.input_gradients(d_y, in_eight, 1))

    def input_gradients(self, d_y: Any, in_eight: Rows | None, parts: int) -> Iterator[Any]:
        """The same, so many parts of the tokens one after the other."""
        if in_eight is None:
            in_eight = row_quant.rows(d_y, factors=self.scales)
        values = self._held_transposed
        if values is None:
            values = weight_quant.transposed(self._parts, self.scales)
        for part in in_eight.split(parts):
            yield product(part, Rows(values=values), dtype=in_eight.dtype)

    def _choose(self, x: Any) -> None:
        width = x.shape[1]
        numbers = x.detach().abs().amax(0).topk(min(APART, width // SHARE_APART)).indices.sort().values
        self.columns = row_quant.columns_apart(numbers, width)
        height = sum(part.shape[0] for part in self._parts)
        whole = torch.empty((height, width), dtype=self._parts[0].dtype, device=x.device)
        nf4.dequantize_joined(self._parts, whole)
        self._apart = whole[:, numbers].to(x.dtype).contiguous()


def unsupported_reason(torch: Any, placement: Any, shapes: list[tuple[int, int]]) -> str | None:
    """The first reason why products in 8 bits do not fit this device or weights of these shapes; None where they do."""
    if not placement.is_cuda:
        return "no GPU"
    found = torch.cuda.get_device_capability(placement.device)
    if found < LEAST_CAPABILITY:
        return f"a GPU of compute capability {found[0]}.{found[1]}; 8.0 (A100, A10) or newer is needed"
    if not HAS_TRITON:
        return "triton is not installed"
    for height, width in shapes:
        if height % ALIGNED or width % ALIGNED:
            return f"a weight of {height} x {width}, not multiples of {ALIGNED}"
    return None
