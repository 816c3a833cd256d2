"""SwiGLU (`bench.kernels.swiglu`) from and to 8 bits: gate and up may be `Blocks`, and the result is `Rows`.

    forward    act = silu(gate) * up                      as `Rows`, columns apart as they are
    backward   the joined gradient of gate and up         as `Rows`, each column times its factor

In 16 bits these are written only where an adapter wants them so. Bytes moved from Blocks: forward 2TI in and TI out,
where the bf16 kernel and `rows` move 10TI; backward 4TI in and 2TI out, where they move 16TI. Arithmetic bounds these
kernels as much as memory does: hence the approximate exponential and reciprocal, two units in the last place each.
"""

from typing import Any

import torch

from bench.kernels.int8.block_quant import BLOCK, Blocks, restored
from bench.kernels.int8.row_quant import Columns, Rows, empty_rows, inverse, larger, rounded, rows_reference, warps
from bench.kernels.swiglu import swiglu_backward_reference, swiglu_reference
from bench.kernels.triton_compat import compiled, jit, parts, power_of_two, tl


def swiglu_rows(joined: Any, columns: Columns | None, *, keep_act: bool = False) -> tuple[Rows, Any]:
    """(act in 8 bits, and with `keep_act` in 16 bits as well) of joined (T, 2I), `Blocks` or a tensor."""
    values = _values(joined)
    if not compiled(values):
        act = swiglu_reference(restored(joined)).to(joined.dtype)
        return rows_reference(act, columns=columns), act if keep_act else None
    tokens, inner = values.shape[0], values.shape[1] // 2
    count = 0 if columns is None else len(columns.numbers)
    out = empty_rows(tokens, inner, joined.dtype, values.device, apart=count)
    numbers, is_apart = (values, values) if columns is None else (columns.numbers, columns.is_apart)
    act = torch.empty((tokens, inner), dtype=joined.dtype, device=values.device) if keep_act else None
    _eight_swiglu[(tokens,)](
        values, _scales(joined), values if act is None else act, out.values, out.scales,
        values if out.apart is None else out.apart, numbers, is_apart, inner, count,
        IN_BLOCKS=isinstance(joined, Blocks), KEEPS=keep_act, HAS_APART=count > 0, APART=power_of_two(max(1, count)),
        BLOCKS=power_of_two(parts(inner, BLOCK)), BLOCK=BLOCK, num_warps=warps(inner),
    )  # fmt: skip
    return out, act


def swiglu_backward_rows(
    joined: Any, d_act: Any, factors: Any, *, keep_act: bool = False, keep_gradient: bool = False
) -> tuple[Rows, Any]:
    """(the gradient (T, 2I) of `joined` in 8 bits, and with `keep_gradient` in 16 bits as well).

    `joined` is used up: the gradient in 8 bits overwrites `Blocks`. With `keep_act`, `d_act` is overwritten by act.
    """
    values = _values(joined)
    if not compiled(values):
        wide = restored(joined)
        gradient = swiglu_backward_reference(wide, d_act).to(d_act.dtype)
        if keep_act:
            d_act.copy_(swiglu_reference(wide))
        return rows_reference(gradient, factors=factors), gradient if keep_gradient else None
    tokens, inner = d_act.shape
    in_blocks, gradient = isinstance(joined, Blocks), None
    if in_blocks:  # a program has read its row before it writes it
        out = Rows(values=values, scales=torch.empty(tokens, device=values.device), dtype=d_act.dtype)
    else:
        out = empty_rows(tokens, 2 * inner, d_act.dtype, values.device)
    if keep_gradient:
        gradient = torch.empty_like(values, dtype=d_act.dtype) if in_blocks else values
    _eight_swiglu_backward[(tokens,)](
        values, _scales(joined), d_act, d_act if gradient is None else gradient, out.values, out.scales, factors, inner,
        IN_BLOCKS=in_blocks, KEEPS_ACT=keep_act, KEEPS_GRADIENT=keep_gradient,
        BLOCKS=power_of_two(parts(inner, BLOCK)), BLOCK=BLOCK, num_warps=warps(inner),
    )  # fmt: skip
    return out, gradient


def _values(joined: Any) -> Any:
    return joined.values if isinstance(joined, Blocks) else joined


def _scales(joined: Any) -> Any:
    return joined.scales if isinstance(joined, Blocks) else joined


