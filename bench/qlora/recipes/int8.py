"""A frozen weight that is multiplied in 8 bits, with the outlier columns of its input in 16 bits.

The outlier columns are those with the largest numbers in this process's first input, and stay fixed: a model's outlier
columns hardly change between texts, and searching for them each time would cost a pass over every input. To get the
same bits after a restart, the first input must be the same, with new adapters.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bench.kernels import nf4
from bench.kernels.int8 import row_quant, weight_quant
from bench.kernels.int8.matmul import SideInputs, product
from bench.kernels.int8.row_quant import BLOCK, OutlierColumns, QuantizedRows

MAX_OUTLIER_COLUMNS = 32
MIN_WIDTH_PER_OUTLIER = 18  # a narrow input has at most one outlier column per 18 columns
ROW_ALIGNMENT_BYTES = 16  # required of a matrix's rows by the hardware engine that copies tiles


class Int8Linear:
    """The weights `parts` of one product, concatenated by rows.

    y = x W^T is computed with x and W rotated. `hold`: keep the 8-bit values in memory, in both orientations.
    `is_training`: y is in 8 bits; an evaluation computes it in 16, as serving will.
    """

    def __init__(self, parts: tuple[nf4.Nf4, ...], *, hold: bool) -> None:
        self.is_training = True
        self.scales = weight_quant.row_scales(parts)
        self.outlier_columns: OutlierColumns | None = None
        self._parts, self._outlier_weights = parts, None
        self._rotated_scales = weight_quant.row_scales(parts, rotated=True)
        self._held = weight_quant.quantize_rotated(parts, self._rotated_scales) if hold else None
        self._held_transposed = weight_quant.quantize_transposed(parts, self.scales) if hold else None

    def product(self, x: Any, x_int8: QuantizedRows | None, side_inputs: SideInputs, *, in_blocks: bool) -> Any:
        """Compute y (T, N) in x's dtype with its side inputs.

        With `in_blocks`, y is gate and up, in one weight or two, as `QuantizedBlocks` if each consists of whole blocks.
        `x_int8` is x in 8 bits without the outlier columns, if already quantized; then x may be None.
        """
        if x_int8 is None:
            if self.outlier_columns is None:
                self._choose_outliers(x)
            x_int8 = row_quant.quantize_rows(x, columns=self.outlier_columns)
        values, scales = self._held, self._rotated_scales
        if values is None:
            values = weight_quant.quantize_rotated(self._parts, scales)
        side_inputs = dataclasses.replace(side_inputs, outlier_weights=self._outlier_weights)
        in_blocks = in_blocks and len(self.scales) % (2 * BLOCK) == 0
        b = QuantizedRows(values=values, scales=scales)
        return product(x_int8, b, side_inputs, dtype=x_int8.dtype, in_blocks=in_blocks)

    def input_gradient(self, d_y: Any, d_y_int8: QuantizedRows | None) -> Any:
        """Compute d_x (T, K) in d_y's dtype. `d_y_int8` is d_y times `scales` in 8 bits, if already quantized."""
        return next(self.input_gradient_in_parts(d_y, d_y_int8, 1))

    def input_gradient_in_parts(self, d_y: Any, d_y_int8: QuantizedRows | None, parts: int) -> Iterator[Any]:
        """Compute d_x like `input_gradient`, with the tokens in `parts`, one part at a time."""
        if d_y_int8 is None:
            d_y_int8 = row_quant.quantize_rows(d_y, factors=self.scales)
        values = self._held_transposed
        if values is None:
            values = weight_quant.quantize_transposed(self._parts, self.scales)
        for part in row_quant.split(d_y_int8, parts):
            yield product(part, QuantizedRows(values=values), dtype=d_y_int8.dtype)

    def _choose_outliers(self, x: Any) -> None:
        width = x.shape[1]
        count = min(MAX_OUTLIER_COLUMNS, width // MIN_WIDTH_PER_OUTLIER)
        numbers = x.detach().abs().amax(0).topk(count).indices.sort().values
        self.outlier_columns = row_quant.outlier_columns(numbers, width)
        height = sum(part.shape[0] for part in self._parts)
        whole = torch.empty((height, width), dtype=self._parts[0].dtype, device=x.device)
        nf4.dequantize_joined(self._parts, whole)
        self._outlier_weights = whole[:, numbers].to(x.dtype).contiguous()


def unsupported_reason(placement: Any, shapes: Iterable[tuple[int, int]]) -> str | None:
    """Return the first reason why int8 products do not support these shapes, or a device of `fast`; None if they do."""
    if not placement.is_cuda:
        return "no GPU"
    for height, width in shapes:
        if height % ROW_ALIGNMENT_BYTES or width % ROW_ALIGNMENT_BYTES:
            return f"a weight of {height} x {width}, not multiples of {ROW_ALIGNMENT_BYTES}"
    return None
