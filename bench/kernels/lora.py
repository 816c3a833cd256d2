"""The A side of LoRA (Hu et al. 2021), for all adapters of one input at once, dropout included.

With n adapters on the same input x, each with its own A_j (R, K) and its own dropout mask:

    forward    u_j = s drop_j(x) A_j^T                     (T, R)
    backward   d_x += sum over j of s drop_j(d_u_j A_j)    in place
               d_A_j = s d_u_j^T drop_j(x)                 (R, K) float32

s is the adapters' scaling. drop_j keeps each number with probability 1 - p and divides it by 1 - p. A hash decides,
the same in forward and backward, so no mask is stored: three byte masks of q, k and v would take 100 MB a layer at 4096
tokens. The library keeps the dropped inputs themselves. Row and column are each mixed with the seed, once for a tile's
side; a number costs one exclusive or, and for each adapter one product, whose 32 bits are compared with p.

x: (T, K); a: (n R, K), the adapters one below the other; u: (T, n R). Bytes moved, as R is far below K: 2TK a function,
twice that where the gradient of x is added to; the adapters of one block of tokens run together and share the cache.
One launch serves all adapters of an input up to MOST_RANKS ranks. `down` also divides the long sum among programs, as
4096 tokens alone do not fill a GPU; `_lora_sum` adds their parts in order. `backward_` computes both gradients at once:
it reads x and d_x together, uses each hash twice, and recomputes a normed x instead of reading it. The B side is
`bench.kernels.lora_out`.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import HOPPER, compiled, gpu, jit, parts, power_of_two, tl

WORD = 1 << 32
GOLDEN, OF_COLUMN = 0x9E3779B9, 0x85EBCA6B  # spread neighbours before they are mixed
MIX = (0x7FEB352D, 0x846CA68B)  # of Wellons' "lowbias32"
OF_TARGET = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # each adapter's own product
# A tile's sides: the best of 16 to 128 tokens and 64 to 256 columns, measured at 4096 x 4096 and rank 16.
TOKENS, COLUMNS, RANKS = 32, 128, 64
SPLIT_COLUMNS, MOST_SPLITS = 1024, 8
SPLIT_TOKENS = 512  # tokens that one program of a weight's gradient adds up
MOST_TARGETS = 3  # adapters on one input: q, k and v
MOST_RANKS = 64  # of all adapters of one input, for one program to serve them all


@dataclass(frozen=True, kw_only=True)
class Seed:
    """Of one input's masks: the sum of `number`, int64 () on the input's device, and `plus`.

    On the device, so that steps captured as a graph (`bench.qlora.recipes.cuda_graph`) read another one in each replay.
    """

    number: Any
    plus: int = 0


@dataclass(frozen=True, kw_only=True)
class LoraInput:
    """The adapters of one input: their rank, scaling, dropout probability, and the seed of this input's masks."""

    rank: int
    scaling: float
    p: float = 0.0
    seed: Seed | None = None  # None where p is 0

    @property
    def limit(self) -> int:
        """A number is dropped where its 32-bit hash is below this."""
        return round(self.p * WORD)

    @property
    def scale(self) -> float:
        """The factor of a sum over kept numbers."""
        return self.scaling / (1.0 - self.p)

    def masks(self, like: Any) -> tuple[Any, int, int]:
        """(seed, plus, limit) for a kernel; any tensor stands for a seed that is not read."""
        return (like, 0, 0) if self.seed is None else (self.seed.number, self.seed.plus, self.limit)


@dataclass(frozen=True, kw_only=True)
class Normed:
    """An input that is not kept: the norm (`bench.kernels.norm`) of `total` (T, K) with these rstd and weight."""

    total: Any
    rstd: Any
    weight: Any

    def made(self) -> Any:
        """The input itself, rounded as by the norm."""
        wide = self.total * self.rstd[:, None]  # float32, as rstd is
        return wide.mul_(self.weight.float()).to(self.total.dtype)