# On the GPU -----------------------------------------------------------------------------------------------------------

# 1 / (1 + 2^(-x log2 e)): Triton's own division and exponential take three times as many instructions.
SIGMOID = tl.constexpr(
    """{ .reg .f32 a;
    mul.ftz.f32 a, $1, 0fBFB8AA3B;
    ex2.approx.ftz.f32 a, a;
    add.ftz.f32 a, a, 0f3F800000;
    rcp.approx.ftz.f32 $0, a;
    }"""
)


@jit
def _sigmoid(x):
    return tl.inline_asm_elementwise(SIGMOID, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@jit
def _gate_and_up(joined, scales, row, block, column, inner, IN_BLOCKS: tl.constexpr, BLOCK: tl.constexpr):
    """A row of both, float32; `column` may be any of `block`'s."""
    there = column < inner
    place = joined + row * 2 * inner + column
    gate = tl.load(place, mask=there, other=0.0).to(tl.float32)
    up = tl.load(place + inner, mask=there, other=0.0).to(tl.float32)
    if IN_BLOCKS:
        many = inner // BLOCK
        scale = scales + row * 2 * many + block
        gate *= tl.load(scale, mask=block < many, other=0.0)
        up *= tl.load(scale + many, mask=block < many, other=0.0)
    return gate, up


@jit
def _eight_swiglu(
    joined, scales_joined, act_16, values, scales, apart, numbers, is_apart, inner, count, IN_BLOCKS: tl.constexpr,
    KEEPS: tl.constexpr, HAS_APART: tl.constexpr, APART: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)[:, None]
    column = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = column < inner
    gate, up = _gate_and_up(joined, scales_joined, row, block, column, inner, IN_BLOCKS, BLOCK)
    act = gate * _sigmoid(gate) * up
    if KEEPS:
        tl.store(act_16 + row * inner + column, act.to(act_16.dtype.element_ty), mask=there)
    if HAS_APART:
        # Times 0, not 0: a number that is not finite marks its row.
        act = tl.where(tl.load(is_apart + column, mask=there, other=0) != 0, act * 0.0, act)
    scale, factor = inverse(tl.reduce(tl.abs(act), None, larger))
    tl.store(scales + row, scale)
    tl.store(values + row * inner + column, rounded(act * factor), mask=there)
    if HAS_APART:
        place = tl.arange(0, APART)
        is_one = place < count
        number = tl.load(numbers + place, mask=is_one, other=0)
        gate, up = _gate_and_up(joined, scales_joined, row, number // BLOCK, number, inner, IN_BLOCKS, BLOCK)
        act = gate * _sigmoid(gate) * up
        tl.store(apart + row * count + place, act.to(apart.dtype.element_ty), mask=is_one)


@jit
def _eight_swiglu_backward(
    joined, scales_joined, d_act, gradient_16, values, scales, factors, inner, IN_BLOCKS: tl.constexpr,
    KEEPS_ACT: tl.constexpr, KEEPS_GRADIENT: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.arange(0, BLOCKS)[:, None]
    column = block * BLOCK + tl.arange(0, BLOCK)[None, :]
    there = column < inner
    place, place_act = row * 2 * inner + column, d_act + row * inner + column
    gate, up = _gate_and_up(joined, scales_joined, row, block, column, inner, IN_BLOCKS, BLOCK)
    gradient = tl.load(place_act, mask=there, other=0.0).to(tl.float32)
    on = _sigmoid(gate)
    silu = gate * on
    if KEEPS_ACT:
        tl.store(place_act, (silu * up).to(d_act.dtype.element_ty), mask=there)
    of_gate = gradient * up * (on + silu * (1.0 - on))
    of_up = gradient * silu
    if KEEPS_GRADIENT:
        tl.store(gradient_16 + place, of_gate.to(gradient_16.dtype.element_ty), mask=there)
        tl.store(gradient_16 + place + inner, of_up.to(gradient_16.dtype.element_ty), mask=there)
    of_gate *= tl.load(factors + column, mask=there, other=0.0)
    of_up *= tl.load(factors + inner + column, mask=there, other=0.0)
    scale, factor = inverse(tl.reduce(larger(tl.abs(of_gate), tl.abs(of_up)), None, larger))
    tl.store(scales + row, scale)
    tl.store(values + place, rounded(of_gate * factor), mask=there)
    tl.store(values + place + inner, rounded(of_up * factor), mask=there)
