"""The A side of LoRA (Hu et al. 2021) with dropout, for all adapters of one input at once.

With n adapters on the same input x, each with its own A_j (R, K) and its own dropout mask:

    forward    u_j = s drop_j(x) A_j^T                     (T, R)
    backward   d_x += sum over j of s drop_j(d_u_j A_j)    in place
               d_A_j = s d_u_j^T drop_j(x)                 (R, K) float32

s is the adapters' scaling. drop_j keeps each number with probability 1 - p and divides it by 1 - p. A hash selects the
numbers, the same ones in forward and backward, so no mask is stored: byte masks for q, k and v would take 100 MB per
layer at 4096 tokens. The library stores the dropped inputs themselves. Row and column indices are each mixed with the
seed once per tile; a number then costs an exclusive or, and per adapter a product, whose 32 bits are compared with p.

x: (T, K); a: (n R, K), the adapters concatenated; u: (T, n R). Bytes moved, with R far below K: 2TK per function, twice
that if the gradient of x is updated; the adapters of one block of tokens run together and share the cache.

One launch serves all adapters of an input up to MAX_JOINT_RANKS ranks. `down` also splits the sum over K among
programs, because 4096 tokens do not fill a GPU; `_lora_sum` adds the parts in order. `backward_` computes both
gradients at once: it reads x and d_x together, uses each hash twice, and recomputes an x that was not kept: the output
of a norm or of SwiGLU.
The B side is `bench.kernels.lora_out`.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.int8.matmul import MAX_TARGETS
from bench.kernels.int8.row_quant import BLOCK, dequantize
from bench.kernels.int8.swiglu import fast_sigmoid, kernel_tensors, load_gate_and_up
from bench.kernels.swiglu import swiglu_reference
from bench.kernels.triton_compat import HOPPER, ceil_div, gpu_properties, jit, next_power_of_2, tl, uses_triton

HASH_RANGE = 1 << 32
ROW_FACTOR, COLUMN_FACTOR = 0x9E3779B9, 0x85EBCA6B  # spread neighbouring indices before mixing
MIX_FACTORS = (0x7FEB352D, 0x846CA68B)  # from Wellons' "lowbias32"
TARGET_FACTORS = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)  # one per adapter
# Tile sizes: the best of 16 to 128 tokens and 32 to 256 columns, measured at 8192 x 4096 and 14336 and rank 16.
TOKENS, COLUMNS, RANKS = 32, 64, 64
SPLIT_COLUMNS, MAX_SPLITS = 1024, 8
SPLIT_TOKENS = 512  # tokens that one program of a weight gradient sums
MAX_JOINT_RANKS = 64  # sum over an input's adapters up to which one program serves them all


@dataclass(frozen=True, kw_only=True)
class MaskSeed:
    """Seed of one input's dropout masks: `base`, an int64 scalar on the input's device, plus `offset`.

    `base` is on the device so that each replay of a captured step (`bench.qlora.recipes.cuda_graph`) reads a new one.
    """

    base: Any
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class LoraInput:
    """Adapters of one input: rank, scaling, dropout probability and mask seed."""

    rank: int
    scaling: float
    p: float = 0.0
    seed: MaskSeed | None = None  # read if p > 0

    @property
    def limit(self) -> int:
        """Hash below which a number is dropped."""
        return round(self.p * HASH_RANGE)

    @property
    def scale(self) -> float:
        """Factor for a sum over the numbers that dropout kept."""
        return self.scaling / (1.0 - self.p)

    def mask_arguments(self, placeholder: Any) -> tuple[Any, int, int]:
        """Return a kernel's (seed, seed_offset, limit); `placeholder` replaces a seed that is not read."""
        return (placeholder, 0, 0) if self.seed is None else (self.seed.base, self.seed.offset, self.limit)


@dataclass(frozen=True, kw_only=True)
class NormedInput:
    """Input that is recomputed: the norm (`bench.kernels.norm`) of `total` (T, K) with `rstd` and `weight`."""

    total: Any
    rstd: Any
    weight: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The input, scales and weight of `_lora_backward`."""
        return self.total, self.rstd, self.weight

    def recompute(self) -> Any:
        """Return the input, rounded as by the norm."""
        normed = self.total * self.rstd[:, None]  # float32, like rstd
        return normed.mul_(self.weight.float()).to(self.total.dtype)


@dataclass(frozen=True, kw_only=True)
class SwigluInput:
    """Input that is recomputed: SwiGLU of gate and up, `QuantizedBlocks` or a tensor (T, 2K)."""

    joined: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The input, scales and weight of `_lora_backward`; unused ones repeat another."""
        numbers, scales = kernel_tensors(self.joined)
        return numbers, scales, scales

    def recompute(self) -> Any:
        """Return the input, rounded as by `bench.kernels.swiglu`."""
        return swiglu_reference(dequantize(self.joined)).to(self.joined.dtype)