def down(x: Any, a: Any, side: LoraInput) -> Any:
    """u, of x's dtype."""
    if not compiled(x):
        return down_reference(x, a, side)
    tokens, width = x.shape
    targets = a.shape[0] // side.rank
    splits = max(1, min(MOST_SPLITS, width // SPLIT_COLUMNS))
    tall, programs = rank_tiles(a.shape[0], side.rank)
    together = targets if _fits_together(a, side) else 1
    columns = down_columns(gpu(x.device)[0], x.element_size())
    sums = torch.empty((targets * splits, tokens, side.rank), dtype=torch.float32, device=x.device)
    _lora_down[(parts(tokens, TOKENS), splits, 1 if together > 1 else programs)](
        x, a, sums, tokens, width, *side.masks(x), RANK=side.rank, DROPS=side.p > 0, TOGETHER=together, SPLITS=splits,
        SPLIT=parts(parts(width, splits), columns) * columns, TOKENS=TOKENS, RANKS=tall, COLUMNS=columns,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return added(sums, tuple(range(0, (targets + 1) * splits, splits)), x.dtype, side.scale)


def down_columns(capability: tuple[int, int], bytes_each: int) -> int:
    """Of a tile of `down`: 48 KiB of shared memory for three on Hopper, half before it."""
    return (512 if capability >= HOPPER else 256) // bytes_each


def added(sums: Any, firsts: tuple[int, ...], dtype: Any, scale: float = 1.0) -> Any:
    """(T, n R) of `dtype`: `scale` times the sum of each target's parts, those from `firsts[j]` to `firsts[j + 1]`.

    sums: float32 (parts, T, R).
    """
    _, tokens, rank = sums.shape
    targets = len(firsts) - 1
    out = torch.empty((tokens, targets * rank), dtype=dtype, device=sums.device)
    ends = (*firsts, *[firsts[-1]] * (MOST_TARGETS - targets))
    _lora_sum[(parts(tokens, TOKENS), targets)](
        sums, out, tokens, *ends, scale, RANK=rank, TARGETS=targets, TOKENS=TOKENS, RANKS=power_of_two(rank),
        num_warps=4,
    )  # fmt: skip
    return out


def backward_(d_x: Any, d_u: Any, a: Any, x: Any, side: LoraInput, d_a: Any) -> None:
    """Add the adapters' part to `d_x`, and write d_A to `d_a`, made by `sums`. `x` may be a `Normed`."""
    if not compiled(d_x) or not _fits_together(a, side):
        add_input_gradient_(d_x, d_u, a, side)
        weight_gradient(d_u, x, side, d_a)
        return
    tokens, width = d_x.shape
    targets = a.shape[0] // side.rank
    columns = COLUMNS if targets > 1 and gpu(d_x.device)[0] >= HOPPER else COLUMNS // 2
    total, rstd, weight = (x.total, x.rstd, x.weight) if isinstance(x, Normed) else (x, d_u, d_u)
    _lora_backward[(parts(width, columns), parts(tokens, SPLIT_TOKENS))](
        d_x, d_u, a, total, rstd, weight, d_a, d_a.stride(0), tokens, width, a.shape[0], *side.masks(d_u), side.scale,
        RANK=side.rank, TARGETS=targets, DROPS=side.p > 0, NORMED=isinstance(x, Normed),
        SPLIT=SPLIT_TOKENS, TOKENS=TOKENS, RANKS=rank_tiles(side.rank, side.rank)[0], COLUMNS=columns, num_warps=4,
        num_stages=1,
    )  # fmt: skip


def add_input_gradient_(d_x: Any, d_u: Any, a: Any, side: LoraInput) -> None:
    """Add the adapters' part to `d_x`."""
    if not compiled(d_x):
        d_x.copy_(d_x.float() + input_gradient_reference(d_u, a, side))
        return
    tokens, width = d_x.shape
    tall, _ = rank_tiles(a.shape[0], side.rank)
    _lora_input_gradient[(parts(width, COLUMNS), parts(tokens, TOKENS))](
        d_x, d_u, a, tokens, width, a.shape[0], *side.masks(d_u), side.scale, RANK=side.rank,
        TARGETS=a.shape[0] // side.rank, DROPS=side.p > 0, TOKENS=TOKENS, RANKS=tall, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip


def weight_gradient(d_u: Any, x: Any, side: LoraInput, d_a: Any) -> None:
    """Write d_A of all adapters to `d_a`, made by `sums`. `x` may be a `Normed`."""
    x = x.made() if isinstance(x, Normed) else x
    if not compiled(x):
        d_a.copy_(weight_gradient_reference(d_u, x, side))
        return
    tokens, width = x.shape
    rows = d_u.shape[1]
    tall, programs = rank_tiles(rows, side.rank)
    _lora_weight_gradient[(programs, parts(width, COLUMNS), len(d_a))](
        d_u, x, d_a, d_a.stride(0), tokens, width, rows, *side.masks(d_u), side.scale, RANK=side.rank,
        DROPS=side.p > 0, SPLIT=SPLIT_TOKENS, TOKENS=TOKENS, RANKS=tall, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip


def sums(like: Any, a: Any) -> Any:
    """Memory for d_A, float32 (splits, n R, K). A split is the sum over SPLIT_TOKENS tokens of `like` (T, ...), or
    without a kernel over all of them; d_A is the sum of all splits."""
    splits = parts(len(like), SPLIT_TOKENS) if compiled(like) else 1
    return torch.empty((splits, *a.shape), dtype=torch.float32, device=like.device)


def _fits_together(a: Any, side: LoraInput) -> bool:
    tall, programs = rank_tiles(a.shape[0], side.rank)
    return tall >= side.rank and programs * tall <= MOST_RANKS


def rank_tiles(rows: int, rank: int) -> tuple[int, int]:
    """A tile's height in ranks, and how many tiles cover all adapters, none across two of them."""
    tall = max(16, min(RANKS, power_of_two(rank)))  # Triton's matrix products start at 16
    return tall, rows // rank * parts(rank, tall)


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def kept_reference(tokens: int, width: int, target: int, side: LoraInput, device: Any) -> Any:
    """Which numbers of (T, K) adapter `target` keeps, bool. Only with a seed."""
    number, plus, limit = side.masks(None)
    salt = number.item() + plus
    rows, columns = (torch.arange(count, dtype=torch.int64, device=device) for count in (tokens, width))
    key = _mixed(rows * GOLDEN + salt)[:, None] ^ _mixed(columns * OF_COLUMN + salt)
    return (key * OF_TARGET[target]) % WORD >= limit


def _mixed(word: Any) -> Any:
    """32 bits of an int64 each, of which every one depends on all of `word`'s lower 32."""
    word = word % WORD
    for shift, factor in zip((16, 15), MIX, strict=True):
        word = ((word ^ (word >> shift)) * factor) % WORD
    return word ^ (word >> 16)


def dropped_reference(x: Any, target: int, side: LoraInput) -> Any:
    """s drop_j(x) in float32."""
    wide = x.float() * side.scale
    return wide * kept_reference(x.shape[0], x.shape[1], target, side, x.device) if side.p > 0 else wide


def down_reference(x: Any, a: Any, side: LoraInput) -> Any:
    of_targets = [dropped_reference(x, j, side) @ each.float().T for j, each in enumerate(a.split(side.rank))]
    return torch.cat(of_targets, dim=-1).to(x.dtype)


def input_gradient_reference(d_u: Any, a: Any, side: LoraInput) -> Any:
    """float32 of shape (T, K)."""
    pairs = zip(d_u.float().split(side.rank, dim=-1), a.float().split(side.rank), strict=True)
    return sum(dropped_reference(each @ of_target, j, side) for j, (each, of_target) in enumerate(pairs))


def weight_gradient_reference(d_u: Any, x: Any, side: LoraInput) -> Any:
    of_targets = d_u.float().split(side.rank, dim=-1)
    return torch.cat([each.T @ dropped_reference(x, j, side) for j, each in enumerate(of_targets)])


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _lora_mixed(word):
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@jit
def _lora_keys(row, column, salt):
    """`kept_reference` before the product of a target."""
    of_row = _lora_mixed(row.to(tl.uint32) * 0x9E3779B9 + salt)
    return of_row[:, None] ^ _lora_mixed(column.to(tl.uint32) * 0x85EBCA6B + salt)[None, :]


@jit
def _lora_keeps(key, limit, target):
    """Which numbers adapter `target` keeps."""
    of_target = tl.where(target == 0, 0x9E3779B1, tl.where(target == 1, 0x85EBCA77, 0xC2B2AE3D))
    return key * of_target.to(tl.uint32) >= limit.to(tl.uint32)


@jit
def _lora_dropped(tile, key, limit, target, DROPS: tl.constexpr):
    return tl.where(_lora_keeps(key, limit, target), tile, 0.0).to(tile.dtype) if DROPS else tile


@jit
def _lora_down_one(total, tile, key, limit, a, target, within, column, width, DROPS: tl.constexpr, RANK: tl.constexpr):
    there = (within < RANK)[None, :] & (column < width)[:, None]
    of_a = tl.load(a + (target * RANK + within)[None, :] * width + column[:, None], mask=there, other=0.0)
    return tl.dot(_lora_dropped(tile, key, limit, target, DROPS), of_a, total, input_precision="ieee")


@jit(do_not_specialize=["plus", "limit"])
def _lora_down(
    x, a, sums, tokens, width, seed, plus, limit, RANK: tl.constexpr, DROPS: tl.constexpr, TOGETHER: tl.constexpr,
    SPLITS: tl.constexpr, SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + plus).to(tl.uint32) if DROPS else 0
    TILES: tl.constexpr = (RANK + RANKS - 1) // RANKS
    target = tl.program_id(2) // TILES
    within = tl.program_id(2) % TILES * RANKS + tl.arange(0, RANKS)
    row = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.program_id(1) * SPLIT
    sum_0 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    sum_1 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    sum_2 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for start in range(begin, tl.minimum(begin + SPLIT, width), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        there = (row < tokens)[:, None] & (column < width)[None, :]
        tile = tl.load(x + row[:, None] * width + column[None, :], mask=there, other=0.0)
        key = _lora_keys(row, column, salt) if DROPS else tile
        sum_0 = _lora_down_one(sum_0, tile, key, limit, a, target, within, column, width, DROPS, RANK)
        if TOGETHER > 1:
            sum_1 = _lora_down_one(sum_1, tile, key, limit, a, 1, within, column, width, DROPS, RANK)
        if TOGETHER > 2:
            sum_2 = _lora_down_one(sum_2, tile, key, limit, a, 2, within, column, width, DROPS, RANK)
    there = (row < tokens)[:, None] & (within < RANK)[None, :]
    to = (
        sums + (target * SPLITS + tl.program_id(1)).to(tl.int64) * tokens * RANK + row[:, None] * RANK + within[None, :]
    )
    next_sum = SPLITS * RANK * tokens
    tl.store(to, sum_0, mask=there)
    if TOGETHER > 1:
        tl.store(to + next_sum, sum_1, mask=there)
    if TOGETHER > 2:
        tl.store(to + 2 * next_sum, sum_2, mask=there)


@jit(do_not_specialize=["first_0", "first_1", "first_2", "last"])
def _lora_sum(
    sums, out, tokens, first_0, first_1, first_2, last, scale, RANK: tl.constexpr, TARGETS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(1)
    first = tl.where(target == 0, first_0, tl.where(target == 1, first_1, first_2))
    end = tl.where(target == 0, first_1, tl.where(target == 1, first_2, last))
    row, within = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, RANKS)
    there = (row < tokens)[:, None] & (within < RANK)[None, :]
    place = (first.to(tl.int64) * tokens + row[:, None]) * RANK + within[None, :]
    total = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for _ in range(first, end):
        total += tl.load(sums + place, mask=there, other=0.0)
        place += tokens * RANK
    to = out + row[:, None] * (TARGETS * RANK) + (target * RANK + within)[None, :]
    tl.store(to, (total * scale).to(out.dtype.element_ty), mask=there)


@jit
def _lora_add_both(
    total, d_a, tile, key, limit, scale, d_u, a, target, within, row, there, rows,
    DROPS: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    left = tl.load(d_u + row[:, None] * rows + (target * RANK + within)[None, :], mask=there, other=0.0)
    part = _lora_dropped(tl.dot(left, a, input_precision="ieee"), key, limit, target, DROPS)
    dropped = _lora_dropped(tile, key, limit, target, DROPS)
    return total + part * scale, tl.dot(tl.trans(left), dropped, d_a, input_precision="ieee")


@jit(do_not_specialize=["plus", "limit"])
def _lora_backward(
    d_x, d_u, a, x, rstd, weight, d_a, d_a_stride, tokens, width, rows, seed, plus, limit, scale,
    RANK: tl.constexpr, TARGETS: tl.constexpr, DROPS: tl.constexpr, NORMED: tl.constexpr,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + plus).to(tl.uint32) if DROPS else 0
    column, within = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, RANKS)
    inside, of_rank = column < width, within < RANK
    of_a = within[:, None] * width + column[None, :]
    there_a = of_rank[:, None] & inside[None, :]
    next_a = RANK * width
    a_0 = tl.load(a + of_a, mask=there_a, other=0.0)
    a_1 = tl.load(a + next_a + of_a, mask=there_a, other=0.0) if TARGETS > 1 else a_0
    a_2 = tl.load(a + 2 * next_a + of_a, mask=there_a, other=0.0) if TARGETS > 2 else a_0
    if NORMED:
        gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_0 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    sum_1 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    sum_2 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    for start in range(0, SPLIT, TOKENS):
        row = tl.program_id(1).to(tl.int64) * SPLIT + start + tl.arange(0, TOKENS)
        place = row[:, None] * width + column[None, :]
        there = (row < tokens)[:, None] & inside[None, :]
        there_u = (row < tokens)[:, None] & of_rank[None, :]
        tile = tl.load(x + place, mask=there, other=0.0)
        if NORMED:
            inverse = tl.load(rstd + row, mask=row < tokens, other=0.0)
            tile = (tile.to(tl.float32) * inverse[:, None] * gain[None, :]).to(x.dtype.element_ty)
        total = tl.load(d_x + place, mask=there, other=0.0).to(tl.float32)
        key = _lora_keys(row, column, salt) if DROPS else tile
        total, sum_0 = _lora_add_both(
            total, sum_0, tile, key, limit, scale, d_u, a_0, 0, within, row, there_u, rows, DROPS, RANK
        )
        if TARGETS > 1:
            total, sum_1 = _lora_add_both(
                total, sum_1, tile, key, limit, scale, d_u, a_1, 1, within, row, there_u, rows, DROPS, RANK
            )
        if TARGETS > 2:
            total, sum_2 = _lora_add_both(
                total, sum_2, tile, key, limit, scale, d_u, a_2, 2, within, row, there_u, rows, DROPS, RANK
            )
        tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=there)
    d_a += tl.program_id(1).to(tl.int64) * d_a_stride
    tl.store(d_a + of_a, sum_0 * scale, mask=there_a)
    if TARGETS > 1:
        tl.store(d_a + next_a + of_a, sum_1 * scale, mask=there_a)
    if TARGETS > 2:
        tl.store(d_a + 2 * next_a + of_a, sum_2 * scale, mask=there_a)


@jit(do_not_specialize=["plus", "limit"])
def _lora_input_gradient(
    d_x, d_u, a, tokens, width, rows, seed, plus, limit, scale,
    RANK: tl.constexpr, TARGETS: tl.constexpr, DROPS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + plus).to(tl.uint32) if DROPS else 0
    row = tl.program_id(1).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None] * width + column[None, :]
    there = (row < tokens)[:, None] & (column < width)[None, :]
    total = tl.load(d_x + place, mask=there, other=0.0).to(tl.float32)
    if DROPS:
        key = _lora_keys(row, column, salt)
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
            part = tl.where(_lora_keeps(key, limit, target), part, 0.0)
        total += part * scale
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=there)


@jit(do_not_specialize=["plus", "limit"])
def _lora_weight_gradient(
    d_u, x, d_a, d_a_stride, tokens, width, rows, seed, plus, limit, scale, RANK: tl.constexpr, DROPS: tl.constexpr,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + plus).to(tl.uint32) if DROPS else 0
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
            tile = _lora_dropped(tile, _lora_keys(row, column, salt), limit, target, DROPS)
        total = tl.dot(left, tile, total, input_precision="ieee")
    there = (within < RANK)[:, None] & (column < width)[None, :]
    place = d_a + tl.program_id(2).to(tl.int64) * d_a_stride + of_a[:, None] * width + column[None, :]
    tl.store(place, total * scale, mask=there)
