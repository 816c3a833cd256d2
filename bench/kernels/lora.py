"""The small side of LoRA (Hu et al. 2021), for all adapters of one input at once, dropout included.

With n adapters on the same input x, each with its own A_j (R, K) and its own dropout mask:

    forward    u_j = s drop_j(x) A_j^T                     (T, R)
    backward   d_x += sum over j of s drop_j(d_u_j A_j)    in place
               d_A_j = s d_u_j^T drop_j(x)                 (R, K) float32

s is the adapters' scaling. drop_j keeps each number with probability 1 - p and divides what it keeps by 1 - p. Which
are kept is a hash of the number's place and a seed, the same in forward and backward, so no mask is stored: three
masks of q, k and v would be 100 MB a layer at 4096 tokens in bytes. The library keeps the dropped inputs themselves.

On the other side the adapters stand beside each other: each has columns of the product y of its own.

    forward    y[:, columns_j] = u_j B_j^T                 (T, N), 0 where no adapter is
    backward   d_u_j = d_y[:, columns_j] B_j               (T, R)
               d_B_j = d_y[:, columns_j]^T u_j             (N_j, R) float32

x: (T, K); a: (n R, K), the adapters one below the other; u: (T, n R); b: (N, R), its rows those of y's columns. Bytes
moved, as R is far below K and N: 2TK or 2TN a function, twice that where the gradient of x is added to; the adapters
of one block of tokens run beside each other and share the cache. One launch for all adapters of a product, because at
these sizes starting a kernel costs a fourth of what it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.launch import compiled, jit, parts, power_of_two, tl

WORD = 1 << 32
GOLDEN, MIX_1 = 0x9E3779B9, 0x7FEB352D  # Knuth's, and the first of Wellons' "lowbias32"
# The last product of the hash, whose low bits nobody needs, is each adapter's own: a product more instead of a hash.
OF_TARGET = (0x31848BAB, 0x2C1B3C6D, 0x297A2D39)
# A tile's sides: the best of 16 to 128 tokens and 64 to 256 columns, measured at 4096 x 4096 and rank 16.
TOKENS, COLUMNS, RANKS = 32, 128, 64
TOKENS_OUT = 64
MOST_TARGETS = 3  # adapters on one input: q, k and v
SPLIT_TOKENS = 512  # tokens that one program of a weight's gradient sums up


@dataclass(frozen=True, kw_only=True)
class Side:
    """The adapters of one input: their rank, scaling, dropout probability, and the seed of this input's masks."""

    rank: int
    scaling: float
    p: float
    seed: int

    @property
    def limit(self) -> int:
        """A number is lost where its 32-bit hash lies below this."""
        return round(self.p * WORD)

    @property
    def scale(self) -> float:
        """What a sum over kept numbers is multiplied with."""
        return self.scaling / (1.0 - self.p)


