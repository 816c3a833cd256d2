"""INT8 activations and gradients with a scale per row.

    x[t, k]  ~  values[t, k] scales[t]           scales[t] = max over k of |x[t, k]| / 127

Columns with outliers may be excluded: they are 0 in `values` and stored separately in 16 bits. One number fifty times
as large as the others would leave those few of the 127 steps (LLM.int8(), Dettmers et al. 2022).

The rest of an input is rotated: each group of GROUP neighbouring columns is multiplied by H = H^T = H^-1, a Hadamard
matrix divided by 4, and so are the weight's columns (`weight_quant.quantize_rotated`): (x H) (W H)^T = x W^T. A large
number is spread over its group, so a row's scale is smaller (QuaRot, Ashkboos et al. 2024). Gradients are not rotated.

A row with a NaN or an infinity gets a scale of NaN, so every product with it is NaN, as in 16 bits. A row whose numbers
are all below MIN_MAGNITUDE becomes zeros.

Bytes moved: 2TK in, TK out.

INT8 results of a product, with a scale per row and BLOCK columns; used for gate and up.

    y[t, n]  ~  values[t, n] scales[t, n // BLOCK]

The product's kernel writes them: its tile is BLOCK columns wide. They take half the bytes of bf16, in both passes of
SwiGLU and in memory, and add 0.7 % of rounding error to numbers that already have 1.5 % from the INT8 product.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch

from bench.kernels.triton_compat import ceil_div, jit, next_power_of_2, tl, uses_triton

MAX_INT8 = 127.0
MIN_MAGNITUDE = 1e-30
GROUP = 16  # columns that are rotated together; a width is a multiple of it


@dataclass(frozen=True, kw_only=True)
class QuantizedRows:
    """INT8 matrix: `values` int8 (T, K) and `scales` float32 (T,), None if all are 1.

    `outliers` (T, C): the excluded columns in `dtype`, that of the original numbers.
    """

    values: Any
    scales: Any = None
    outliers: Any = None
    dtype: Any = None


def split(matrix: Any, parts: int) -> list[Any]:
    """Split the rows of `QuantizedRows` without outlier columns, or `QuantizedBlocks`, into at most `parts` views."""
    rows = ceil_div(len(matrix.values), parts)
    pieces = zip(matrix.values.split(rows), matrix.scales.split(rows), strict=True)
    return [replace(matrix, values=values, scales=scales) for values, scales in pieces]


def empty_rows(tokens: int, width: int, dtype: Any, device: Any, *, outliers: int = 0) -> QuantizedRows:
    """Allocate a matrix with `outliers` outlier columns."""
    return QuantizedRows(
        values=torch.empty((tokens, width), dtype=torch.int8, device=device),
        scales=torch.empty(tokens, dtype=torch.float32, device=device),
        outliers=torch.empty((tokens, outliers), dtype=dtype, device=device) if outliers else None,
        dtype=dtype,
    )


@dataclass(frozen=True, kw_only=True)
class OutlierColumns:
    """Outlier columns of an input: their `indices` int64 (C,), and `is_outlier` uint8 (K,)."""

    indices: Any
    is_outlier: Any


def outlier_columns(indices: Any, width: int) -> OutlierColumns:
    """Mark the columns at `indices`, int64 (C,), each below `width`."""
    is_outlier = torch.zeros(width, dtype=torch.uint8, device=indices.device)
    is_outlier[indices] = 1
    return OutlierColumns(indices=indices.contiguous(), is_outlier=is_outlier)


def quantize_rows(x: Any, *, columns: OutlierColumns | None = None, factors: Any = None) -> QuantizedRows:
    """Quantize x (T, K), contiguous: the input of a product, without `columns` and rotated, or a gradient.

    Each column of a gradient is first multiplied by its factor in `factors`, float32 (K,).
    """
    if not uses_triton(x):
        return quantize_rows_reference(x, columns=columns, factors=factors)
    tokens, width = x.shape
    count = 0 if columns is None else len(columns.indices)
    out = empty_rows(tokens, width, x.dtype, x.device, outliers=count)
    indices, is_outlier = (x, x) if columns is None else (columns.indices, columns.is_outlier)
    _int8_quantize_rows[(tokens,)](
        x, out.values, out.scales, x if out.outliers is None else out.outliers, indices, is_outlier,
        x if factors is None else factors, width, count, ROTATES=columns is not None, HAS_OUTLIERS=count > 0,
        HAS_FACTORS=factors is not None, OUTLIERS=next_power_of_2(max(1, count)),
        COLUMNS=next_power_of_2(width), num_warps=warps_for(width),
    )  # fmt: skip
    return out


def warps_for(width: int) -> int:
    """Return the number of warps for a program that holds a row of this width."""
    return max(1, min(16, next_power_of_2(width) // 1024))


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def quantize_rows_reference(x: Any, *, columns: OutlierColumns | None = None, factors: Any = None) -> QuantizedRows:
    values, outliers = x.float(), None
    is_broken = ~values.isfinite().all(-1)
    if factors is not None:
        values = values * factors
    if columns is not None and len(columns.indices):
        outliers = x[:, columns.indices]
        values = values.masked_fill(columns.is_outlier.bool(), 0.0)
    if columns is not None:
        values = rotate_reference(values)
    largest = values.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
    largest = torch.where(largest < MIN_MAGNITUDE, 0.0, largest)
    factor = torch.where(largest > 0, MAX_INT8 / largest, 0.0)
    codes = (values * factor[:, None]).nan_to_num(0.0, 0.0, 0.0).clamp(-MAX_INT8, MAX_INT8).round().to(torch.int8)
    scales = (largest / MAX_INT8).masked_fill(is_broken, float("nan"))
    return QuantizedRows(values=codes, scales=scales, outliers=outliers, dtype=x.dtype)


def rotate_reference(x: Any) -> Any:
    """Rotate x (rows, K), K a multiple of GROUP; applied twice it returns x."""
    matrix = torch.ones((1, 1), dtype=x.dtype, device=x.device)
    while len(matrix) < GROUP:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return (x.unflatten(-1, (-1, GROUP)) @ (matrix / GROUP**0.5)).flatten(-2)


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def rotate(value):
    """Return 4 x H for each 16 neighbouring numbers of a tensor's last dimension, by four sums and differences each.

    A thread that holds 16 neighbours needs no other thread's.
    """
    pairs = tl.reshape(value, (value.numel // 16, 2, 2, 2, 2))
    for _ in tl.static_range(4):  # each moves the next bit of a number's index to the last dimension
        left, right = tl.split(pairs)
        pairs = tl.permute(tl.join(left + right, left - right), (0, 4, 1, 2, 3))
    return tl.reshape(pairs, value.shape)


@jit
def round_to_int8(value):
    """Round to the nearest integer, ties to even: after adding 1.5 * 2^23 the low byte of the float is the integer."""
    return (value + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@jit
def from_int8(x):
    # Numbers become float32 as the low bytes of 2^23 + 128: a conversion takes the unit that computes exponentials.
    # A literal: a global constant of an inner function makes Triton's cache key depend on what was launched before.
    return tl.inline_asm_elementwise(
        """{ .reg .b32 bytes, a, b, c, d;
        xor.b32 bytes, $4, 0x80808080;
        prmt.b32 a, bytes, 0x4B000000, 0x7440;
        prmt.b32 b, bytes, 0x4B000000, 0x7441;
        prmt.b32 c, bytes, 0x4B000000, 0x7442;
        prmt.b32 d, bytes, 0x4B000000, 0x7443;
        sub.f32 $0, a, 0f4B000080;
        sub.f32 $1, b, 0f4B000080;
        sub.f32 $2, c, 0f4B000080;
        sub.f32 $3, d, 0f4B000080;
        }""",
        "=f,=f,=f,=f,r", [x], dtype=tl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@jit
def max_with_nan(a, b):
    """Return the maximum, NaN if either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def scale_and_inverse(largest):
    """Return (scale, NaN if the largest magnitude is not finite; factor for all numbers of the row)."""
    largest = tl.where(largest < 1e-30, 0.0, largest)
    return largest / 127.0 + largest * 0.0, tl.where(largest > 0.0, 127.0 / largest, 0.0)


