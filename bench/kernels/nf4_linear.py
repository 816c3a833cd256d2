"""y = x W^T for few rows of x, with W in NF4 as bitsandbytes keeps it: dequantized in registers, never in memory.

    W[n, k] = nf4[code(n, k)] * absmax(n, k // 64)        absmax = levels[byte] * outer[block // 256] + offset

A decoding step multiplies every weight by one row per sequence. bitsandbytes has a kernel for a single row; for more it
writes the whole matrix in 16 bits and reads it back. Bytes a step must move for N x K weights: K N / 2 of codes and
K N / 64 of scales, instead of those and 4 K N more. The arithmetic (2 M N K) stays far below what the chip can do.

Against `reference` the products differ by rounding alone: here value, scale and their product are rounded to bf16,
there the product is.

Not covered: more than 32 rows, other block sizes than 64, absmax that is not quantized itself; those keep the
library's own way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MOST_ROWS = 32
BLOCK = 64  # weights that share a scale
OUTER = 256  # scales that share a scale
# The sixteen values of NF4, rounded to bf16, as its bits: from -1 by 0 (the eighth) to 1.
NF4_BF16_BITS = (
    *(0xBF80, 0xBF32, 0xBF06, 0xBECA, 0xBE92, 0xBE3D, 0xBDBA, 0x0000),
    *(0x3DA3, 0x3E25, 0x3E7C, 0x3EAD, 0x3EE2, 0x3F10, 0x3F39, 0x3F80),
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A weight of shape (rows, columns) as it lies in memory; views of bitsandbytes' own tensors, nothing copied.

    `codes` uint8 (rows * columns / 2), the first of two weights in the upper four bits; `absmax` uint8 (rows * columns
    / 64); `levels` fp32 (256); `outer` fp32 (absmax / 256, rounded up); `offset` fp32 (1). `values` fp32 (16).
    """

    rows: int
    columns: int
    codes: Any
    absmax: Any
    levels: Any
    outer: Any
    offset: Any
    values: Any


def packed(weight: Any) -> Packed | None:
    """What a `Params4bit` holds; None where it is kept in a way that is not covered."""
    state = getattr(weight, "quant_state", None)
    if state is None or state.quant_type != "nf4" or state.blocksize != BLOCK or not state.nested:
        return None
    rows, columns = state.shape
    if columns % BLOCK or state.state2.blocksize != OUTER:
        return None
    return Packed(
        rows=rows,
        columns=columns,
        codes=weight.data.reshape(-1),
        absmax=state.absmax,
        levels=state.state2.code,
        outer=state.state2.absmax,
        offset=state.offset.reshape(1),
        values=state.code,
    )


def dequantized(torch: Any, weight: Packed, dtype: Any) -> Any:
    """The weight as (rows, columns) of `dtype`, by the formula above in plain PyTorch."""
    codes = torch.stack((weight.codes >> 4, weight.codes & 15), dim=-1).reshape(-1, BLOCK)
    scale = weight.levels[weight.absmax.int()]
    scale = scale * weight.outer.repeat_interleave(OUTER)[: len(scale)] + weight.offset
    return (weight.values[codes.int()] * scale[:, None]).reshape(weight.rows, weight.columns).to(dtype)


def reference(torch: Any, x: Any, weight: Packed) -> Any:
    """x of shape (..., columns) times the dequantized weight: (..., rows) in x's type."""
    return torch.nn.functional.linear(x, dequantized(torch, weight, x.dtype))


def launches(torch: Any, weights: Sequence[Packed], *, most_rows: int) -> list[Callable[[Any], Any]]:
    """One product for each weight, on CUDA: x bf16 (..., columns), at most `most_rows` rows, gives (..., rows) in bf16.

    Deterministic: the parts of a long sum are added in a fixed order. All share one workspace, so one stream at a time.
    """
    from bench.kernels import _nf4_linear as kernel

    processors = torch.cuda.get_device_properties(weights[0].codes.device).multi_processor_count
    cut = [(weight, kernel.shape_for(weight, processors)) for weight in weights]
    workspace = kernel.Workspace(torch, cut, most_rows)
    return [kernel.Launch(torch, weight, shape, workspace) for weight, shape in cut]


def products(stack: Any, linears: Sequence[Any], *, rows: int) -> dict[Any, Callable[[Any], Any]]:
    """This product for each of the linear layers that it covers, for up to `rows` rows; the others are left out.

    None on a CPU, and for more than MOST_ROWS rows. Whoever captures a graph of them keeps them as long as the graph.
    """
    covered = {
        linear: weight
        for linear in linears
        if rows <= MOST_ROWS
        and isinstance(linear, stack.bitsandbytes.nn.Linear4bit)
        and linear.bias is None
        and linear.compute_dtype == stack.torch.bfloat16
        and linear.weight.is_cuda
        and (weight := packed(linear.weight)) is not None
    }
    if not covered:
        return {}
    made = launches(stack.torch, list(covered.values()), most_rows=rows)
    return dict(zip(covered, made, strict=True))