def down(x: Any, a: Any, adapters: LoraInput) -> Any:
    """Return u in x's dtype."""
    if not uses_triton(x):
        return down_reference(x, a, adapters)
    tokens, width = x.shape
    targets = a.shape[0] // adapters.rank
    split_count = max(1, min(MAX_SPLITS, width // SPLIT_COLUMNS))
    tile_ranks, programs = rank_tiles(a.shape[0], adapters.rank)
    joint_targets = targets if _fits_together(a, adapters) else 1
    # Three tiles in 16 bits take 48 KiB on Hopper, half before it.
    tile_tokens, columns = 64 if gpu_properties(x.device)[0] >= HOPPER else 32, 256 // x.element_size()
    sums = torch.empty((targets * split_count, tokens, adapters.rank), dtype=torch.float32, device=x.device)
    _lora_down[(ceil_div(tokens, tile_tokens), split_count, 1 if joint_targets > 1 else programs)](
        x, a, sums, tokens, width, *adapters.mask_arguments(x), RANK=adapters.rank, DROPS=adapters.p > 0,
        TOGETHER=joint_targets, SPLITS=split_count, SPLIT=ceil_div(ceil_div(width, split_count), columns) * columns,
        TOKENS=tile_tokens, RANKS=tile_ranks, COLUMNS=columns, num_warps=4, num_stages=3,
    )  # fmt: skip
    return sum_parts(sums, tuple(range(0, (targets + 1) * split_count, split_count)), x.dtype, adapters.scale)


def sum_parts(sums: Any, firsts: tuple[int, ...], dtype: Any, scale: float = 1.0) -> Any:
    """Sum each target's parts, `firsts[j]` to `firsts[j + 1]`, and scale them; returns (T, n R) in `dtype`.

    sums: float32 (parts, T, R).
    """
    _, tokens, rank = sums.shape
    targets = len(firsts) - 1
    out = torch.empty((tokens, targets * rank), dtype=dtype, device=sums.device)
    ends = (*firsts, *[firsts[-1]] * (MAX_TARGETS - targets))
    _lora_sum[(ceil_div(tokens, TOKENS), targets)](
        sums, out, tokens, *ends, scale, RANK=rank, TARGETS=targets, TOKENS=TOKENS, RANKS=next_power_of_2(rank),
        num_warps=4,
    )  # fmt: skip
    return out


def backward_(d_x: Any, d_u: Any, a: Any, x: Any, adapters: LoraInput) -> Any:
    """Add the adapters' gradient to `d_x` and return d_A, (n R, K) float32; omit the one or other if d_x or x is None.

    `x` may be a `NormedInput` or a `SwigluInput`.
    """
    if not uses_triton(d_u):
        if d_x is not None:
            d_x.copy_(d_x.float() + input_gradient_reference(d_u, a, adapters))
        return None if x is None else weight_gradient_reference(d_u, x, adapters)
    (tokens, rows), width = d_u.shape, a.shape[1]
    d_a = None if x is None else torch.empty((ceil_div(tokens, SPLIT_TOKENS), *a.shape), device=a.device)
    is_swiglu = isinstance(x, SwigluInput)
    source, scales, weight = x.tensors if is_swiglu or isinstance(x, NormedInput) else (d_u if x is None else x,) * 3
    targets, ranks = rows // adapters.rank, rank_tiles(rows, adapters.rank)[0]
    joint = MAX_JOINT_RANKS // ranks
    # Two are the fastest where more programs share a multiprocessor.
    warps = 2 if gpu_properties(d_u.device)[0] >= HOPPER else 4
    for target in range(0, targets, joint):
        for rank in range(0, adapters.rank, ranks):
            row = target * adapters.rank + rank
            _lora_backward[(ceil_div(width, COLUMNS), ceil_div(tokens, SPLIT_TOKENS))](
                d_u if d_x is None else d_x, d_u[:, row:], a[row:], source, scales, weight,
                d_u if d_a is None else d_a[:, row:], a.numel(), tokens, width, rows, *adapters.mask_arguments(d_u),
                adapters.scale, target, RANK=min(ranks, adapters.rank - rank), TARGETS=min(joint, targets - target),
                DROPS=adapters.p > 0, NORMED=isinstance(x, NormedInput), IS_SWIGLU=is_swiglu,
                IN_BLOCKS=source.dtype == torch.int8, BLOCK=BLOCK, ADDS=d_x is not None, SUMS=x is not None,
                SPLIT=SPLIT_TOKENS, TOKENS=TOKENS, RANKS=ranks, COLUMNS=COLUMNS,
                num_warps=warps, num_stages=3 if is_swiglu else 1,
            )  # fmt: skip
    return None if d_a is None else d_a.sum(0)


def _fits_together(a: Any, adapters: LoraInput) -> bool:
    tile_ranks, programs = rank_tiles(a.shape[0], adapters.rank)
    return tile_ranks >= adapters.rank and programs * tile_ranks <= MAX_JOINT_RANKS


def rank_tiles(rows: int, rank: int) -> tuple[int, int]:
    """Return the ranks of a tile, and the number of tiles for all adapters; no tile spans two adapters."""
    tile_ranks = max(16, min(RANKS, next_power_of_2(rank)))  # Triton's matrix products start at 16
    return tile_ranks, rows // rank * ceil_div(rank, tile_ranks)


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def keep_mask_reference(tokens: int, width: int, target: int, adapters: LoraInput, device: Any) -> Any:
    """Return the numbers that adapter `target` keeps, bool (T, K). Requires a seed."""
    base, offset, limit = adapters.mask_arguments(None)
    salt = base.item() + offset
    rows, columns = (torch.arange(count, dtype=torch.int64, device=device) for count in (tokens, width))
    key = _mix_reference(rows * ROW_FACTOR + salt)[:, None] ^ _mix_reference(columns * COLUMN_FACTOR + salt)
    return (key * TARGET_FACTORS[target]) % HASH_RANGE >= limit


def _mix_reference(word: Any) -> Any:
    """Mix the lower 32 bits of each int64: every bit of the result depends on all of them."""
    word = word % HASH_RANGE
    for shift, factor in zip((16, 15), MIX_FACTORS, strict=True):
        word = ((word ^ (word >> shift)) * factor) % HASH_RANGE
    return word ^ (word >> 16)


def dropout_reference(x: Any, target: int, adapters: LoraInput) -> Any:
    """Return s drop_j(x) in float32."""
    scaled = x.float() * adapters.scale
    return (
        scaled * keep_mask_reference(x.shape[0], x.shape[1], target, adapters, x.device) if adapters.p > 0 else scaled
    )


def down_reference(x: Any, a: Any, adapters: LoraInput) -> Any:
    parts = [dropout_reference(x, j, adapters) @ each.float().T for j, each in enumerate(a.split(adapters.rank))]
    return torch.cat(parts, dim=-1).to(x.dtype)


def input_gradient_reference(d_u: Any, a: Any, adapters: LoraInput) -> Any:
    """Return the input gradient, float32 (T, K)."""
    pairs = zip(d_u.float().split(adapters.rank, dim=-1), a.float().split(adapters.rank), strict=True)
    return sum(dropout_reference(gradient @ weight, j, adapters) for j, (gradient, weight) in enumerate(pairs))


def weight_gradient_reference(d_u: Any, x: Any, adapters: LoraInput) -> Any:
    x, gradients = (
        x.recompute() if isinstance(x, NormedInput | SwigluInput) else x,
        d_u.float().split(adapters.rank, dim=-1),
    )
    return torch.cat([gradient.T @ dropout_reference(x, j, adapters) for j, gradient in enumerate(gradients)])


# On the GPU -----------------------------------------------------------------------------------------------------------


@jit
def _lora_mix(word):
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@jit
def mask_hash(row, column, salt):
    """Compute the hash of `keep_mask_reference` before the multiplication by a target's factor."""
    row_hash = _lora_mix(row.to(tl.uint32) * 0x9E3779B9 + salt)
    return row_hash[:, None] ^ _lora_mix(column.to(tl.uint32) * 0x85EBCA6B + salt)[None, :]


@jit
def _lora_keep_mask(key, limit, target):
    """Return the numbers that adapter `target` keeps."""
    factor = tl.where(target == 0, 0x9E3779B1, tl.where(target == 1, 0x85EBCA77, 0xC2B2AE3D))
    return key * factor.to(tl.uint32) >= limit.to(tl.uint32)


@jit
def dropout(tile, key, limit, target, DROPS: tl.constexpr):
    return tl.where(_lora_keep_mask(key, limit, target), tile, 0.0).to(tile.dtype) if DROPS else tile


@jit
def _lora_down_step(total, tile, key, limit, a, target, rank, column, width, DROPS: tl.constexpr, RANK: tl.constexpr):
    mask = (rank < RANK)[None, :] & (column < width)[:, None]
    a_tile = tl.load(a + (target * RANK + rank)[None, :] * width + column[:, None], mask=mask, other=0.0)
    return tl.dot(dropout(tile, key, limit, target, DROPS), a_tile, total, input_precision="ieee")


@jit(do_not_specialize=["seed_offset", "limit"])
def _lora_down(
    x, a, sums, tokens, width, seed, seed_offset, limit, RANK: tl.constexpr, DROPS: tl.constexpr,
    TOGETHER: tl.constexpr, SPLITS: tl.constexpr, SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + seed_offset).to(tl.uint32) if DROPS else 0
    TILES: tl.constexpr = (RANK + RANKS - 1) // RANKS
    target = tl.program_id(2) // TILES
    rank = tl.program_id(2) % TILES * RANKS + tl.arange(0, RANKS)
    row = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    begin = tl.program_id(1) * SPLIT
    sum_0 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    sum_1 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    sum_2 = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for start in range(begin, tl.minimum(begin + SPLIT, width), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        mask = (row < tokens)[:, None] & (column < width)[None, :]
        tile = tl.load(x + row[:, None] * width + column[None, :], mask=mask, other=0.0)
        key = mask_hash(row, column, salt) if DROPS else tile
        sum_0 = _lora_down_step(sum_0, tile, key, limit, a, target, rank, column, width, DROPS, RANK)
        if TOGETHER > 1:
            sum_1 = _lora_down_step(sum_1, tile, key, limit, a, 1, rank, column, width, DROPS, RANK)
        if TOGETHER > 2:
            sum_2 = _lora_down_step(sum_2, tile, key, limit, a, 2, rank, column, width, DROPS, RANK)
    mask = (row < tokens)[:, None] & (rank < RANK)[None, :]
    pointers = (
        sums + (target * SPLITS + tl.program_id(1)).to(tl.int64) * tokens * RANK + row[:, None] * RANK + rank[None, :]
    )
    next_sum = SPLITS * RANK * tokens
    tl.store(pointers, sum_0, mask=mask)
    if TOGETHER > 1:
        tl.store(pointers + next_sum, sum_1, mask=mask)
    if TOGETHER > 2:
        tl.store(pointers + 2 * next_sum, sum_2, mask=mask)


@jit(do_not_specialize=["first_0", "first_1", "first_2", "last"])
def _lora_sum(
    sums, out, tokens, first_0, first_1, first_2, last, scale, RANK: tl.constexpr, TARGETS: tl.constexpr,
    TOKENS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    target = tl.program_id(1)
    first = tl.where(target == 0, first_0, tl.where(target == 1, first_1, first_2))
    end = tl.where(target == 0, first_1, tl.where(target == 1, first_2, last))
    row, rank = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, RANKS)
    mask = (row < tokens)[:, None] & (rank < RANK)[None, :]
    offsets = (first.to(tl.int64) * tokens + row[:, None]) * RANK + rank[None, :]
    total = tl.zeros((TOKENS, RANKS), dtype=tl.float32)
    for _ in range(first, end):
        total += tl.load(sums + offsets, mask=mask, other=0.0)
        offsets += tokens * RANK
    pointers = out + row[:, None] * (TARGETS * RANK) + (target * RANK + rank)[None, :]
    tl.store(pointers, (total * scale).to(out.dtype.element_ty), mask=mask)


@jit
def _lora_backward_step(
    total, d_a, tile, key, limit, d_u, a, first, target, rank, row, mask, u_stride,
    DROPS: tl.constexpr, RANK: tl.constexpr, ADDS: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    d_u_tile = tl.load(d_u + row[:, None] * u_stride + (target * RANK + rank)[None, :], mask=mask, other=0.0)
    if ADDS:
        d_x_tile = tl.dot(d_u_tile, a, input_precision="ieee")
        total += dropout(d_x_tile, key, limit, first + target, DROPS)
    if SUMS:
        dropped = dropout(tile, key, limit, first + target, DROPS)
        d_a = tl.dot(tl.trans(d_u_tile), dropped, d_a, input_precision="ieee")
    return total, d_a


@jit(do_not_specialize=["seed_offset", "limit", "first"])
def _lora_backward(
    d_x, d_u, a, x, scales, weight, d_a, d_a_stride, tokens, width, u_stride, seed, seed_offset, limit, scale,
    first, RANK: tl.constexpr, TARGETS: tl.constexpr, DROPS: tl.constexpr, NORMED: tl.constexpr,
    IS_SWIGLU: tl.constexpr, IN_BLOCKS: tl.constexpr, BLOCK: tl.constexpr, ADDS: tl.constexpr, SUMS: tl.constexpr,
    SPLIT: tl.constexpr, TOKENS: tl.constexpr, RANKS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    salt = (tl.load(seed) + seed_offset).to(tl.uint32) if DROPS else 0
    column, rank = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, RANKS)
    column_mask, rank_mask = column < width, rank < RANK
    a_offsets = rank[:, None] * width + column[None, :]
    a_mask = rank_mask[:, None] & column_mask[None, :]
    next_a = RANK * width
    a_0 = tl.load(a + a_offsets, mask=a_mask, other=0.0)
    a_1 = tl.load(a + next_a + a_offsets, mask=a_mask, other=0.0) if TARGETS > 1 else a_0
    a_2 = tl.load(a + 2 * next_a + a_offsets, mask=a_mask, other=0.0) if TARGETS > 2 else a_0
    if NORMED:
        gain = tl.load(weight + column, mask=column_mask, other=0.0).to(tl.float32)
    sum_0 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    sum_1 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    sum_2 = tl.zeros((RANKS, COLUMNS), dtype=tl.float32)
    for start in range(0, SPLIT, TOKENS):
        row = tl.program_id(1).to(tl.int64) * SPLIT + start + tl.arange(0, TOKENS)
        offsets = row[:, None] * width + column[None, :]
        mask = (row < tokens)[:, None] & column_mask[None, :]
        u_mask = (row < tokens)[:, None] & rank_mask[None, :]
        total = tl.zeros((TOKENS, COLUMNS), dtype=tl.float32)
        if IS_SWIGLU:
            last = tl.minimum(row, tokens - 1)[:, None]  # rows beyond the last repeat it, with a d_u of 0
            block = tl.program_id(0) * COLUMNS // BLOCK
            gate, up = load_gate_and_up(x, scales, last, block, column[None, :], width, IN_BLOCKS, BLOCK)
            tile = (gate * fast_sigmoid(gate) * up).to(d_u.dtype.element_ty)
        else:
            tile = tl.load(x + offsets, mask=mask, other=0.0) if SUMS else total
        if NORMED:
            rstd = tl.load(scales + row, mask=row < tokens, other=0.0)
            tile = (tile.to(tl.float32) * rstd[:, None] * gain[None, :]).to(x.dtype.element_ty)
        key = mask_hash(row, column, salt) if DROPS else tile
        total, sum_0 = _lora_backward_step(
            total, sum_0, tile, key, limit, d_u, a_0, first, 0, rank, row, u_mask, u_stride, DROPS, RANK, ADDS, SUMS
        )  # fmt: skip
        if TARGETS > 1:
            total, sum_1 = _lora_backward_step(
                total, sum_1, tile, key, limit, d_u, a_1, first, 1, rank, row, u_mask, u_stride, DROPS, RANK, ADDS, SUMS
            )  # fmt: skip
        if TARGETS > 2:
            total, sum_2 = _lora_backward_step(
                total, sum_2, tile, key, limit, d_u, a_2, first, 2, rank, row, u_mask, u_stride, DROPS, RANK, ADDS, SUMS
            )  # fmt: skip
        if ADDS:
            total = tl.load(d_x + offsets, mask=mask, other=0.0).to(tl.float32) + total * scale
            tl.store(d_x + offsets, total.to(d_x.dtype.element_ty), mask=mask)
    if SUMS:
        d_a += tl.program_id(1).to(tl.int64) * d_a_stride
        tl.store(d_a + a_offsets, sum_0 * scale, mask=a_mask)
        if TARGETS > 1:
            tl.store(d_a + next_a + a_offsets, sum_1 * scale, mask=a_mask)
        if TARGETS > 2:
            tl.store(d_a + 2 * next_a + a_offsets, sum_2 * scale, mask=a_mask)
