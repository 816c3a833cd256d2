"""INT8 results of a product, with a scale per row and BLOCK columns; used for gate and up.

    y[t, n]  ~  values[t, n] scales[t, n // BLOCK]

The product's kernel writes them: its tile is BLOCK columns wide. They take half the bytes of bf16, in both passes of
SwiGLU and in memory, and add 0.7 % of rounding error to numbers that already have 1.5 % from the INT8 product.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.int8.row_quant import quantize_rows_reference, split_rows

BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class QuantizedBlocks:
    """INT8 matrix: `values` int8 (T, N), `scales` float32 (T, N / BLOCK); `dtype` is that of the original numbers."""

    values: Any
    scales: Any
    dtype: Any

    def split(self, parts: int) -> list["QuantizedBlocks"]:
        """Split the rows into at most `parts` views, like `row_quant.split_rows`."""
        pieces = split_rows(parts, self.values, self.scales)
        return [QuantizedBlocks(values=values, scales=scales, dtype=self.dtype) for values, scales in pieces]


def empty_blocks(tokens: int, width: int, dtype: Any, device: Any) -> QuantizedBlocks:
    """Allocate (T, N); N is a multiple of BLOCK."""
    return QuantizedBlocks(
        values=torch.empty((tokens, width), dtype=torch.int8, device=device),
        scales=torch.empty((tokens, width // BLOCK), dtype=torch.float32, device=device),
        dtype=dtype,
    )


def dequantize(y: Any) -> Any:
    """Return `QuantizedBlocks` or a tensor as float32 (T, N)."""
    if not isinstance(y, QuantizedBlocks):
        return y.float()
    numbers = y.values.float().unflatten(1, (-1, BLOCK)) * y.scales[..., None]
    return numbers.flatten(1)


def quantize_blocks_reference(y: Any, dtype: Any) -> QuantizedBlocks:
    quantized = quantize_rows_reference(y.reshape(-1, BLOCK))
    return QuantizedBlocks(values=quantized.values.view(y.shape), scales=quantized.scales.view(len(y), -1), dtype=dtype)
