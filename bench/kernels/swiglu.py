"""SwiGLU (Shazeer 2020) on the joined product of gate and up.

    forward    act = silu(gate) * up,  silu(z) = z sigmoid(z)
    backward   d_up = d_act * silu(gate);  d_gate = d_act * up * sigmoid(gate) (1 + gate (1 - sigmoid(gate)))

joined: (T, 2I), gate then up; act: (T, I). Bytes moved: forward 3 x 2TI; backward 5 x 2TI, where the gradients
overwrite gate and up; 6 where the down projection has an adapter, which needs act: it overwrites its gradient.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, parts, tl

COLUMNS = 1024


def swiglu(joined: Any) -> Any:
    """act."""
    tokens, inner = joined.shape[0], joined.shape[1] // 2
    if not compiled(joined):
        return swiglu_reference(joined)
    act = torch.empty((tokens, inner), dtype=joined.dtype, device=joined.device)
    _swiglu_forward[(tokens, parts(inner, COLUMNS))](joined, act, inner, COLUMNS=COLUMNS, num_warps=4)
    return act


def swiglu_backward_(joined: Any, d_act: Any, *, keep_act: bool) -> None:
    """Overwrite `joined` by its gradient and, with `keep_act`, `d_act` by act."""
    tokens, inner = d_act.shape
    if not compiled(joined):
        act, gradient = swiglu_reference(joined), swiglu_backward_reference(joined, d_act)
        joined.copy_(gradient)
        if keep_act:
            d_act.copy_(act)
        return
    _swiglu_backward[(tokens, parts(inner, COLUMNS))](
        joined, d_act, inner, KEEPS=keep_act, COLUMNS=COLUMNS, num_warps=4
    )  # fmt: skip


def swiglu_reference(joined: Any) -> Any:
    gate, up = joined.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(joined.dtype)


def swiglu_backward_reference(joined: Any, d_act: Any) -> Any:
    gate, up = joined.float().chunk(2, dim=-1)
    on, d_wide = torch.sigmoid(gate), d_act.float()
    d_gate = d_wide * up * on * (1 + gate * (1 - on))
    return torch.cat((d_gate, d_wide * gate * on), dim=-1).to(joined.dtype)


@jit
def _swiglu_forward(joined, act, inner, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < inner
    place = joined + row * 2 * inner + column
    gate = tl.load(place, mask=there, other=0.0).to(tl.float32)
    up = tl.load(place + inner, mask=there, other=0.0).to(tl.float32)
    tl.store(act + row * inner + column, (gate * tl.sigmoid(gate) * up).to(act.dtype.element_ty), mask=there)


@jit
def _swiglu_backward(joined, d_act, inner, KEEPS: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    there = column < inner
    place, place_act = joined + row * 2 * inner + column, d_act + row * inner + column
    gate = tl.load(place, mask=there, other=0.0).to(tl.float32)
    up = tl.load(place + inner, mask=there, other=0.0).to(tl.float32)
    gradient = tl.load(place_act, mask=there, other=0.0).to(tl.float32)
    on = tl.sigmoid(gate)
    silu = gate * on
    kind = joined.dtype.element_ty
    tl.store(place, (gradient * up * on * (1.0 + gate * (1.0 - on))).to(kind), mask=there)
    tl.store(place + inner, (gradient * silu).to(kind), mask=there)
    if KEEPS:
        tl.store(place_act, (silu * up).to(kind), mask=there)
