"""RMSNorm (Zhang & Sennrich 2019) with the residual sum before it.

    forward    total = x + y;  rstd = 1 / sqrt(mean(total^2) + eps);  normed = total * rstd * weight
    backward   x_hat = total * rstd;  g = weight * d_normed
               d_total = rstd * (g - x_hat * mean(g * x_hat)) + d_passing

x, y, total, normed: (T, H); weight: (H,), frozen; rstd: (T,) float32; d_passing: the gradient of the residual stream
that bypasses the norm. A program processes one row, so each tensor is read and written once: forward 4 x 2TH bytes with
y and 2 x 2TH without, backward 4 x 2TH.

A residual stream rounded to bf16 after every sum loses what its layers add to its largest numbers. `ResidualStream`
keeps eight more bits, for 2TH bytes of traffic per sum; backward does not accumulate, so it does not need them.

The input of an INT8 product, normed or d_total, can also be written as `QuantizedRows`, for TH bytes more.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.int8.row_quant import (
    OutlierColumns,
    QuantizedRows,
    empty_rows,
    max_with_nan,
    quantize_rows_reference,
    rotate,
    round_to_int8,
    scale_and_inverse,
)
from bench.kernels.triton_compat import jit, next_power_of_2, tl, uses_triton


@dataclass(frozen=True, kw_only=True)
class ResidualStream:
    """Residual stream (T, H): `high` in the model's dtype and, for a sum in bf16, its next eight bits `low` in int8.

    Its float32 bits are those of high plus low x 256. Other dtypes have no `low`.
    """

    high: Any
    low: Any = None


def stream_norm(
    stream: ResidualStream,
    weight: Any,
    eps: float,
    y: Any = None,
    columns: OutlierColumns | None = None,
    *,
    keep_normed: bool = True,
) -> tuple[Any, Any, ResidualStream, QuantizedRows | None]:
    """Return (normed, rstd, total, normed in INT8 if its outlier `columns` are given); total is `stream` without y.

    normed in 16 bits is None without `keep_normed`.
    """
    x, low = stream.high, stream.low
    if not uses_triton(x):
        normed, rstd, total = stream_norm_reference(stream, weight, eps, y)
        quantized = None if columns is None else quantize_rows_reference(normed, columns=columns)
        return normed if keep_normed else None, rstd, total, quantized
    tokens, width = x.shape
    splits = x.dtype == torch.bfloat16
    normed = torch.empty_like(x) if keep_normed else None
    rstd = torch.empty(tokens, dtype=torch.float32, device=x.device)
    total = stream
    if y is not None:
        total = ResidualStream(high=torch.empty_like(x), low=torch.empty_like(x, dtype=torch.int8) if splits else None)
    quantized, quantized_tensors, count = None, (x,) * 5, 0
    if columns is not None:
        count = len(columns.indices)
        quantized = empty_rows(tokens, width, x.dtype, x.device, outliers=count)
        quantized_tensors = quantized.values, quantized.scales, quantized.outliers, columns.indices, columns.is_outlier
    _rms_norm_forward[(tokens,)](
        x, x if low is None else low, x if y is None else y, weight, total.high, x if total.low is None else total.low,
        x if normed is None else normed, rstd, *quantized_tensors, count, width, eps, ADDS=y is not None,
        HAS_LOW=low is not None, SPLITS=splits, STORES_NORMED=keep_normed, QUANTIZES=quantized is not None,
        OUTLIERS=next_power_of_2(max(1, count)), COLUMNS=next_power_of_2(width), num_warps=_warps(width),
    )  # fmt: skip
    return normed, rstd, total, quantized


def rms_norm_backward(
    d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any = None, factors: Any = None
) -> tuple[Any, QuantizedRows | None]:
    """Return (d_total, which overwrites `d_normed`; the same in INT8, each column times its factor, if given)."""
    tokens, width = total.shape
    if not uses_triton(total):
        d_normed.copy_(rms_norm_backward_reference(d_normed, total, rstd, weight, d_passing))
        return d_normed, None if factors is None else quantize_rows_reference(d_normed, factors=factors)
    quantized = None if factors is None else empty_rows(tokens, width, total.dtype, total.device)
    quantized_tensors = (total,) * 3 if quantized is None else (quantized.values, quantized.scales, factors)
    _rms_norm_backward[(tokens,)](
        d_normed, total, rstd, weight, d_normed if d_passing is None else d_passing, *quantized_tensors, width,
        ADDS=d_passing is not None, QUANTIZES=quantized is not None, COLUMNS=next_power_of_2(width),
        num_warps=_warps(width),
    )  # fmt: skip
    return d_normed, quantized


def stream_norm_reference(
    stream: ResidualStream, weight: Any, eps: float, y: Any = None
) -> tuple[Any, Any, ResidualStream]:
    value = join_stream(stream) if y is None else join_stream(stream) + y.float()
    rstd = torch.rsqrt(value.square().mean(-1) + eps)
    normed = (value * rstd[:, None] * weight.float()).to(stream.high.dtype)
    return normed, rstd, stream if y is None else split_stream(value, stream.high.dtype)


def join_stream(stream: ResidualStream) -> Any:
    """Return a stream with all bits, float32."""
    value = stream.high.float()
    if stream.low is None:
        return value
    return (value.view(torch.int32) + (stream.low.int() << 8)).view(torch.float32)


def split_stream(value: Any, dtype: Any) -> ResidualStream:
    """Split a float32 tensor into a stream."""
    high = value.to(dtype)
    if dtype != torch.bfloat16:
        return ResidualStream(high=high)
    difference = value.view(torch.int32) - high.float().view(torch.int32)
    return ResidualStream(high=high, low=(difference + 128 >> 8).clamp(max=127).to(torch.int8))


def rms_norm_backward_reference(d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any = None) -> Any:
    x_hat = total.float() * rstd[:, None]
    g = weight.float() * d_normed.float()
    d_total = rstd[:, None] * (g - x_hat * (g * x_hat).mean(-1, keepdim=True))
    return (d_total if d_passing is None else d_total + d_passing.float()).to(total.dtype)


def _warps(width: int) -> int:
    return max(1, min(16, next_power_of_2(width) // 512))


@jit
def _rms_norm_sum(x, low, y, offsets, mask, ADDS: tl.constexpr, HAS_LOW: tl.constexpr):
    """Load the stream at these offsets and add y, float32."""
    value = tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    if HAS_LOW:
        low_bits = tl.load(low + offsets, mask=mask, other=0).to(tl.int32) << 8
        value = (value.to(tl.int32, bitcast=True) + low_bits).to(tl.float32, bitcast=True)
    if ADDS:
        value += tl.load(y + offsets, mask=mask, other=0.0).to(tl.float32)
    return value


@jit
def _rms_norm_forward(
    x, low, y, weight, total, total_low, normed, rstd, values, scales, outliers, indices, is_outlier, count, width, eps,
    ADDS: tl.constexpr, HAS_LOW: tl.constexpr, SPLITS: tl.constexpr, STORES_NORMED: tl.constexpr,
    QUANTIZES: tl.constexpr, OUTLIERS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < width
    offsets = row * width + column
    value = _rms_norm_sum(x, low, y, offsets, mask, ADDS, HAS_LOW)
    if ADDS:
        high = value.to(total.dtype.element_ty)
        tl.store(total + offsets, high, mask=mask)
        if SPLITS:
            rest = value.to(tl.int32, bitcast=True) - high.to(tl.float32).to(tl.int32, bitcast=True)
            # Clamp to 127: a tie that was rounded down is half a step of `high` above it.
            tl.store(total_low + offsets, tl.minimum(rest + 128 >> 8, 127).to(tl.int8), mask=mask)
        else:
            value = high.to(tl.float32)
    row_rstd = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    tl.store(rstd + row, row_rstd)
    value = value * row_rstd * tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    if STORES_NORMED:
        tl.store(normed + offsets, value.to(normed.dtype.element_ty), mask=mask)
    if QUANTIZES:
        # Multiplied by 0, not set to 0: a non-finite outlier still marks its row.
        value = tl.where(tl.load(is_outlier + column, mask=mask, other=0) != 0, value * 0.0, value)
        value = rotate(value)
        scale, factor = scale_and_inverse(tl.reduce(tl.abs(value), 0, max_with_nan))
        tl.store(scales + row, scale * 0.25)
        tl.store(values + offsets, round_to_int8(value * factor), mask=mask)
        outlier = tl.arange(0, OUTLIERS)
        outlier_mask = outlier < count
        index = tl.load(indices + outlier, mask=outlier_mask, other=0)
        outlier_values = _rms_norm_sum(x, low, y, row * width + index, outlier_mask, ADDS, HAS_LOW)
        outlier_values = (
            outlier_values * row_rstd * tl.load(weight + index, mask=outlier_mask, other=0.0).to(tl.float32)
        )
        tl.store(outliers + row * count + outlier, outlier_values.to(outliers.dtype.element_ty), mask=outlier_mask)


@jit
def _rms_norm_backward(
    d_normed, total, rstd, weight, d_passing, values, scales, factors, width, ADDS: tl.constexpr,
    QUANTIZES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    mask = column < width
    offsets = row * width + column
    row_rstd = tl.load(rstd + row)
    x_hat = tl.load(total + offsets, mask=mask, other=0.0).to(tl.float32) * row_rstd
    g = tl.load(d_normed + offsets, mask=mask, other=0.0).to(tl.float32)
    g *= tl.load(weight + column, mask=mask, other=0.0).to(tl.float32)
    gradient = row_rstd * (g - x_hat * (tl.sum(g * x_hat, axis=0) / width))
    if ADDS:
        gradient += tl.load(d_passing + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(d_normed + offsets, gradient.to(d_normed.dtype.element_ty), mask=mask)
    if QUANTIZES:
        gradient *= tl.load(factors + column, mask=mask, other=0.0)
        scale, factor = scale_and_inverse(tl.reduce(tl.abs(gradient), 0, max_with_nan))
        tl.store(scales + row, scale)
        tl.store(values + offsets, round_to_int8(gradient * factor), mask=mask)