def down(x: Any, a: Any, side: Side) -> Any:
    """u, of x's dtype."""
    if not compiled(x):
        return down_reference(x, a, side)
    tokens, width = x.shape
    u = torch.empty((tokens, a.shape[0]), dtype=x.dtype, device=x.device)
    tall, programs = _rank_tiles(a.shape[0], side.rank)
    _lora_down[(programs, parts(tokens, TOKENS))](
        x, a, u, tokens, width, a.shape[0], side.seed, side.limit, side.scale, RANK=side.rank,
        DROPS=side.p > 0, TOKENS=TOKENS, RANKS=tall, COLUMNS=COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return u


def add_input_gradient_(d_x: Any, d_u: Any, a: Any, side: Side) -> None:
    """Add the adapters' part to `d_x`."""
    if not compiled(d_x):
        d_x.copy_(d_x.float() + input_gradient_reference(d_u, a, side))
        return
    tokens, width = d_x.shape
    tall, _ = _rank_tiles(a.shape[0], side.rank)
    _lora_input_gradient[(parts(width, COLUMNS), parts(tokens, TOKENS))](
        d_x, d_u, a, tokens, width, a.shape[0], side.seed, side.limit, side.scale, RANK=side.rank,
        TARGETS=a.shape[0] // side.rank, DROPS=side.p > 0, TOKENS=TOKENS, RANKS=tall, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip


def weight_gradient(d_u: Any, x: Any, side: Side) -> Any:
    """d_A of all adapters, float32 of shape (n R, K)."""
    if not compiled(x):
        return weight_gradient_reference(d_u, x, side)
    tokens, width = x.shape
    rows, splits = d_u.shape[1], parts(tokens, SPLIT_TOKENS)
    partial = torch.empty((splits, rows, width), dtype=torch.float32, device=x.device)
    tall, programs = _rank_tiles(rows, side.rank)
    _lora_weight_gradient[(programs, parts(width, COLUMNS), splits)](
        d_u, x, partial, tokens, width, rows, side.seed, side.limit, side.scale, RANK=side.rank,
        DROPS=side.p > 0, SPLIT=SPLIT_TOKENS, TOKENS=TOKENS, RANKS=tall, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return partial.sum(0)


def out(u: Any, b: Any, columns: tuple[slice, ...], side: Side) -> Any:
    """y, of u's dtype."""
    if not compiled(u):
        return out_reference(u, b, columns, side)
    y = torch.empty((len(u), len(b)), dtype=u.dtype, device=u.device)
    _lora_out[(parts(len(b), COLUMNS), parts(len(u), TOKENS_OUT))](
        u, b, y, len(u), len(b), u.shape[1], *_edges(columns), RANK=side.rank, TOKENS=TOKENS_OUT,
        RANKS=_rank_tiles(side.rank, side.rank)[0], TARGETS=len(columns), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return y


def out_gradient(d_y: Any, b: Any, columns: tuple[slice, ...], side: Side) -> Any:
    """d_u, of d_y's dtype."""
    if not compiled(d_y):
        return out_gradient_reference(d_y, b, columns)
    d_u = torch.empty((len(d_y), len(columns) * side.rank), dtype=d_y.dtype, device=d_y.device)
    tall, programs = _rank_tiles(d_u.shape[1], side.rank)
    _lora_out_gradient[(programs, parts(len(d_y), TOKENS))](
        d_y, b, d_u, len(d_y), len(b), d_u.shape[1], *_edges(columns), RANK=side.rank, TOKENS=TOKENS, RANKS=tall,
        COLUMNS=COLUMNS, num_warps=4, num_stages=3,
    )  # fmt: skip
    return d_u


def out_weight_gradient(d_y: Any, u: Any, columns: tuple[slice, ...], side: Side) -> Any:
    """d_B, float32 of shape (N, R); rows that are no adapter's are not written."""
    if not compiled(d_y):
        return out_weight_gradient_reference(d_y, u, columns, side)
    tokens, width = d_y.shape
    splits = parts(tokens, SPLIT_TOKENS)
    partial = torch.empty((splits, width, side.rank), dtype=torch.float32, device=d_y.device)
    tall, _ = _rank_tiles(side.rank, side.rank)
    _lora_out_weight_gradient[(parts(width, COLUMNS), parts(side.rank, tall), splits)](
        d_y, u, partial, tokens, width, u.shape[1], *_edges(columns), RANK=side.rank, SPLIT=SPLIT_TOKENS,
        TOKENS=TOKENS, RANKS=tall, TARGETS=len(columns), COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
    return partial.sum(0)


def _edges(columns: tuple[slice, ...]) -> tuple[int, ...]:
    """First and last column of up to three adapters; those that are missing cover none."""
    edges = [edge for each in columns for edge in (each.start, each.stop)]
    return (*edges, *[0] * (2 * MOST_TARGETS - len(edges)))


def _rank_tiles(rows: int, rank: int) -> tuple[int, int]:
    """A tile's height in ranks, and how many tiles cover all adapters, none across two of them."""
    tall = max(16, min(RANKS, power_of_two(rank)))  # Triton's matrix products start at 16
    return tall, rows // rank * parts(rank, tall)


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def kept_reference(tokens: int, width: int, target: int, side: Side, device: Any) -> Any:
    """Which numbers of (T, K) adapter `target` keeps, bool."""
    word = torch.arange(tokens * width, dtype=torch.int64, device=device)
    word = (word * GOLDEN + side.seed) % WORD
    word = ((word ^ (word >> 16)) * MIX_1) % WORD
    word = ((word ^ (word >> 15)) * OF_TARGET[target]) % WORD
    return (word >= side.limit).view(tokens, width)


def dropped_reference(x: Any, target: int, side: Side) -> Any:
    """s drop_j(x) in float32."""
    wide = x.float() * side.scale
    return wide * kept_reference(x.shape[0], x.shape[1], target, side, x.device) if side.p > 0 else wide


def down_reference(x: Any, a: Any, side: Side) -> Any:
    of_targets = [dropped_reference(x, j, side) @ each.float().T for j, each in enumerate(a.split(side.rank))]
    return torch.cat(of_targets, dim=-1).to(x.dtype)


def input_gradient_reference(d_u: Any, a: Any, side: Side) -> Any:
    """float32 of shape (T, K)."""
    pairs = zip(d_u.float().split(side.rank, dim=-1), a.float().split(side.rank), strict=True)
    return sum(dropped_reference(each @ of_target, j, side) for j, (each, of_target) in enumerate(pairs))


def weight_gradient_reference(d_u: Any, x: Any, side: Side) -> Any:
    of_targets = d_u.float().split(side.rank, dim=-1)
    return torch.cat([each.T @ dropped_reference(x, j, side) for j, each in enumerate(of_targets)])


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
def _hashes(row, column, width, seed):
    """All of `kept_reference`'s hash but its last product; 32-bit arithmetic wraps as the remainders there do."""
    word = (row[:, None] * width + column[None, :]).to(tl.uint32) * 0x9E3779B9 + seed.to(tl.uint32)
    word = (word ^ (word >> 16)) * 0x7FEB352D
    return word ^ (word >> 15)


@jit
def _keeps(word, limit, target):
    """Which numbers adapter `target` keeps."""
    last = tl.where(target == 0, 0x31848BAB, tl.where(target == 1, 0x2C1B3C6D, 0x297A2D39))
    return word * last.to(tl.uint32) >= limit.to(tl.uint32)


@jit(do_not_specialize=["seed", "limit"])
def _lora_down(
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
            tile = tl.where(_keeps(_hashes(row, column, width, seed), limit, target), tile, 0.0).to(x.dtype.element_ty)
        side = tl.load(
            a + of_a[None, :] * width + column[:, None], mask=(within < RANK)[None, :] & inside[:, None], other=0.0
        )
        total = tl.dot(tile, side, total, input_precision="ieee")
    there = (row < tokens)[:, None] & (within < RANK)[None, :]
    tl.store(u + row[:, None] * rows + of_a[None, :], (total * scale).to(u.dtype.element_ty), mask=there)


@jit(do_not_specialize=["seed", "limit"])
def _lora_input_gradient(
    d_x, d_u, a, tokens, width, rows, seed, limit, scale,
    RANK: tl.constexpr, TARGETS: tl.constexpr, DROPS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None] * width + column[None, :]
    there = (row < tokens)[:, None] & (column < width)[None, :]
    total = tl.load(d_x + place, mask=there, other=0.0).to(tl.float32)
    if DROPS:
        word = _hashes(row, column, width, seed)
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
            part = tl.where(_keeps(word, limit, target), part, 0.0)
        total += part * scale
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=there)


@jit(do_not_specialize=["seed", "limit"])
def _lora_weight_gradient(
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
            tile = tl.where(_keeps(_hashes(row, column, width, seed), limit, target), tile, 0.0).to(x.dtype.element_ty)
        total = tl.dot(left, tile, total, input_precision="ieee")
    there = (within < RANK)[:, None] & (column < width)[None, :]
    place = partial + (tl.program_id(2).to(tl.int64) * rows + of_a[:, None]) * width + column[None, :]
    tl.store(place, total * scale, mask=there)


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
    d_y, u, partial, tokens, width, rows, first_0, last_0, first_1, last_1, first_2, last_2,
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
            place = partial + (split * width + column[:, None]) * RANK + within[None, :]
            tl.store(place, total, mask=inside[:, None] & (within < RANK)[None, :])
