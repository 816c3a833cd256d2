"""SwiGLU (`bench.kernels.swiglu`) from and to INT8.

    forward    act = silu(gate) * up                      as `QuantizedRows` with outlier columns
    backward   the joined gradient of gate and up         as `QuantizedRows`, each column times its factor

Gate and up are `QuantizedBlocks` or a tensor. act is written in 16 bits as well only if an adapter needs it.
Bytes moved from QuantizedBlocks: forward 2TI in and TI out, where the bf16 kernel and `quantize_rows` move 10TI;
backward 4TI in and 2TI out, where they move 16TI. Arithmetic limits these kernels as much as memory does, so the
exponential and the reciprocal are approximate, to two units in the last place each.
"""

from typing import Any

import torch

from bench.kernels.int8.row_quant import (
    BLOCK,
    OutlierColumns,
    QuantizedBlocks,
    QuantizedRows,
    dequantize,
    empty_rows,
    from_int8,
    max_with_nan,
    quantize_rows_reference,
    rotate,
    round_to_int8,
    scale_and_inverse,
    warps_for,
)
from bench.kernels.swiglu import swiglu_backward_reference, swiglu_reference
from bench.kernels.triton_compat import ceil_div, jit, next_power_of_2, tl, uses_triton

FORWARD_REGISTERS = 64  # per thread: two programs of 16 warps share a multiprocessor


def swiglu_rows(joined: Any, columns: OutlierColumns | None, *, keep_act: bool = False) -> tuple[QuantizedRows, Any]:
    """Return (act in INT8, act in 16 bits if `keep_act`). joined: (T, 2I), `QuantizedBlocks` or a tensor."""
    values, scales = kernel_tensors(joined)
    if not uses_triton(values):
        act = swiglu_reference(dequantize(joined)).to(joined.dtype)
        return quantize_rows_reference(act, columns=columns), act if keep_act else None
    tokens, inner = values.shape[0], values.shape[1] // 2
    count = 0 if columns is None else len(columns.indices)
    out = empty_rows(tokens, inner, joined.dtype, values.device, outliers=count)
    indices, is_outlier = (values, values) if columns is None else (columns.indices, columns.is_outlier)
    act = torch.empty((tokens, inner), dtype=joined.dtype, device=values.device) if keep_act else None
    _int8_swiglu_forward[(tokens,)](
        values, scales, values if act is None else act, out.values, out.scales,
        values if out.outliers is None else out.outliers, indices, is_outlier, inner, count,
        IN_BLOCKS=isinstance(joined, QuantizedBlocks), STORES_ACT=keep_act, HAS_OUTLIERS=count > 0,
        OUTLIERS=next_power_of_2(max(1, count)), BLOCKS=next_power_of_2(ceil_div(inner, BLOCK)), BLOCK=BLOCK,
        num_warps=warps_for(inner), maxnreg=FORWARD_REGISTERS,
    )  # fmt: skip
    return out, act


def swiglu_backward_rows(
    joined: Any, d_act: Any, factors: Any, *, keep_gradient: bool = False
) -> tuple[QuantizedRows, Any]:
    """Return (gradient (T, 2I) of `joined` in INT8, the same in 16 bits if `keep_gradient`).

    Overwrites `joined`: `QuantizedBlocks` by the INT8 gradient.
    """
    values, scales = kernel_tensors(joined)
    if not uses_triton(values):
        gradient = swiglu_backward_reference(dequantize(joined), d_act).to(d_act.dtype)
        return quantize_rows_reference(gradient, factors=factors), gradient if keep_gradient else None
    tokens, inner = d_act.shape
    in_blocks, gradient = isinstance(joined, QuantizedBlocks), None
    if in_blocks:  # a program reads its whole row before it writes it
        out = QuantizedRows(values=values, scales=torch.empty(tokens, device=values.device), dtype=d_act.dtype)
    else:
        out = empty_rows(tokens, 2 * inner, d_act.dtype, values.device)
    if keep_gradient:
        gradient = torch.empty_like(values, dtype=d_act.dtype) if in_blocks else values
    _int8_swiglu_backward[(tokens,)](
        values, scales, d_act, d_act if gradient is None else gradient, out.values, out.scales, factors, inner,
        IN_BLOCKS=in_blocks, STORES_GRADIENT=keep_gradient, BLOCKS=next_power_of_2(ceil_div(inner, BLOCK)), BLOCK=BLOCK,
        num_warps=warps_for(inner),
    )  # fmt: skip
    return out, gradient


