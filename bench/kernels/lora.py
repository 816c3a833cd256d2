"""The small side of LoRA (Hu et al. 2021), for all adapters of one input at once, dropout included.

With n adapters on the same input x, each with its own A_j (R, K) and its own dropout mask:

    forward    u_j = drop_j(x) A_j^T                     (T, R)
    backward   d_x += sum over j of drop_j(d_u_j A_j)    in place
               d_A_j = d_u_j^T drop_j(x)                 (R, K) float32

drop_j keeps each number with probability 1 - p and divides what it keeps by 1 - p. Which are kept is a hash of the
number's place and a seed, the same in forward and backward, so no mask is stored: three masks of q, k and v would be
100 MB a layer at 4096 tokens in bytes. The library keeps the dropped inputs themselves.

x: (T, K); a: (n R, K), the adapters one below the other; u: (T, n R). Bytes moved, as R is far below K: forward 2TK a
target at most (the targets of one block of tokens run beside each other and share the cache), backward 2 x 2TK and 2TK.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.launch import compiled, jit, parts, power_of_two, tl

WORD = 1 << 32
GOLDEN, MIX_1, MIX_2 = 0x9E3779B9, 0x7FEB352D, 0x846CA68B  # Knuth's, and Wellons' "lowbias32" constants
SALT = 0x2545F491  # sets one adapter's masks apart from the next one's; three times it is still a 32-bit number
TOKENS_DOWN, TOKENS_UP, TOKENS_GRADIENT, COLUMNS, RANKS = 32, 64, 64, 128, 64
SPLIT_TOKENS = 512  # tokens that one program of the weights' gradient sums up


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Probability `p` of losing a number, and the seed of the masks; one layer's input has one seed."""

    p: float
    seed: int

    @property
    def limit(self) -> int:
        """A number is lost where its 32-bit hash lies below this."""
        return round(self.p * WORD)


