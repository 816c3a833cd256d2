"""A frozen weight of a product in 8 bits: which products it serves, which columns of its input stand apart.

The columns apart are those with the largest numbers in the first input that this process sees, and stay the same: which
columns hold a model's outliers hardly changes from text to text, and looking for them each time would cost a pass over
every input. For the same bits after a restart, the first input must be the same one, with fresh adapters.
"""

import dataclasses
from typing import Any

import torch

from bench.kernels import nf4
from bench.kernels.eight_bits import rows, weights
from bench.kernels.eight_bits.product import NOTHING, Beside, product
from bench.kernels.eight_bits.rows import Columns, Rows
from bench.kernels.launch import HAS_TRITON

APART = 32  # columns; fewer for a narrow input, of which they would be a large part
SHARE_APART = 18  # of the input's width, at most one in so many
LEAST_CAPABILITY = (8, 0)
ALIGNED = 16  # bytes, of a matrix's row, for the engine that copies tiles


class Eight:
    """The weights `parts` of one product, one below the other.

    `forward`: y = x W^T is done in 8 bits too, not only d_x = d_y W. `hold`: the values in 8 bits are kept, in the
    orientations that are used.
    """

    def __init__(self, parts: tuple[nf4.Nf4, ...], *, forward: bool, hold: bool) -> None:
        self._forward = forward
        self.is_training = True
        self.scales = weights.scales_of(parts)
        self.columns: Columns | None = None
        self._parts, self._apart = parts, None
        self._held = weights.as_it_is(parts, self.scales) if hold and forward else None
        self._held_transposed = weights.transposed(parts, self.scales) if hold else None

    @property
    def forward(self) -> bool:
        """Whether y = x W^T is to be done in 8 bits now."""
        return self._forward and self.is_training

    def product(self, x: Any, beside: Beside) -> Any:
        """y (T, N) of x's dtype, with what stands beside it."""
        if self.columns is None:
            self._choose(x)
        return self.product_of(rows.rows(x, columns=self.columns), x.dtype, beside)

    def product_of(self, x: Rows, dtype: Any, beside: Beside = NOTHING) -> Any:
        """The same of an input that is in 8 bits already, without `columns`."""
        values = weights.as_it_is(self._parts, self.scales) if self._held is None else self._held
        beside = dataclasses.replace(beside, apart=self._apart)
        return product(x, Rows(values=values, scales=self.scales), beside, dtype=dtype)

    def input_gradient(self, d_y: Any) -> Any:
        """d_x (T, K) of d_y's dtype."""
        return self.input_gradient_of(rows.rows(d_y, factors=self.scales), d_y.dtype)

    def input_gradient_of(self, d_y: Rows, dtype: Any) -> Any:
        """The same of a gradient that is in 8 bits already, each column times its scale."""
        values = self._held_transposed
        if values is None:
            values = weights.transposed(self._parts, self.scales)
        return product(d_y, Rows(values=values), dtype=dtype)

    def _choose(self, x: Any) -> None:
        width = x.shape[1]
        numbers = x.detach().abs().amax(0).topk(min(APART, width // SHARE_APART)).indices.sort().values
        self.columns = rows.columns_apart(numbers, width)
        height = sum(part.shape[0] for part in self._parts)
        whole = torch.empty((height, width), dtype=self._parts[0].dtype, device=x.device)
        nf4.dequantize_joined(self._parts, whole)
        self._apart = whole[:, numbers].to(x.dtype).contiguous()


def why_not(torch: Any, placement: Any, shapes: list[tuple[int, int]]) -> str | None:
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
