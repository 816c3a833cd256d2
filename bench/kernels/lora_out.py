"""The B side of LoRA, for all adapters of one product at once: each has its own columns of the product.

    forward    y[:, columns_j] = u_j B_j^T                 (T, N), 0 where no adapter is
    backward   d_u_j = d_y[:, columns_j] B_j               (T, R)
               d_B_j = d_y[:, columns_j]^T u_j             (N_j, R) float32

u: (T, n R); b: (N, R), a row for each column of y. Bytes moved, as R is far below N: 2TN a function. Backward is one
kernel, which reads d_y once: a program takes some hundred columns of a few hundred tokens and writes a part of d_B and
one of d_u; parts are added in order. The library uses two or three kernels for each function and adapter: it splits the
long sum and clears a workspace first. One H200, T = 4096, microseconds for both gradients of q k v, o, and gate up,
without the sums of the parts: 24, 18, 77; by a kernel for each gradient 49, 40, 145.
"""

from itertools import accumulate
from typing import Any

import torch

from bench.kernels.lora import COLUMNS, MOST_TARGETS, LoraInput, added, rank_tiles
from bench.kernels.triton_compat import HOPPER, compiled, gpu, jit, parts, power_of_two, tl

TOKENS_OUT = 64
THIN, BACK_COLUMNS = 16, 64  # ranks of a program of backward, and its columns at a time


def out(u: Any, b: Any, columns: tuple[slice, ...], side: LoraInput) -> Any:
    """y, of u's dtype."""
    if not compiled(u):
        return out_reference(u, b, columns, side)
    y = torch.empty((len(u), len(b)), dtype=u.dtype, device=u.device)
    _lora_out[(parts(len(b), COLUMNS), parts(len(u), TOKENS_OUT))](
        u, b, y, len(u), len(b), u.shape[1], *edges_of(columns), RANK=side.rank, TOKENS=TOKENS_OUT,
        RANKS=rank_tiles(side.rank, side.rank)[0], TARGETS=len(columns), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return y


def out_gradients(d_y: Any, b: Any, u: Any, columns: tuple[slice, ...], side: LoraInput) -> tuple[Any, Any]:
    """(d_u, of d_y's dtype; d_B, (N, R) float32, of which rows without an adapter are not written)."""
    if not compiled(d_y):
        return out_gradient_reference(d_y, b, columns), out_weight_gradient_reference(d_y, u, columns, side)
    tokens, width = d_y.shape
    split = back_tokens(gpu(d_y.device)[0])
    chunk = BACK_COLUMNS * max(4, min(16, power_of_two(width) // 1024))
    counts = [parts(each.stop - each.start, chunk) for each in columns]
    firsts = (0, *accumulate(counts))
    of_u = torch.empty((firsts[-1], tokens, side.rank), dtype=torch.float32, device=d_y.device)
    of_b = torch.empty((parts(tokens, split), *b.shape), dtype=torch.float32, device=d_y.device)
    ends = (*firsts[1:], *[firsts[-1]] * MOST_TARGETS)[: MOST_TARGETS - 1]
    _lora_out_gradients[(parts(side.rank, THIN), firsts[-1], len(of_b))](
        d_y, b, u, of_u, of_b, of_b.stride(0), tokens, width, u.shape[1], *edges_of(columns), *ends, RANK=side.rank,
        SPLIT=split, RANKS=THIN, CHUNK=chunk, COLUMNS=2 * BACK_COLUMNS // d_y.element_size(), num_warps=8, num_stages=3,
    )  # fmt: skip
    return added(of_u, firsts, d_y.dtype), of_b.sum(0)


def back_tokens(capability: tuple[int, int]) -> int:
    """Of a program of backward: as many as registers hold without spilling."""
    return 256 if capability >= HOPPER else 128


def edges_of(columns: tuple[slice, ...]) -> tuple[int, ...]:
    """First and last column of three adapters; a missing one covers no column."""
    edges = [edge for each in columns for edge in (each.start, each.stop)]
    return (*edges, *[0] * (2 * MOST_TARGETS - len(edges)))


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def out_reference(u: Any, b: Any, columns: tuple[slice, ...], side: LoraInput) -> Any:
    y = torch.zeros((len(u), len(b)), dtype=u.dtype, device=u.device)
    for part, each in zip(u.split(side.rank, dim=-1), columns, strict=True):
        y[:, each] = (part.float() @ b[each].float().T).to(y.dtype)
    return y


def out_gradient_reference(d_y: Any, b: Any, columns: tuple[slice, ...]) -> Any:
    return torch.cat([d_y[:, each].float() @ b[each].float() for each in columns], dim=-1).to(d_y.dtype)


def out_weight_gradient_reference(d_y: Any, u: Any, columns: tuple[slice, ...], side: LoraInput) -> Any:
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


@jit(do_not_specialize=["chunks_0", "chunks_1"])
def _lora_out_gradients(
    d_y, b, u, sums, d_b, d_b_stride, tokens, width, rows, first_0, last_0, first_1, last_1, first_2, last_2, chunks_0,
    chunks_1, RANK: tl.constexpr, SPLIT: tl.constexpr, RANKS: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    # Programs that share columns and differ in ranks run side by side: d_y comes from memory once.
    chunk, split = tl.program_id(1), tl.program_id(2).to(tl.int64)
    target = tl.where(chunk < chunks_0, 0, tl.where(chunk < chunks_1, 1, 2))
    first = tl.where(target == 0, first_0, tl.where(target == 1, first_1, first_2))
    last = tl.where(target == 0, last_0, tl.where(target == 1, last_1, last_2))
    before = tl.where(target == 0, 0, tl.where(target == 1, chunks_0, chunks_1))
    begin = first + (chunk - before) * CHUNK
    row, within = split * SPLIT + tl.arange(0, SPLIT), tl.program_id(0) * RANKS + tl.arange(0, RANKS)
    is_row, of_rank = (row < tokens)[:, None], (within < RANK)[None, :]
    right = tl.load(u + row[:, None] * rows + (target * RANK + within)[None, :], mask=is_row & of_rank, other=0.0)
    total = tl.zeros((SPLIT, RANKS), dtype=tl.float32)
    for start in range(begin, tl.minimum(begin + CHUNK, last), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < last
        left = tl.load(d_y + row[:, None] * width + column[None, :], mask=is_row & inside[None, :], other=0.0)
        place, there = column[:, None] * RANK + within[None, :], inside[:, None] & of_rank
        total = tl.dot(left, tl.load(b + place, mask=there, other=0.0), total, input_precision="ieee")
        of_b = tl.dot(tl.trans(left), right, input_precision="ieee")
        tl.store(d_b + split * d_b_stride + place, of_b, mask=there)
    place = (chunk.to(tl.int64) * tokens + row[:, None]) * RANK + within[None, :]
    tl.store(sums + place, total, mask=is_row & of_rank)
