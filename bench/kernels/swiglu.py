"""SwiGLU (Shazeer 2020) on the joined product of gate and up.

    forward    act = silu(gate) * up,  silu(z) = z sigmoid(z)
    backward   d_up = d_act * silu(gate);  d_gate = d_act * up * sigmoid(gate) (1 + gate (1 - sigmoid(gate)))

joined: (T, 2I), gate then up; act: (T, I). Bytes moved: forward 3 x 2TI; backward 5 x 2TI, with the gradients
overwriting gate and up.
"""

from typing import Any

import torch

from bench.kernels.triton_compat import ceil_div, jit, tl, uses_triton

COLUMNS = 1024


def swiglu(joined: Any) -> Any:
    """Return act."""
    tokens, inner = joined.shape[0], joined.shape[1] // 2
    if not uses_triton(joined):
        return swiglu_reference(joined)
    act = torch.empty((tokens, inner), dtype=joined.dtype, device=joined.device)
    _swiglu_forward[(tokens, ceil_div(inner, COLUMNS))](joined, act, inner, COLUMNS=COLUMNS, num_warps=4)
    return act


def swiglu_backward_(joined: Any, d_act: Any) -> None:
    """Overwrite `joined` with its gradient."""
    tokens, inner = d_act.shape
    if not uses_triton(joined):
        joined.copy_(swiglu_backward_reference(joined, d_act))
        return
    _swiglu_backward[(tokens, ceil_div(inner, COLUMNS))](joined, d_act, inner, COLUMNS=COLUMNS, num_warps=4)


def swiglu_reference(joined: Any) -> Any:
    gate, up = joined.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(joined.dtype)


def swiglu_backward_reference(joined: Any, d_act: Any) -> Any:
    gate, up = joined.float().chunk(2, dim=-1)
    sigmoid, d_act_32 = torch.sigmoid(gate), d_act.float()
    d_gate = d_act_32 * up * sigmoid * (1 + gate * (1 - sigmoid))
    return torch.cat((d_gate, d_act_32 * gate * sigmoid), dim=-1).to(joined.dtype)


@jit
def _swiglu_forward(joined, act, inner, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < inner
    pointers = joined + row * 2 * inner + column
    gate = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(pointers + inner, mask=mask, other=0.0).to(tl.float32)
    tl.store(act + row * inner + column, (gate * tl.sigmoid(gate) * up).to(act.dtype.element_ty), mask=mask)


@jit
def _swiglu_backward(joined, d_act, inner, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < inner
    pointers = joined + row * 2 * inner + column
    gate = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(pointers + inner, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(d_act + row * inner + column, mask=mask, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    dtype = joined.dtype.element_ty
    tl.store(pointers, (gradient * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))).to(dtype), mask=mask)
    tl.store(pointers + inner, (gradient * gate * sigmoid).to(dtype), mask=mask)
