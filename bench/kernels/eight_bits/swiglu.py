"""SwiGLU (`bench.kernels.swiglu`) whose result goes straight into a product in 8 bits.

    forward    act = silu(gate) * up                      as `Rows`, columns apart as they are
    backward   the joined gradient of gate and up         as `Rows`, each column times its factor

Rounded to the dtype of `joined` before they become 8 bits, so the values are those of `rows.rows` after `swiglu`. For
products without adapters, which want the same numbers in 16 bits: here these are never written. Bytes moved: forward
4TI in and TI out, where the two kernels move 10TI; backward 6TI in and 2TI out, where they move 16TI.
"""

from typing import Any

import torch

from bench.kernels.eight_bits.rows import Columns, Rows, inverse, rounded, rows_reference, warps
from bench.kernels.launch import compiled, jit, power_of_two, tl
from bench.kernels.swiglu import swiglu_backward_reference, swiglu_reference


def swiglu_rows(joined: Any, columns: Columns) -> Rows:
    """act (T, I) of joined (T, 2I)."""
    if not compiled(joined):
        return rows_reference(swiglu_reference(joined), columns=columns)
    tokens, inner = joined.shape[0], joined.shape[1] // 2
    values = torch.empty((tokens, inner), dtype=torch.int8, device=joined.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=joined.device)
    count = len(columns.numbers)
    apart = torch.empty((tokens, count), dtype=joined.dtype, device=joined.device)
    _eight_swiglu[(tokens,)](
        joined, values, scales, apart, columns.numbers, columns.is_apart, inner, count, APART=power_of_two(count),
        WIDE=power_of_two(inner), num_warps=warps(inner),
    )  # fmt: skip
    return Rows(values=values, scales=scales, apart=apart)


def swiglu_backward_rows(joined: Any, d_act: Any, factors: Any, *, keep_act: bool) -> Rows:
    """The gradient (T, 2I) of `joined`, which is used up; with `keep_act`, `d_act` is overwritten by act."""
    if not compiled(joined):
        gradient = rows_reference(swiglu_backward_reference(joined, d_act), factors=factors)
        if keep_act:
            d_act.copy_(swiglu_reference(joined))
        return gradient
    tokens, inner = d_act.shape
    values = torch.empty((tokens, 2 * inner), dtype=torch.int8, device=joined.device)
    scales = torch.empty(tokens, dtype=torch.float32, device=joined.device)
    _eight_swiglu_backward[(tokens,)](
        joined, d_act, values, scales, factors, inner, KEEPS=keep_act, WIDE=power_of_two(inner),
        num_warps=warps(inner),
    )  # fmt: skip
    return Rows(values=values, scales=scales)


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _act(joined, place, inner, there):
    gate = tl.load(joined + place, mask=there, other=0.0).to(tl.float32)
    up = tl.load(joined + place + inner, mask=there, other=0.0).to(tl.float32)
    return (gate * tl.sigmoid(gate) * up).to(joined.dtype.element_ty)


@jit
def _eight_swiglu(
    joined, values, scales, apart, numbers, is_apart, inner, count, APART: tl.constexpr, WIDE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    there = column < inner
    act = _act(joined, row * 2 * inner + column, inner, there).to(tl.float32)
    broken = tl.sum(act * 0.0, axis=0)
    act = tl.where(tl.load(is_apart + column, mask=there, other=0) != 0, 0.0, act)
    largest, factor = inverse(tl.max(tl.abs(act), axis=0))
    tl.store(scales + row, largest / 127.0 + broken)
    tl.store(values + row * inner + column, rounded(act * factor), mask=there)
    place = tl.arange(0, APART)
    number = tl.load(numbers + place, mask=place < count, other=0)
    taken = _act(joined, row * 2 * inner + number, inner, place < count)
    tl.store(apart + row * count + place, taken, mask=place < count)


@jit
def _eight_swiglu_backward(joined, d_act, values, scales, factors, inner, KEEPS: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDE)
    there = column < inner
    place, place_act = row * 2 * inner + column, d_act + row * inner + column
    gate = tl.load(joined + place, mask=there, other=0.0).to(tl.float32)
    up = tl.load(joined + place + inner, mask=there, other=0.0).to(tl.float32)
    gradient = tl.load(place_act, mask=there, other=0.0).to(tl.float32)
    on = tl.sigmoid(gate)
    silu = gate * on
    kind = joined.dtype.element_ty
    of_gate = (gradient * up * on * (1.0 + gate * (1.0 - on))).to(kind).to(tl.float32)
    of_up = (gradient * silu).to(kind).to(tl.float32)
    if KEEPS:
        tl.store(place_act, (silu * up).to(kind), mask=there)
    broken = tl.sum(of_gate * 0.0 + of_up * 0.0, axis=0)
    of_gate *= tl.load(factors + column, mask=there, other=0.0)
    of_up *= tl.load(factors + inner + column, mask=there, other=0.0)
    largest, factor = inverse(tl.max(tl.maximum(tl.abs(of_gate), tl.abs(of_up)), axis=0))
    tl.store(scales + row, largest / 127.0 + broken)
    tl.store(values + place, rounded(of_gate * factor), mask=there)
    tl.store(values + place + inner, rounded(of_up * factor), mask=there)