@jit
def _int8_quantize_rows(
    x, values, scales, outliers, indices, is_outlier, factors, width, count, ROTATES: tl.constexpr,
    HAS_OUTLIERS: tl.constexpr, HAS_FACTORS: tl.constexpr, OUTLIERS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # A program holds the whole row: two passes over it in pieces took 40 % longer.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < width
    value = tl.load(x + row * width + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_FACTORS:
        value *= tl.load(factors + column, mask=mask, other=0.0)
    if HAS_OUTLIERS:
        # Multiplied by 0, not set to 0: a non-finite outlier still marks its row.
        value = tl.where(tl.load(is_outlier + column, mask=mask, other=0) != 0, value * 0.0, value)
        outlier = tl.arange(0, OUTLIERS)
        index = tl.load(indices + outlier, mask=outlier < count, other=0)
        outlier_values = tl.load(x + row * width + index, mask=outlier < count, other=0.0)
        tl.store(outliers + row * count + outlier, outlier_values, mask=outlier < count)
    if ROTATES:
        value = rotate(value)
    scale, factor = scale_and_inverse(tl.reduce(tl.abs(value), 0, max_with_nan))
    tl.store(scales + row, scale * 0.25 if ROTATES else scale)
    tl.store(values + row * width + column, round_to_int8(value * factor), mask=mask)


BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class QuantizedBlocks:
    """INT8 matrix: `values` int8 (T, N), `scales` float32 (T, N / BLOCK); `dtype` is that of the original numbers."""

    values: Any
    scales: Any
    dtype: Any


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
