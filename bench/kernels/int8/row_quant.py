"""Activations and gradients in INT8 with a scale for each row.

    x[t, k]  ~  values[t, k] scales[t]           scales[t] = max over k of |x[t, k]| / 127

A few columns may be left out, those with outliers: they are 0 in `values` and stand apart in 16 bits, because one
number fifty times as large as the others leaves the others few of the 127 steps (LLM.int8(), Dettmers et al. 2022).

A row with a NaN or an infinity gets a scale of NaN, so every product with it is NaN, as in 16 bits. A row of zeros, or
of numbers below SMALLEST, becomes zeros.

Bytes moved: 2TK in, TK out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, power_of_two, tl

MOST = 127.0
SMALLEST = 1e-30


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A matrix in 8 bits: `values` int8 (T, K), `scales` float32 (T,), None where all are 1. `apart` (T, C): columns
    that were left out, of `dtype`, which activations and gradients have in 16 bits."""

    values: Any
    scales: Any = None
    apart: Any = None
    dtype: Any = None

    def split(self, parts: int) -> list["Rows"]:
        """As `split`; no column stands apart."""
        pieces = split(parts, self.values, self.scales)
        return [Rows(values=values, scales=scales, dtype=self.dtype) for values, scales in pieces]


def split(parts: int, *tensors: Any) -> Iterator[tuple[Any, ...]]:
    """So many parts of the tensors' rows, fewer where there are not enough; views."""
    each = -(-len(tensors[0]) // parts)
    return zip(*(tensor.split(each) for tensor in tensors), strict=True)


def empty_rows(tokens: int, width: int, dtype: Any, device: Any, *, apart: int = 0) -> Rows:
    """Room for a matrix of which so many columns stand apart."""
    return Rows(
        values=torch.empty((tokens, width), dtype=torch.int8, device=device),
        scales=torch.empty(tokens, dtype=torch.float32, device=device),
        apart=torch.empty((tokens, apart), dtype=dtype, device=device) if apart else None,
        dtype=dtype,
    )


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of an input that stand apart: their `numbers` int64 (C,), and for each of K whether it is one."""

    numbers: Any
    is_apart: Any


def columns_apart(numbers: Any, width: int) -> Columns:
    """`numbers`: int64 (C,), each below `width`."""
    is_apart = torch.zeros(width, dtype=torch.uint8, device=numbers.device)
    is_apart[numbers] = 1
    return Columns(numbers=numbers.contiguous(), is_apart=is_apart)


def rows(x: Any, *, columns: Columns | None = None, factors: Any = None) -> Rows:
    """x (T, K), contiguous, each column times its factor where there are `factors`, float32 (K,)."""
    if not compiled(x):
        return rows_reference(x, columns=columns, factors=factors)
    tokens, width = x.shape
    count = 0 if columns is None else len(columns.numbers)
    out = empty_rows(tokens, width, x.dtype, x.device, apart=count)
    numbers, is_apart = (x, x) if columns is None else (columns.numbers, columns.is_apart)
    _eight_rows[(tokens,)](
        x, out.values, out.scales, x if out.apart is None else out.apart, numbers, is_apart,
        x if factors is None else factors, width, count, HAS_APART=count > 0, HAS_FACTORS=factors is not None,
        APART=power_of_two(max(1, count)), WIDE=power_of_two(width), num_warps=warps(width),
    )  # fmt: skip
    return out


def warps(width: int) -> int:
    """Of a program that holds a row of this width."""
    return max(1, min(16, power_of_two(width) // 1024))


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def rows_reference(x: Any, *, columns: Columns | None = None, factors: Any = None) -> Rows:
    wide, apart = x.float(), None
    broken = ~wide.isfinite().all(-1)
    if factors is not None:
        wide = wide * factors
    if columns is not None and len(columns.numbers):
        apart = x[:, columns.numbers]
        wide = wide.masked_fill(columns.is_apart.bool(), 0.0)
    largest = wide.nan_to_num(0.0, 0.0, 0.0).abs().amax(-1)
    largest = torch.where(largest < SMALLEST, 0.0, largest)
    factor = torch.where(largest > 0, MOST / largest, 0.0)
    values = (wide * factor[:, None]).nan_to_num(0.0, 0.0, 0.0).clamp(-MOST, MOST).round().to(torch.int8)
    scales = (largest / MOST).masked_fill(broken, float("nan"))
    return Rows(values=values, scales=scales, apart=apart, dtype=x.dtype)


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def rounded(value):
    """To the nearest whole number, of two the even one: 1.5 * 2^23 leaves room for nothing else, and the sum's low byte
    is the number."""
    return (value + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@jit
def larger(a, b):
    """NaN where either is NaN."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def inverse(largest):
    """(the scale, NaN where the largest magnitude is not finite; what all numbers are multiplied by)."""
    largest = tl.where(largest < 1e-30, 0.0, largest)
    return largest / 127.0 + largest * 0.0, tl.where(largest > 0.0, 127.0 / largest, 0.0)


@jit
def _eight_rows(
    x, values, scales, apart, numbers, is_apart, factors, width, count, HAS_APART: tl.constexpr,
    HAS_FACTORS: tl.constexpr, APART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # A whole row at once: two passes over it in pieces took 40 % longer.
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    there = column < width
    value = tl.load(x + row * width + column, mask=there, other=0.0).to(tl.float32)
    if HAS_FACTORS:
        value *= tl.load(factors + column, mask=there, other=0.0)
    if HAS_APART:
        # Times 0, not 0: a number that is not finite marks its row.
        value = tl.where(tl.load(is_apart + column, mask=there, other=0) != 0, value * 0.0, value)
        place = tl.arange(0, APART)
        number = tl.load(numbers + place, mask=place < count, other=0)
        taken = tl.load(x + row * width + number, mask=place < count, other=0.0)
        tl.store(apart + row * count + place, taken, mask=place < count)
    scale, factor = inverse(tl.reduce(tl.abs(value), 0, larger))
    tl.store(scales + row, scale)
    tl.store(values + row * width + column, rounded(value * factor), mask=there)
