"""The B side of LoRA, for all adapters of one product at once, each of which has its own columns of the product.

    forward    y[:, columns_j] = u_j B_j^T                 (T, N), 0 in columns without an adapter
    backward   d_u_j = d_y[:, columns_j] B_j               (T, R)
               d_B_j = d_y[:, columns_j]^T u_j             (N_j, R) float32

u: (T, n R); b: (N, R), a row per column of y. Bytes moved, with R far below N: 2TN per function. Backward is one
kernel, which reads d_y once: a program processes some hundred columns of a few hundred tokens and writes a part of d_B
and one of d_u; parts are added in order. The library uses two or three kernels per function and adapter: it splits the
sum over N and clears a workspace first. One H200, T = 4096, microseconds for both gradients of q k v, o, and gate up,
without the sums of the parts: 24, 18, 77; with one kernel per gradient 49, 40, 145.
"""

from itertools import accumulate
from typing import Any

import torch

from bench.kernels.int8.matmul import MAX_TARGETS, column_edges
from bench.kernels.lora import LoraInput, rank_tiles, sum_parts
from bench.kernels.triton_compat import HOPPER, ceil_div, gpu_properties, jit, next_power_of_2, tl, uses_triton

OUT_TOKENS, OUT_COLUMNS = 64, 128
BACKWARD_RANKS, BACKWARD_COLUMNS = 16, 64  # per program of backward, and columns per iteration


def out(u: Any, b: Any, columns: tuple[slice, ...], adapters: LoraInput) -> Any:
    """Return y in u's dtype."""
    if not uses_triton(u):
        return out_reference(u, b, columns, adapters)
    y = torch.empty((len(u), len(b)), dtype=u.dtype, device=u.device)
    _lora_out[(ceil_div(len(b), OUT_COLUMNS), ceil_div(len(u), OUT_TOKENS))](
        u, b, y, len(u), len(b), u.shape[1], *column_edges(columns), RANK=adapters.rank, TOKENS=OUT_TOKENS,
        RANKS=rank_tiles(adapters.rank, adapters.rank)[0], TARGETS=len(columns), COLUMNS=OUT_COLUMNS, num_warps=4,
    )  # fmt: skip
    return y


