"""y = a b^T with both sides in INT8, and beside it in 16 bits: columns apart, LoRA adapters.

    y[t, n] = (sum over k of a.values[t, k] b.values[n, k]) a.scales[t] b.scales[n]
              + sum over c of a.apart[t, c] apart[n, c]
              + u_j[t] . b_j[n]                            for n in columns_j

a: `Rows` (T, K); b: `Rows` (N, K); apart (N, C): the columns of W that belong to `a.apart`; u (T, n R) and
work_b (N, R) as in `bench.kernels.lora_out`. INT8 products are summed exactly, in 32 bits, up to K =
133,000. What stands beside is added in float32 in the same kernel, so y is written once and rounded once.

y can be written in 8 bits too (`bench.kernels.int8.block_quant`): a tile is a block of columns wide.

One H200, T = 4096, microseconds for the forward products of a layer of the 7B shape (q k v, o, gate up, down): bf16
299, 203, 1436, 674; this kernel 174, 114, 753, 369 at the power limit, as the library's FP8 with a scale for each row,
whose three bits of mantissa cost more quality than these seven. Columns apart and adapters add 2 to 10 %.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import triton_compat
from bench.kernels.int8.block_quant import BLOCK, Blocks, blocks_reference, empty
from bench.kernels.int8.row_quant import Rows, inverse, larger, rounded
from bench.kernels.lora_out import edges_of
from bench.kernels.triton_compat import TensorDescriptor, compiled, gpu, jit, parts, tl

GROUP = 8  # tiles of tokens that share their columns in the cache


@dataclass(frozen=True, kw_only=True)
class SideInputs:
    """What is added to the large product; every part may be missing. `columns`: of y, a slice for each adapter."""

    apart: Any = None
    u: Any = None
    work_b: Any = None
    columns: tuple[slice, ...] = ()
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """A program's part of y and of the sum at a time, its warps, and how many loads are under way.

    With `tma` the copy engine of Hopper and later loads them. With `lasting` so many programs for each multiprocessor
    go on from part to part; 0: a program for each part.
    """

    tokens: int
    inner: int
    warps: int
    stages: int
    tma: bool
    lasting: int = 0


# Two programs share a multiprocessor, so one multiplies while the other one writes: 3 to 8 % faster than one of
# 128 x 256, which was the best of ten. Both draw all the power there is; this one does it at a lower clock.
HOPPER = Tiles(tokens=128, inner=128, warps=4, stages=3, tma=True, lasting=2)
# Two programs share an A10's multiprocessor. In sm_86 code on one H100 a whole INT8 step took 0.217 s with these tiles,
# 0.218 s with four stages and 0.281 s with eight warps, which spill no registers: four spill in the epilogue.
AMPERE = Tiles(tokens=128, inner=64, warps=4, stages=3, tma=False)
NOTHING = SideInputs()


def product(a: Rows, b: Rows, beside: SideInputs = NOTHING, *, dtype: Any, tiles: Tiles | None = None) -> Any:
    """y (T, N) of `dtype`."""
    if not compiled(a.values):
        return product_reference(a, b, beside, dtype)
    y = torch.empty((len(a.values), len(b.values)), dtype=dtype, device=a.values.device)
    _launch(a, b, beside, y, None, tiles)
    return y


def product_in_blocks(
    a: Rows, b: Rows, beside: SideInputs = NOTHING, *, dtype: Any, tiles: Tiles | None = None
) -> Blocks:
    """y in 8 bits, of what would be numbers of `dtype`; N is a multiple of BLOCK."""
    if not compiled(a.values):
        return blocks_reference(product_reference(a, b, beside, torch.float32), dtype)
    y = empty(len(a.values), len(b.values), dtype, a.values.device)
    _launch(a, b, beside, y.values, y.scales, tiles)
    return y


def _launch(a: Rows, b: Rows, beside: SideInputs, y: Any, scales: Any, tiles: Tiles | None) -> None:
    tokens, width = a.values.shape
    count = len(b.values)
    capability, processors = gpu(y.device)
    tiles = tiles or tiles_for(capability)
    grid = parts(tokens, tiles.tokens) * parts(count, BLOCK)
    programs = min(grid, tiles.lasting * processors) if tiles.lasting else grid
    left, right = a.values, b.values
    if tiles.tma:
        left = TensorDescriptor.from_tensor(left, [tiles.tokens, tiles.inner])
        right = TensorDescriptor.from_tensor(right, [BLOCK, tiles.inner])
    apart = 0 if beside.apart is None else beside.apart.shape[1]
    targets = len(beside.columns)
    _eight_product[(programs,)](
        left, right, y, y if scales is None else scales, a.scales, y if b.scales is None else b.scales,
        y if not apart else a.apart, y if not apart else beside.apart, y if not targets else beside.u,
        y if not targets else beside.work_b, tokens, count, width, apart, beside.rank * targets,
        *edges_of(beside.columns), IN_BLOCKS=scales is not None, HAS_SCALES=b.scales is not None, HAS_APART=apart > 0,
        APART=_thin(apart), TARGETS=targets, RANK=beside.rank, RANKS=_thin(beside.rank), TOKENS=tiles.tokens,
        COLUMNS=BLOCK, INNER=tiles.inner, GROUP=GROUP, TMA=tiles.tma, PROGRAMS=programs, LASTS=tiles.lasting > 0,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def tiles_for(capability: tuple[int, int]) -> Tiles:
    """For a GPU of this compute capability."""
    return AMPERE if capability < triton_compat.HOPPER else HOPPER


def product_reference(a: Rows, b: Rows, beside: SideInputs, dtype: Any) -> Any:
    # float64 holds every sum of INT8 products exactly.
    y = (a.values.double() @ b.values.double().T).float() * a.scales[:, None]
    if b.scales is not None:
        y *= b.scales
    if beside.apart is not None:
        y += a.apart.float() @ beside.apart.float().T
    for target, each in enumerate(beside.columns):
        part = beside.u[:, target * beside.rank : (target + 1) * beside.rank]
        y[:, each] += part.float() @ beside.work_b[each].float().T
    return y.to(dtype)


def _thin(count: int) -> int:
    """A thin product's sum in one piece: at least 16 numbers, where Triton's products begin."""
    return max(16, 1 << max(0, count - 1).bit_length())


@jit
def _eight_product(
    a, b, y, scales_y, scales_a, scales_b, left_apart, right_apart, u, work_b, tokens, count, width, count_apart,
    rows_u, first_0, last_0, first_1, last_1, first_2, last_2, IN_BLOCKS: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_APART: tl.constexpr, APART: tl.constexpr, TARGETS: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
    TOKENS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, TMA: tl.constexpr,
    PROGRAMS: tl.constexpr, LASTS: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(tokens, TOKENS), tl.cdiv(count, COLUMNS)
    for tile in tl.range(tl.program_id(0), down * across, PROGRAMS, flatten=LASTS):
        # Neighbouring programs take neighbouring parts of y, GROUP tiles of tokens at a time.
        group = tile // (GROUP * across)
        tall = min(down - group * GROUP, GROUP)
        at_row = (group * GROUP + tile % (GROUP * across) % tall) * TOKENS
        at_column = tile % (GROUP * across) // tall * COLUMNS
        row, column = at_row + tl.arange(0, TOKENS), at_column + tl.arange(0, COLUMNS)
        wide_row, wide_column = row.to(tl.int64)[:, None], column.to(tl.int64)[:, None]
        is_row, is_column = row < tokens, column < count
        total = tl.zeros((TOKENS, COLUMNS), dtype=tl.int32)
        for start in range(tl.cdiv(width, INNER)):
            if TMA:
                left = a.load([at_row, start * INNER])
                right = b.load([at_column, start * INNER])
            else:
                inner = start * INNER + tl.arange(0, INNER)
                inside = (inner < width)[None, :]
                left = tl.load(a + wide_row * width + inner[None, :], mask=is_row[:, None] & inside, other=0)
                right = tl.load(b + wide_column * width + inner[None, :], mask=is_column[:, None] & inside, other=0)
            total = tl.dot(left, right.T, total, out_dtype=tl.int32)
        value = total.to(tl.float32) * tl.load(scales_a + row, mask=is_row, other=0.0)[:, None]
        if HAS_SCALES:
            value *= tl.load(scales_b + column, mask=is_column, other=0.0)[None, :]
        if HAS_APART:
            place = tl.arange(0, APART)
            of_apart = (place < count_apart)[None, :]
            of_left = tl.load(
                left_apart + wide_row * count_apart + place[None, :], mask=is_row[:, None] & of_apart, other=0.0
            )
            of_right = tl.load(
                right_apart + wide_column * count_apart + place[None, :], mask=is_column[:, None] & of_apart, other=0.0
            )
            value = tl.dot(of_left, of_right.T, value, input_precision="ieee")
        for target in tl.static_range(TARGETS):
            first = first_0 if target == 0 else (first_1 if target == 1 else first_2)
            last = last_0 if target == 0 else (last_1 if target == 1 else last_2)
            if (at_column < last) & (at_column + COLUMNS > first):
                within = tl.arange(0, RANKS)
                of_rank = (within < RANK)[None, :]
                of_u = tl.load(
                    u + wide_row * rows_u + (target * RANK + within)[None, :], mask=is_row[:, None] & of_rank, other=0.0
                )
                inside = ((column >= first) & (column < last))[:, None]
                of_b = tl.load(work_b + wide_column * RANK + within[None, :], mask=inside & of_rank, other=0.0)
                value = tl.dot(of_u, of_b.T, value, input_precision="ieee")
        to = wide_row * count + column[None, :]
        there = is_row[:, None] & is_column[None, :]
        if IN_BLOCKS:
            scale, factor = inverse(tl.reduce(tl.abs(value), 1, larger))
            tl.store(scales_y + row.to(tl.int64) * across + at_column // COLUMNS, scale, mask=is_row)
            tl.store(y + to, rounded(value * factor[:, None]), mask=there)
        else:
            tl.store(y + to, value.to(y.dtype.element_ty), mask=there)
