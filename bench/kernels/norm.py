"""RMSNorm (Zhang & Sennrich 2019), with the residual sum before it.

    forward    total = x + y;  rstd = 1 / sqrt(mean(total^2) + eps);  normed = total * rstd * weight
    backward   x_hat = total * rstd;  g = weight * d_normed
               d_total = rstd * (g - x_hat * mean(g * x_hat)) + d_passing

x, y, total, normed: (T, H); weight: (H,), frozen; rstd: (T,) float32; d_passing is the gradient of the residual stream
past the norm. A program takes one row, so each tensor is read and written once: with y 4 x 2TH bytes forward, without
2 x 2TH, and 4 x 2TH backward.

A residual stream that is rounded to bf16 after every sum loses what its layers add to its largest numbers. `Stream`
keeps eight bits more, for 2TH bytes of traffic a sum; backward, where nothing adds up, does without them.

What goes into a product in 8 bits, normed or d_total, can be written as `Rows` as well, for TH bytes more.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.int8.row_quant import Columns, Rows, empty_rows, inverse, larger, rounded, rows_reference
from bench.kernels.triton_compat import compiled, jit, power_of_two, tl


@dataclass(frozen=True, kw_only=True)
class ResidualStream:
    """The residual stream (T, H): `high` in the model's dtype, and of a sum in bf16 `low`, its next eight bits in int8.

    As a float32's bits: those of high, plus low x 256. Other dtypes have no `low`.
    """

    high: Any
    low: Any = None


def rms_norm(x: Any, weight: Any, eps: float, y: Any = None) -> tuple[Any, Any, Any]:
    """(normed, rstd, total); total is x itself where there is no y."""
    if not compiled(x):
        return rms_norm_reference(x, weight, eps, y)
    normed, rstd, total, _ = _launched(ResidualStream(high=x), weight, eps, y, splits=False)
    return normed, rstd, total.high


def stream_norm(stream: ResidualStream, weight: Any, eps: float, y: Any = None) -> tuple[Any, Any, ResidualStream]:
    """`rms_norm` of a stream; the total keeps its eight more bits."""
    if not compiled(stream.high):
        return stream_norm_reference(stream, weight, eps, y)
    return _launched(stream, weight, eps, y, splits=stream.high.dtype == torch.bfloat16)[:3]


def stream_norm_rows(
    stream: ResidualStream, weight: Any, eps: float, y: Any, columns: Columns, *, keep_normed: bool
) -> tuple[Any, Any, ResidualStream, Rows]:
    """`stream_norm`, and normed in 8 bits, `columns` apart; without `keep_normed` it is not written in 16 bits."""
    if not compiled(stream.high):
        normed, rstd, total = stream_norm_reference(stream, weight, eps, y)
        return normed if keep_normed else None, rstd, total, rows_reference(normed, columns=columns)
    splits = stream.high.dtype == torch.bfloat16
    return _launched(stream, weight, eps, y, splits=splits, columns=columns, keeps=keep_normed)


def _launched(
    stream: ResidualStream,
    weight: Any,
    eps: float,
    y: Any,
    *,
    splits: bool,
    columns: Columns | None = None,
    keeps: bool = True,
) -> tuple[Any, Any, ResidualStream, Any]:
    x, low = stream.high, stream.low
    tokens, width = x.shape
    normed = torch.empty_like(x) if keeps else None
    rstd = torch.empty(tokens, dtype=torch.float32, device=x.device)
    total = stream
    if y is not None:
        total = ResidualStream(high=torch.empty_like(x), low=torch.empty_like(x, dtype=torch.int8) if splits else None)
    in_eight, beside, count = None, (x,) * 5, 0
    if columns is not None:
        count = len(columns.numbers)
        in_eight = empty_rows(tokens, width, x.dtype, x.device, apart=count)
        beside = in_eight.values, in_eight.scales, in_eight.apart, columns.numbers, columns.is_apart
    _rms_norm_forward[(tokens,)](
        x, x if low is None else low, x if y is None else y, weight, total.high,
        x if total.low is None else total.low, x if normed is None else normed, rstd, *beside, count, width, eps,
        ADDS=y is not None, HAS_LOW=low is not None, SPLITS=splits, KEEPS=keeps, IN_EIGHT=in_eight is not None,
        APART=power_of_two(max(1, count)), WIDE=power_of_two(width), num_warps=_warps(width),
    )  # fmt: skip
    return normed, rstd, total, in_eight


def rms_norm_backward(d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any = None) -> Any:
    """d_total, written over `d_normed`."""
    if not compiled(total):
        d_normed.copy_(rms_norm_backward_reference(d_normed, total, rstd, weight, d_passing))
    else:
        _launched_backward(d_normed, total, rstd, weight, d_passing, None)
    return d_normed


def rms_norm_backward_rows(
    d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any, factors: Any
) -> tuple[Any, Rows]:
    """`rms_norm_backward`, and d_total in 8 bits, each column times its factor."""
    if compiled(total):
        return d_normed, _launched_backward(d_normed, total, rstd, weight, d_passing, factors)
    rms_norm_backward(d_normed, total, rstd, weight, d_passing)
    return d_normed, rows_reference(d_normed, factors=factors)


def _launched_backward(d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any, factors: Any) -> Any:
    tokens, width = total.shape
    in_eight = None if factors is None else empty_rows(tokens, width, total.dtype, total.device)
    beside = (total,) * 3 if in_eight is None else (in_eight.values, in_eight.scales, factors)
    _rms_norm_backward[(tokens,)](
        d_normed, total, rstd, weight, d_normed if d_passing is None else d_passing, *beside, width,
        ADDS=d_passing is not None, IN_EIGHT=in_eight is not None, WIDE=power_of_two(width), num_warps=_warps(width),
    )  # fmt: skip
    return in_eight


def rms_norm_reference(x: Any, weight: Any, eps: float, y: Any = None) -> tuple[Any, Any, Any]:
    """As `rms_norm`. The sum is rounded before the norm, as in the residual stream."""
    total = x if y is None else (x.float() + y.float()).to(x.dtype)
    wide = total.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    return (wide * rstd[:, None] * weight.float()).to(x.dtype), rstd, total


def stream_norm_reference(
    stream: ResidualStream, weight: Any, eps: float, y: Any = None
) -> tuple[Any, Any, ResidualStream]:
    wide = whole(stream) if y is None else whole(stream) + y.float()
    rstd = torch.rsqrt(wide.square().mean(-1) + eps)
    normed = (wide * rstd[:, None] * weight.float()).to(stream.high.dtype)
    return normed, rstd, stream if y is None else split(wide, stream.high.dtype)


def whole(stream: ResidualStream) -> Any:
    """All bits of a stream, float32."""
    wide = stream.high.float()
    if stream.low is None:
        return wide
    return (wide.view(torch.int32) + (stream.low.int() << 8)).view(torch.float32)


def split(wide: Any, dtype: Any) -> ResidualStream:
    """A float32 tensor as a stream."""
    high = wide.to(dtype)
    if dtype != torch.bfloat16:
        return ResidualStream(high=high)
    rest = wide.view(torch.int32) - high.float().view(torch.int32)
    return ResidualStream(high=high, low=(rest + 128 >> 8).clamp(max=127).to(torch.int8))


def rms_norm_backward_reference(d_normed: Any, total: Any, rstd: Any, weight: Any, d_passing: Any = None) -> Any:
    x_hat = total.float() * rstd[:, None]
    g = weight.float() * d_normed.float()
    d_total = rstd[:, None] * (g - x_hat * (g * x_hat).mean(-1, keepdim=True))
    return (d_total if d_passing is None else d_total + d_passing.float()).to(total.dtype)


def _warps(width: int) -> int:
    return max(1, min(16, power_of_two(width) // 512))


@jit
def _summed(x, low, y, place, there, ADDS: tl.constexpr, HAS_LOW: tl.constexpr):
    """The stream's numbers at these places, and y added, float32."""
    value = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
    if HAS_LOW:
        more = tl.load(low + place, mask=there, other=0).to(tl.int32) << 8
        value = (value.to(tl.int32, bitcast=True) + more).to(tl.float32, bitcast=True)
    if ADDS:
        value += tl.load(y + place, mask=there, other=0.0).to(tl.float32)
    return value