def out_gradients(d_y: Any, b: Any, u: Any, columns: tuple[slice, ...], adapters: LoraInput) -> tuple[Any, Any]:
    """Return (d_u in d_y's dtype, d_B (N, R) float32). Rows of d_B without an adapter are uninitialized."""
    if not uses_triton(d_y):
        return out_gradient_reference(d_y, b, columns), out_weight_gradient_reference(d_y, u, columns, adapters)
    tokens, width = d_y.shape
    # Tokens of a program: as many as fit in registers without spilling.
    split = 256 if gpu_properties(d_y.device)[0] >= HOPPER else 128
    chunk = BACKWARD_COLUMNS * max(4, min(16, next_power_of_2(width) // 1024))
    counts = [ceil_div(part.stop - part.start, chunk) for part in columns]
    firsts = (0, *accumulate(counts))
    u_parts = torch.empty((firsts[-1], tokens, adapters.rank), dtype=torch.float32, device=d_y.device)
    b_parts = torch.empty((ceil_div(tokens, split), *b.shape), dtype=torch.float32, device=d_y.device)
    ends = (*firsts[1:], *[firsts[-1]] * MAX_TARGETS)[: MAX_TARGETS - 1]
    _lora_out_gradients[(ceil_div(adapters.rank, BACKWARD_RANKS), firsts[-1], len(b_parts))](
        d_y, b, u, u_parts, b_parts, b_parts.stride(0), tokens, width, u.shape[1], *column_edges(columns), *ends,
        RANK=adapters.rank, SPLIT=split, RANKS=BACKWARD_RANKS, CHUNK=chunk,
        COLUMNS=2 * BACKWARD_COLUMNS // d_y.element_size(), num_warps=8, num_stages=3,
    )  # fmt: skip
    return sum_parts(u_parts, firsts, d_y.dtype), b_parts.sum(0)


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def out_reference(u: Any, b: Any, columns: tuple[slice, ...], adapters: LoraInput) -> Any:
    y = torch.zeros((len(u), len(b)), dtype=u.dtype, device=u.device)
    for part, target_columns in zip(u.split(adapters.rank, dim=-1), columns, strict=True):
        y[:, target_columns] = (part.float() @ b[target_columns].float().T).to(y.dtype)
    return y


def out_gradient_reference(d_y: Any, b: Any, columns: tuple[slice, ...]) -> Any:
    return torch.cat(
        [d_y[:, target_columns].float() @ b[target_columns].float() for target_columns in columns], dim=-1
    ).to(d_y.dtype)


def out_weight_gradient_reference(d_y: Any, u: Any, columns: tuple[slice, ...], adapters: LoraInput) -> Any:
    d_b = torch.zeros((d_y.shape[1], adapters.rank), dtype=torch.float32, device=d_y.device)
    for part, target_columns in zip(u.split(adapters.rank, dim=-1), columns, strict=True):
        d_b[target_columns] = d_y[:, target_columns].float().T @ part.float()
    return d_b


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _lora_out(
    u, b, y, tokens, width, u_stride, first_0, last_0, first_1, last_1, first_2, last_2,
    RANK: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, TARGETS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    first_column = tl.program_id(0) * COLUMNS
    column = first_column + tl.arange(0, COLUMNS)
    total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
    for target in tl.static_range(TARGETS):
        first = first_0 if target == 0 else (first_1 if target == 1 else first_2)
        last = last_0 if target == 0 else (last_1 if target == 1 else last_2)
        if (first_column < last) & (first_column + COLUMNS > first):
            for start in tl.static_range(0, RANK, RANKS):
                rank = start + tl.arange(0, RANKS)
                left = tl.load(
                    u + row[:, None] * u_stride + (target * RANK + rank)[None, :],
                    mask=(row < tokens)[:, None] & (rank < RANK)[None, :],
                    other=0.0,
                )
                column_mask = (column >= first) & (column < last)
                right = tl.load(
                    b + column[None, :] * RANK + rank[:, None],
                    mask=(rank < RANK)[:, None] & column_mask[None, :],
                    other=0.0,
                )
                total = tl.dot(left, right, total, input_precision="ieee")
    mask = (row < tokens)[:, None] & (column < width)[None, :]
    tl.store(y + row[:, None] * width + column[None, :], total.to(y.dtype.element_ty), mask=mask)


@jit(do_not_specialize=["chunks_0", "chunks_1"])
def _lora_out_gradients(
    d_y, b, u, sums, d_b, d_b_stride, tokens, width, u_stride, first_0, last_0, first_1, last_1, first_2, last_2,
    chunks_0, chunks_1, RANK: tl.constexpr, SPLIT: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    # Programs of the same columns and different ranks run at the same time, so d_y is read from memory once.
    chunk, split = tl.program_id(1), tl.program_id(2).to(tl.int64)
    target = tl.where(chunk < chunks_0, 0, tl.where(chunk < chunks_1, 1, 2))
    first = tl.where(target == 0, first_0, tl.where(target == 1, first_1, first_2))
    last = tl.where(target == 0, last_0, tl.where(target == 1, last_1, last_2))
    previous_chunks = tl.where(target == 0, 0, tl.where(target == 1, chunks_0, chunks_1))
    begin = first + (chunk - previous_chunks) * CHUNK
    row, rank = split * SPLIT + tl.arange(0, SPLIT), tl.program_id(0) * RANKS + tl.arange(0, RANKS)
    is_row, rank_mask = (row < tokens)[:, None], (rank < RANK)[None, :]
    right = tl.load(u + row[:, None] * u_stride + (target * RANK + rank)[None, :], mask=is_row & rank_mask, other=0.0)
    total = tl.zeros((SPLIT, RANKS), dtype=tl.float32)
    for start in range(begin, tl.minimum(begin + CHUNK, last), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        column_mask = column < last
        left = tl.load(d_y + row[:, None] * width + column[None, :], mask=is_row & column_mask[None, :], other=0.0)
        offsets, mask = column[:, None] * RANK + rank[None, :], column_mask[:, None] & rank_mask
        total = tl.dot(left, tl.load(b + offsets, mask=mask, other=0.0), total, input_precision="ieee")
        b_tile = tl.dot(tl.trans(left), right, input_precision="ieee")
        tl.store(d_b + split * d_b_stride + offsets, b_tile, mask=mask)
    offsets = (chunk.to(tl.int64) * tokens + row[:, None]) * RANK + rank[None, :]
    tl.store(sums + offsets, total, mask=is_row & rank_mask)
