"""AdamW with 8-bit moments, for many tensors in one launch, with bitsandbytes' update rule and state format.

    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    p = (p - lr c2 / c1 * m / (sqrt(v) + c2 eps)) (1 - lr decay),  c1 = 1 - beta1^step,  c2 = sqrt(1 - beta2^step)

m and v are stored as codes (uint8) into a table of 256 values, times the largest magnitude of their block of 256
numbers (Dettmers et al., arXiv 2110.02861). Parameters and gradients are float32. A non-finite gradient leaves its
parameter unchanged and clears its moments, as in bitsandbytes.

Bytes moved: 16 per parameter, and 8 gathers from a table of 1 KiB per code.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from bench.kernels.triton_compat import ceil_div, jit, tl

BLOCK = 256
# Columns of a `TensorTable` row: six addresses, the first block, the number of elements.
TABLE_COLUMNS = 8


class TensorTable:
    """Device table with the addresses of many tensors; valid as long as none of them moves (`key`).

    Of each parameter it has six: the parameter, its gradient, the codes of both moments, the largest magnitude of each
    block of both.
    """

    def __init__(self, tensors: Sequence[Sequence[Any]]) -> None:
        self.key = self.addresses_of(tensors)
        sizes = [parameter.numel() for parameter, *_ in tensors]
        counts = [ceil_div(size, BLOCK) for size in sizes]
        firsts = accumulate(counts, initial=0)
        rows = [[*addresses, first, size] for addresses, first, size in zip(self.key, firsts, sizes, strict=False)]
        device = tensors[0][0].device
        self.blocks = sum(counts)
        self.rows = torch.tensor(rows, dtype=torch.int64).to(device)
        owners = torch.arange(len(counts), dtype=torch.int32)
        self.owners = owners.repeat_interleave(torch.tensor(counts)).to(device)

    @staticmethod
    def addresses_of(tensors: Sequence[Sequence[Any]]) -> list[tuple[int, ...]]:
        return [tuple(tensor.data_ptr() for tensor in row) for row in tensors]


def codebook(signed: Any, unsigned: Any) -> tuple[Any, ...]:
    """Return both code tables (256,), sorted, and the midpoints between neighbours (255,), float32."""
    return signed, unsigned, (signed[1:] + signed[:-1]) / 2, (unsigned[1:] + unsigned[:-1]) / 2


def update_(
    table: TensorTable,
    codes: tuple[Any, ...],
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Update all tensors of the table in place, with the tables of `codebook`. `step` counts from 1."""
    correction = math.sqrt(1.0 - betas[1] ** step)
    _adamw8[(table.blocks,)](
        table.rows, table.owners, *codes, lr * correction / (1.0 - betas[0] ** step), correction * eps, *betas,
        1.0 - lr * weight_decay, BLOCK=BLOCK, TABLE_COLUMNS=TABLE_COLUMNS, num_warps=2,
    )  # fmt: skip


@jit
def _nearest_code(value, midpoints):
    """Count the midpoints below `value`: the code of the nearest table value, by binary search."""
    code = tl.zeros_like(value).to(tl.int32)
    for bit in tl.static_range(8):
        candidate = code + (128 >> bit)
        code = tl.where(value > tl.load(midpoints + candidate - 1), candidate, code)
    return code


@jit
def _adamw8(
    rows, owners, signed, unsigned, signed_midpoints, unsigned_midpoints, step_size, eps, beta1, beta2, decay_factor,
    BLOCK: tl.constexpr, TABLE_COLUMNS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    row = rows + tl.load(owners + block) * TABLE_COLUMNS
    parameter = tl.load(row).to(tl.pointer_type(tl.float32))
    gradient = tl.load(row + 1).to(tl.pointer_type(tl.float32))
    codes_m = tl.load(row + 2).to(tl.pointer_type(tl.uint8))
    codes_v = tl.load(row + 3).to(tl.pointer_type(tl.uint8))
    max_m = tl.load(row + 4).to(tl.pointer_type(tl.float32))
    max_v = tl.load(row + 5).to(tl.pointer_type(tl.float32))
    block -= tl.load(row + 6)  # the tensor's own
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < tl.load(row + 7)
    p = tl.load(parameter + offsets, mask=mask, other=0.0)
    g = tl.load(gradient + offsets, mask=mask, other=0.0)
    is_finite = (g == g) & (tl.abs(g) != float("inf"))
    g = tl.where(is_finite, g, 0.0)
    m = tl.load(signed + tl.load(codes_m + offsets, mask=mask, other=0).to(tl.int32)) * tl.load(max_m + block)
    v = tl.load(unsigned + tl.load(codes_v + offsets, mask=mask, other=0).to(tl.int32)) * tl.load(max_v + block)
    m, v = m * beta1 + (1.0 - beta1) * g, v * beta2 + (1.0 - beta2) * g * g
    m, v = tl.where(is_finite & mask, m, 0.0), tl.where(is_finite & mask, v, 0.0)
    updated = (p - step_size * (m / (tl.sqrt(v) + eps))) * decay_factor
    tl.store(parameter + offsets, tl.where(is_finite, updated, p), mask=mask)
    largest_m, largest_v = tl.max(tl.abs(m), axis=0), tl.max(v, axis=0)
    tl.store(max_m + block, largest_m)
    tl.store(max_v + block, largest_v)
    code_m = _nearest_code(m * tl.where(largest_m > 0, 1.0 / largest_m, 0.0), signed_midpoints)
    code_m -= ((m < 0) & (tl.load(signed + code_m) >= 0)).to(tl.int32)
    code_v = _nearest_code(v * tl.where(largest_v > 0, 1.0 / largest_v, 0.0), unsigned_midpoints)
    tl.store(codes_m + offsets, code_m.to(tl.uint8), mask=mask)
    tl.store(codes_v + offsets, code_v.to(tl.uint8), mask=mask)
