"""A product's result in INT8 with a scale for each row and BLOCK columns: what is written of gate and up.

    y[t, n]  ~  values[t, n] scales[t, n // BLOCK]

The product's own kernel writes it: its tile is BLOCK columns wide. Half of the bytes of bf16, for SwiGLU's two passes
and for what is kept; it adds 0.7 % of rounding error to numbers that already have 1.5 % from a product in 8 bits.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.int8.row_quant import rows_reference, split

BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """`values` int8 (T, N), `scales` float32 (T, N / BLOCK); `dtype` is that of the numbers they stand for."""

    values: Any
    scales: Any
    dtype: Any

    def split(self, parts: int) -> list["Blocks"]:
        """As `rows.split`."""
        pieces = split(parts, self.values, self.scales)
        return [Blocks(values=values, scales=scales, dtype=self.dtype) for values, scales in pieces]


def empty(tokens: int, width: int, dtype: Any, device: Any) -> Blocks:
    """N is a multiple of BLOCK."""
    return Blocks(
        values=torch.empty((tokens, width), dtype=torch.int8, device=device),
        scales=torch.empty((tokens, width // BLOCK), dtype=torch.float32, device=device),
        dtype=dtype,
    )


def restored(y: Any) -> Any:
    """The numbers, float32 (T, N), of `Blocks` or of a tensor."""
    if not isinstance(y, Blocks):
        return y.float()
    wide = y.values.float().unflatten(1, (-1, BLOCK)) * y.scales[..., None]
    return wide.flatten(1)


def blocks_reference(y: Any, dtype: Any) -> Blocks:
    in_eight = rows_reference(y.reshape(-1, BLOCK))
    return Blocks(values=in_eight.values.view(y.shape), scales=in_eight.scales.view(len(y), -1), dtype=dtype)