@jit
def _rms_norm_forward(
    x, low, y, weight, total, total_low, normed, rstd, values, scales, apart, numbers, is_apart, count, width, eps,
    ADDS: tl.constexpr, HAS_LOW: tl.constexpr, SPLITS: tl.constexpr, KEEPS: tl.constexpr, IN_EIGHT: tl.constexpr,
    APART: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    there = column < width
    place = row * width + column
    value = _summed(x, low, y, place, there, ADDS, HAS_LOW)
    if ADDS:
        high = value.to(total.dtype.element_ty)
        tl.store(total + place, high, mask=there)
        if SPLITS:
            rest = value.to(tl.int32, bitcast=True) - high.to(tl.float32).to(tl.int32, bitcast=True)
            # At most 127: a tie that was rounded down is half a step of `high` above it.
            tl.store(total_low + place, tl.minimum(rest + 128 >> 8, 127).to(tl.int8), mask=there)
        else:
            value = high.to(tl.float32)
    by_rms = 1.0 / tl.sqrt(tl.sum(value * value, axis=0) / width + eps)
    tl.store(rstd + row, by_rms)
    value = value * by_rms * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    if KEEPS:
        tl.store(normed + place, value.to(normed.dtype.element_ty), mask=there)
    if IN_EIGHT:
        # Times 0, not 0: a number that is not finite marks its row.
        value = tl.where(tl.load(is_apart + column, mask=there, other=0) != 0, value * 0.0, value)
        scale, factor = inverse(tl.reduce(tl.abs(value), 0, larger))
        tl.store(scales + row, scale)
        tl.store(values + place, rounded(value * factor), mask=there)
        which = tl.arange(0, APART)
        is_one = which < count
        number = tl.load(numbers + which, mask=is_one, other=0)
        some = _summed(x, low, y, row * width + number, is_one, ADDS, HAS_LOW)
        some = some * by_rms * tl.load(weight + number, mask=is_one, other=0.0).to(tl.float32)
        tl.store(apart + row * count + which, some.to(apart.dtype.element_ty), mask=is_one)


@jit
def _rms_norm_backward(
    d_normed, total, rstd, weight, d_passing, values, scales, factors, width, ADDS: tl.constexpr,
    IN_EIGHT: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    there = column < width
    place = row * width + column
    by_rms = tl.load(rstd + row)
    x_hat = tl.load(total + place, mask=there, other=0.0).to(tl.float32) * by_rms
    g = tl.load(d_normed + place, mask=there, other=0.0).to(tl.float32)
    g *= tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    gradient = by_rms * (g - x_hat * (tl.sum(g * x_hat, axis=0) / width))
    if ADDS:
        gradient += tl.load(d_passing + place, mask=there, other=0.0).to(tl.float32)
    tl.store(d_normed + place, gradient.to(d_normed.dtype.element_ty), mask=there)
    if IN_EIGHT:
        gradient *= tl.load(factors + column, mask=there, other=0.0)
        scale, factor = inverse(tl.reduce(tl.abs(gradient), 0, larger))
        tl.store(scales + row, scale)
        tl.store(values + place, rounded(gradient * factor), mask=there)
