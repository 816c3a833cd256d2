"""The B side of LoRA, for all adapters of one product at once: each has its own columns of the product.

    forward    y[:, columns_j] = u_j B_j^T                 (T, N), 0 where no adapter is
    backward   d_u_j = d_y[:, columns_j] B_j               (T, R)
               d_B_j = d_y[:, columns_j]^T u_j             (N_j, R) float32

u: (T, n R); b: (N, R), a row for each column of y. Bytes moved, as R is far below N: 2TN a function. The library uses
two or three kernels for each function and adapter: it splits the long sum and clears a workspace first.
"""

from typing import Any

import torch

from bench.kernels.launch import compiled, jit, parts, tl
from bench.kernels.lora import COLUMNS, SPLIT_TOKENS, TOKENS, Side, rank_tiles

TOKENS_OUT = 64
MOST_TARGETS = 3  # adapters on one input: q, k and v


def out(u: Any, b: Any, columns: tuple[slice, ...], side: Side) -> Any:
    """y, of u's dtype."""
    if not compiled(u):
        return out_reference(u, b, columns, side)
    y = torch.empty((len(u), len(b)), dtype=u.dtype, device=u.device)
    _lora_out[(parts(len(b), COLUMNS), parts(len(u), TOKENS_OUT))](
        u, b, y, len(u), len(b), u.shape[1], *edges_of(columns), RANK=side.rank, TOKENS=TOKENS_OUT,
        RANKS=rank_tiles(side.rank, side.rank)[0], TARGETS=len(columns), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return y


def out_gradient(d_y: Any, b: Any, columns: tuple[slice, ...], side: Side) -> Any:
    """d_u, of d_y's dtype."""
    if not compiled(d_y):
        return out_gradient_reference(d_y, b, columns)
    d_u = torch.empty((len(d_y), len(columns) * side.rank), dtype=d_y.dtype, device=d_y.device)
    tall, programs = rank_tiles(d_u.shape[1], side.rank)
    _lora_out_gradient[(programs, parts(len(d_y), TOKENS_OUT))](
        d_y, b, d_u, len(d_y), len(b), d_u.shape[1], *edges_of(columns), RANK=side.rank, TOKENS=TOKENS_OUT, RANKS=tall,
        COLUMNS=COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return d_u


def out_weight_gradient(d_y: Any, u: Any, columns: tuple[slice, ...], side: Side, d_b: Any) -> None:
    """Write d_B, (N, R), to `d_b`, a view from `lora.sums`; rows without an adapter are not written."""
    if not compiled(d_y):
        d_b.copy_(out_weight_gradient_reference(d_y, u, columns, side).view(1, -1))
        return
    tokens, width = d_y.shape
    tall, _ = rank_tiles(side.rank, side.rank)
    _lora_out_weight_gradient[(parts(width, COLUMNS), parts(side.rank, tall), len(d_b))](
        d_y, u, d_b, d_b.stride(0), tokens, width, u.shape[1], *edges_of(columns), RANK=side.rank, SPLIT=SPLIT_TOKENS,
        TOKENS=TOKENS, RANKS=tall, TARGETS=len(columns), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip


def edges_of(columns: tuple[slice, ...]) -> tuple[int, ...]:
    """First and last column of three adapters; a missing one covers no column."""
    edges = [edge for each in columns for edge in (each.start, each.stop)]
    return (*edges, *[0] * (2 * MOST_TARGETS - len(edges)))


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def out_reference(u: Any, b: Any, columns: tuple[slice, ...], side: Side) -> Any:
    y = torch.zeros((len(u), len(b)), dtype=u.dtype, device=u.device)
    for part, each in zip(u.split(side.rank, dim=-1), columns, strict=True):
        y[:, each] = (part.float() @ b[each].float().T).to(y.dtype)
    return y


def out_gradient_reference(d_y: Any, b: Any, columns: tuple[slice, ...]) -> Any:
    return torch.cat([d_y[:, each].float() @ b[each].float() for each in columns], dim=-1).to(d_y.dtype)


def out_weight_gradient_reference(d_y: Any, u: Any, columns: tuple[slice, ...], side: Side) -> Any:
    d_b = torch.zeros((d_y.shape[1], side.rank), dtype=torch.float32, device=d_y.device)
    for part, each in zip(u.split(side.rank, dim=-1), columns, strict=True):
        d_b[each] = d_y[:, each].float().T @ part.float()
    return d_b


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _lora_out(
    u, b, y, tokens, width, rows, first_0, last_0, first_1, last_1, first_2, last_2,
    RANK: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, TARGETS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.program_id(0) * COLUMNS
    column = begin + tl.arange(0, COLUMNS)
    total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
    for target in tl.static_range(TARGETS):
        first = first_0 if target == 0 else (first_1 if target == 1 else first_2)
        last = last_0 if target == 0 else (last_1 if target == 1 else last_2)
        if (begin < last) & (begin + COLUMNS > first):
            for start in tl.static_range(0, RANK, RANKS):
                within = start + tl.arange(0, RANKS)
                left = tl.load(
                    u + row[:, None] * rows + (target * RANK + within)[None, :],
                    mask=(row < tokens)[:, None] & (within < RANK)[None, :],
                    other=0.0,
                )
                inside = (column >= first) & (column < last)
                right = tl.load(
                    b + column[None, :] * RANK + within[:, None],
                    mask=(within < RANK)[:, None] & inside[None, :],
                    other=0.0,
                )
                total = tl.dot(left, right, total, input_precision="ieee")
    there = (row < tokens)[:, None] & (column < width)[None, :]
    tl.store(y + row[:, None] * width + column[None, :], total.to(y.dtype.element_ty), mask=there)


@jit
def _lora_out_gradient(
    d_y, b, d_u, tokens, width, rows, first_0, last_0, first_1, last_1, first_2, last_2,
    RANK: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (RANK + RANKS - 1) // RANKS
    target = tl.program_id(0) // TILES
    within = tl.program_id(0) % TILES * RANKS + tl.arange(0, RANKS)
    first = tl.where(target == 0, first_0, tl.where(target == 1, first_1, first_2))
    last = tl.where(target == 0, last_0, tl.where(target == 1, last_1, last_2))
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    total = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for begin in range(first, last, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        inside = column < last
        left = tl.load(
            d_y + row[:, None] * width + column[None, :], mask=(row < tokens)[:, None] & inside[None, :], other=0.0
        )
        right = tl.load(
            b + column[:, None] * RANK + within[None, :], mask=inside[:, None] & (within < RANK)[None, :], other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    there = (row < tokens)[:, None] & (within < RANK)[None, :]
    tl.store(d_u + row[:, None] * rows + (target * RANK + within)[None, :], total.to(d_u.dtype.element_ty), mask=there)


@jit
def _lora_out_weight_gradient(
    d_y, u, d_b, d_b_stride, tokens, width, rows, first_0, last_0, first_1, last_1, first_2, last_2,
    RANK: tl.constexpr, SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, TARGETS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    begin = tl.program_id(0) * COLUMNS
    column = begin + tl.arange(0, COLUMNS)
    within = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    split = tl.program_id(2).to(tl.int64)
    for target in tl.static_range(TARGETS):
        first = first_0 if target == 0 else (first_1 if target == 1 else first_2)
        last = last_0 if target == 0 else (last_1 if target == 1 else last_2)
        if (begin < last) & (begin + COLUMNS > first):
            inside = (column >= first) & (column < last)
            total = tl.zeros((COLUMNS, RANKS), dtype=tl.float32)
            for start in range(0, SPLIT, TOKENS):
                row = split * SPLIT + start + tl.arange(0, TOKENS)
                left = tl.load(
                    d_y + row[None, :] * width + column[:, None],
                    mask=(row < tokens)[None, :] & inside[:, None],
                    other=0.0,
                )
                right = tl.load(
                    u + row[:, None] * rows + (target * RANK + within)[None, :],
                    mask=(row < tokens)[:, None] & (within < RANK)[None, :],
                    other=0.0,
                )
                total = tl.dot(left, right, total, input_precision="ieee")
            place = d_b + split * d_b_stride + column[:, None] * RANK + within[None, :]
            tl.store(place, total, mask=inside[:, None] & (within < RANK)[None, :])