def kernel_tensors(joined: Any) -> tuple[Any, Any]:
    """Return the numbers of `joined` and their scales, unused if it is a tensor."""
    return (joined.values, joined.scales) if isinstance(joined, QuantizedBlocks) else (joined, joined)


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def fast_sigmoid(x):
    # 1 / (1 + 2^(-x log2 e)): Triton's division and exponential take three times as many instructions.
    return tl.inline_asm_elementwise(
        """{ .reg .f32 a;
        mul.ftz.f32 a, $1, 0fBFB8AA3B;
        ex2.approx.ftz.f32 a, a;
        add.ftz.f32 a, a, 0f3F800000;
        rcp.approx.ftz.f32 $0, a;
        }""",
        "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@jit
def load_gate_and_up(joined, scales, row, block, column, inner, IN_BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """Load gate and up at `row` and `column`, which lies in `block`, float32."""
    mask = column < inner
    pointers = joined + row * 2 * inner + column
    gate, up = tl.load(pointers, mask=mask, other=0), tl.load(pointers + inner, mask=mask, other=0)
    if IN_BLOCKS:
        gate, up = from_int8(gate), from_int8(up)
        blocks = inner // BLOCK
        scale = scales + row * 2 * blocks + tl.minimum(block, blocks - 1)
        gate *= tl.load(scale)
        up *= tl.load(scale + blocks)
    return gate.to(tl.float32), up.to(tl.float32)


@jit
def _int8_swiglu_forward(
    joined, scales_joined, act_16, values, scales, outliers, indices, is_outlier, inner, count, IN_BLOCKS: tl.constexpr,
    STORES_ACT: tl.constexpr, HAS_OUTLIERS: tl.constexpr, OUTLIERS: tl.constexpr, BLOCKS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)[:, None]
    column = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = column < inner
    gate, up = load_gate_and_up(joined, scales_joined, row, block, column, inner, IN_BLOCKS, BLOCK)
    act = gate * fast_sigmoid(gate) * up
    if STORES_ACT:
        tl.store(act_16 + row * inner + column, act.to(act_16.dtype.element_ty), mask=mask)
    if HAS_OUTLIERS:
        # Multiplied by 0, not set to 0: a non-finite outlier still marks its row.
        act = tl.where(tl.load(is_outlier + column, mask=mask, other=0) != 0, act * 0.0, act)
    act = rotate(act)
    scale, factor = scale_and_inverse(tl.reduce(tl.abs(act), None, max_with_nan))
    tl.store(scales + row, scale * 0.25)
    tl.store(values + row * inner + column, round_to_int8(act * factor), mask=mask)
    if HAS_OUTLIERS:
        outlier = tl.arange(0, OUTLIERS)
        outlier_mask = outlier < count
        index = tl.load(indices + outlier, mask=outlier_mask, other=0)
        gate, up = load_gate_and_up(joined, scales_joined, row, index // BLOCK, index, inner, IN_BLOCKS, BLOCK)
        act = gate * fast_sigmoid(gate) * up
        tl.store(outliers + row * count + outlier, act.to(outliers.dtype.element_ty), mask=outlier_mask)


@jit
def _int8_swiglu_backward(
    joined, scales_joined, d_act, gradient_16, values, scales, factors, inner, IN_BLOCKS: tl.constexpr,
    STORES_GRADIENT: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)[:, None]
    column = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    mask = column < inner
    gate, up = load_gate_and_up(joined, scales_joined, row, block, column, inner, IN_BLOCKS, BLOCK)
    gradient = tl.load(d_act + row * inner + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = fast_sigmoid(gate)
    silu = gate * sigmoid
    d_gate, d_up = gradient * up * (sigmoid + silu * (1.0 - sigmoid)), gradient * silu
    offsets = row * 2 * inner + column
    if STORES_GRADIENT:
        tl.store(gradient_16 + offsets, d_gate.to(gradient_16.dtype.element_ty), mask=mask)
        tl.store(gradient_16 + offsets + inner, d_up.to(gradient_16.dtype.element_ty), mask=mask)
    d_gate *= tl.load(factors + column, mask=mask, other=0.0)
    d_up *= tl.load(factors + inner + column, mask=mask, other=0.0)
    scale, factor = scale_and_inverse(tl.reduce(max_with_nan(tl.abs(d_gate), tl.abs(d_up)), None, max_with_nan))
    tl.store(scales + row, scale)
    tl.store(values + offsets, round_to_int8(d_gate * factor), mask=mask)
    tl.store(values + offsets + inner, round_to_int8(d_up * factor), mask=mask)