def down(x: Any, a: Any, rank: int, dropout: Dropout) -> Any:
    """u, of x's dtype."""
    if not compiled(x):
        return down_reference(x, a, rank, dropout)
    tokens, width = x.shape
    u = torch.empty((tokens, a.shape[0]), dtype=x.dtype, device=x.device)
    tall, programs = _rank_tiles(a.shape[0], rank)
    _down[(programs, parts(tokens, TOKENS_DOWN))](
        x, a, u, tokens, width, a.shape[0], dropout.seed, dropout.limit, 1.0 / (1.0 - dropout.p), RANK=rank,
        DROPS=dropout.p > 0, TOKENS=TOKENS_DOWN, RANKS=tall, COLUMNS=COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return u


def add_input_gradient_(d_x: Any, d_u: Any, a: Any, rank: int, dropout: Dropout) -> None:
    """Add the adapters' part to `d_x`."""
    if not compiled(d_x):
        d_x.copy_(d_x.float() + input_gradient_reference(d_u, a, rank, dropout))
        return
    tokens, width = d_x.shape
    tall, _ = _rank_tiles(a.shape[0], rank)
    _input_gradient[(parts(width, COLUMNS), parts(tokens, TOKENS_UP))](
        d_x, d_u, a, tokens, width, a.shape[0], dropout.seed, dropout.limit, 1.0 / (1.0 - dropout.p), RANK=rank,
        TARGETS=a.shape[0] // rank, DROPS=dropout.p > 0, TOKENS=TOKENS_UP, RANKS=tall, COLUMNS=COLUMNS, num_warps=8,
    )  # fmt: skip


def weight_gradient(d_u: Any, x: Any, rank: int, dropout: Dropout) -> Any:
    """d_A of all adapters, float32 of shape (n R, K)."""
    if not compiled(x):
        return weight_gradient_reference(d_u, x, rank, dropout)
    tokens, width = x.shape
    rows, splits = d_u.shape[1], parts(tokens, SPLIT_TOKENS)
    partial = torch.empty((splits, rows, width), dtype=torch.float32, device=x.device)
    tall, programs = _rank_tiles(rows, rank)
    _weight_gradient[(programs, parts(width, COLUMNS), splits)](
        d_u, x, partial, tokens, width, rows, dropout.seed, dropout.limit, 1.0 / (1.0 - dropout.p), RANK=rank,
        DROPS=dropout.p > 0, SPLIT=SPLIT_TOKENS, TOKENS=TOKENS_GRADIENT, RANKS=tall, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return partial.sum(0)


def _rank_tiles(rows: int, rank: int) -> tuple[int, int]:
    """A tile's height in ranks, and how many tiles cover all adapters, none across two of them."""
    tall = max(16, min(RANKS, power_of_two(rank)))  # Triton's matrix products start at 16
    return tall, rows // rank * parts(rank, tall)


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def kept_reference(tokens: int, width: int, target: int, dropout: Dropout, device: Any) -> Any:
    """Which numbers of (T, K) adapter `target` keeps, bool."""
    word = torch.arange(tokens * width, dtype=torch.int64, device=device)
    word = (word * GOLDEN + (dropout.seed + target * SALT)) % WORD
    word = ((word ^ (word >> 16)) * MIX_1) % WORD
    word = ((word ^ (word >> 15)) * MIX_2) % WORD
    return ((word ^ (word >> 16)) >= dropout.limit).view(tokens, width)


def dropped_reference(x: Any, target: int, dropout: Dropout) -> Any:
    """drop_j(x) in float32."""
    wide = x.float()
    if dropout.p == 0:
        return wide
    return wide * kept_reference(*x.shape, target, dropout, x.device) / (1.0 - dropout.p)


def down_reference(x: Any, a: Any, rank: int, dropout: Dropout) -> Any:
    of_targets = [dropped_reference(x, j, dropout) @ each.float().T for j, each in enumerate(a.split(rank))]
    return torch.cat(of_targets, dim=-1).to(x.dtype)


def input_gradient_reference(d_u: Any, a: Any, rank: int, dropout: Dropout) -> Any:
    """float32 of shape (T, K)."""
    pairs = zip(d_u.float().split(rank, dim=-1), a.float().split(rank), strict=True)
    return sum(dropped_reference(each @ of_target, j, dropout) for j, (each, of_target) in enumerate(pairs))


def weight_gradient_reference(d_u: Any, x: Any, rank: int, dropout: Dropout) -> Any:
    of_targets = d_u.float().split(rank, dim=-1)
    return torch.cat([each.T @ dropped_reference(x, j, dropout) for j, each in enumerate(of_targets)])


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _keeps(row, column, width, seed, limit, target):
    """As `kept_reference`; 32-bit arithmetic wraps as its remainders do."""
    word = (row[:, None] * width + column[None, :]).to(tl.uint32) * 0x9E3779B9
    word += seed.to(tl.uint32) + target * 0x2545F491
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return (word ^ (word >> 16)) >= limit.to(tl.uint32)


@jit(do_not_specialize=["seed", "limit"])
def _down(
    x, a, u, tokens, width, rows, seed, limit, scale, RANK: tl.constexpr, DROPS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (RANK + RANKS - 1) // RANKS
    target = tl.program_id(0) // TILES
    within = tl.program_id(0) % TILES * RANKS + tl.arange(0, RANKS)
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    of_a = target * RANK + within
    total = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < width
        tile = tl.load(
            x + row[:, None] * width + column[None, :], mask=(row < tokens)[:, None] & inside[None, :], other=0.0
        )
        if DROPS:
            tile = tl.where(_keeps(row, column, width, seed, limit, target), tile, 0.0).to(x.dtype.element_ty)
        side = tl.load(
            a + of_a[None, :] * width + column[:, None], mask=(within < RANK)[None, :] & inside[:, None], other=0.0
        )
        total = tl.dot(tile, side, total, input_precision="ieee")
    there = (row < tokens)[:, None] & (within < RANK)[None, :]
    tl.store(u + row[:, None] * rows + of_a[None, :], (total * scale).to(u.dtype.element_ty), mask=there)


@jit(do_not_specialize=["seed", "limit"])
def _input_gradient(
    d_x, d_u, a, tokens, width, rows, seed, limit, scale,
    RANK: tl.constexpr, TARGETS: tl.constexpr, DROPS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None] * width + column[None, :]
    there = (row < tokens)[:, None] & (column < width)[None, :]
    total = tl.load(d_x + place, mask=there, other=0.0).to(tl.float32)
    for target in tl.static_range(TARGETS):
        part = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
        for first in tl.static_range(0, RANK, RANKS):
            within = first + tl.arange(0, RANKS)
            of_a = target * RANK + within
            left = tl.load(
                d_u + row[:, None] * rows + of_a[None, :],
                mask=(row < tokens)[:, None] & (within < RANK)[None, :],
                other=0.0,
            )
            right = tl.load(
                a + of_a[:, None] * width + column[None, :],
                mask=(within < RANK)[:, None] & (column < width)[None, :],
                other=0.0,
            )
            part = tl.dot(left, right, part, input_precision="ieee")
        if DROPS:
            part = tl.where(_keeps(row, column, width, seed, limit, target), part, 0.0)
        total += part * scale
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=there)


@jit(do_not_specialize=["seed", "limit"])
def _weight_gradient(
    d_u, x, partial, tokens, width, rows, seed, limit, scale, RANK: tl.constexpr, DROPS: tl.constexpr,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    TILES: tl.constexpr = (RANK + RANKS - 1) // RANKS
    target = tl.program_id(0) // TILES
    within = tl.program_id(0) % TILES * RANKS + tl.arange(0, RANKS)
    of_a = target * RANK + within
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    for start in range(0, SPLIT, TOKENS):
        row = tl.program_id(2).to(tl.int64) * SPLIT + start + tl.arange(0, TOKENS)
        left = tl.load(
            d_u + row[None, :] * rows + of_a[:, None],
            mask=(row < tokens)[None, :] & (within < RANK)[:, None],
            other=0.0,
        )
        tile = tl.load(
            x + row[:, None] * width + column[None, :],
            mask=(row < tokens)[:, None] & (column < width)[None, :],
            other=0.0,
        )
        if DROPS:
            tile = tl.where(_keeps(row, column, width, seed, limit, target), tile, 0.0).to(x.dtype.element_ty)
        total = tl.dot(left, tile, total, input_precision="ieee")
    there = (within < RANK)[:, None] & (column < width)[None, :]
    place = partial + (tl.program_id(2).to(tl.int64) * rows + of_a[:, None]) * width + column[None, :]
    tl.store(place, total * scale, mask=there)
