"""INT8 product y = a b^T, plus outlier columns and LoRA adapters in 16 bits.

    y[t, n] = (sum over k of a.values[t, k] b.values[n, k]) a.scales[t] b.scales[n]
              + sum over c of a.outliers[t, c] outlier_weights[n, c]
              + u_j[t] . b_j[n]                            for n in columns_j

a: `QuantizedRows` (T, K); b: `QuantizedRows` (N, K); outlier_weights (N, C): the columns of W that belong to
`a.outliers`; u (T, n R) and work_b (N, R) as in `bench.kernels.lora_out`. INT8 products are summed exactly, in 32 bits,
up to K = 133,000. The side inputs are added in float32 in the same kernel, so y is written once and rounded once.

y can also be written in INT8 (`bench.kernels.int8.row_quant`), since a tile is one block of columns wide.

One H200, T = 4096, microseconds for the forward products of a layer of the 7B shape (q k v, o, gate up, down): bf16
299, 203, 1436, 674; this kernel 174, 114, 753, 369 at the power limit, as fast as the library's FP8 with a scale per
row, whose three bits of mantissa cost more quality than these seven. Outlier columns and adapters add 2 to 10 %.
"""

from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels import triton_compat
from bench.kernels.int8.row_quant import (
    BLOCK,
    QuantizedRows,
    empty_blocks,
    max_with_nan,
    quantize_blocks_reference,
    round_to_int8,
    scale_and_inverse,
)
from bench.kernels.triton_compat import (
    TensorDescriptor,
    ceil_div,
    gpu_properties,
    jit,
    next_power_of_2,
    tl,
    uses_triton,
)

MAX_TARGETS = 3  # adapters of one product: q, k and v
MIN_SUM = 16  # terms of a product in Triton
GROUP_TILES = 8  # tiles of tokens that share a tile of columns in the cache


@dataclass(frozen=True, kw_only=True)
class SideInputs:
    """16-bit terms added to the INT8 product, each optional. `columns`: the columns of y that each adapter covers."""

    outlier_weights: Any = None
    u: Any = None
    work_b: Any = None
    columns: tuple[slice, ...] = ()
    rank: int = 0


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Tile sizes of a program: rows of y and length of the partial sum, its warps and pipeline stages.

    `tma`: the copy engine of Hopper and later loads the tiles. `persistent_programs`: programs per multiprocessor that
    process one tile after another; 0: one program per tile.
    """

    tokens: int
    inner: int
    warps: int
    stages: int
    tma: bool
    persistent_programs: int = 0


# Two programs share a multiprocessor, so one multiplies while the other writes: 3 to 8 % faster than one program of
# 128 x 256, the best of ten such. Both reach the power limit; two programs do so at a lower clock.
HOPPER = Tiles(tokens=128, inner=128, warps=4, stages=3, tma=True, persistent_programs=2)
# Two programs share an A10's multiprocessor. In sm_86 code on one H100 a whole INT8 step took 0.217 s with these tiles,
# 0.218 s with four stages and 0.281 s with eight warps. Eight warps spill no registers; four spill in the epilogue.
AMPERE = Tiles(tokens=128, inner=64, warps=4, stages=3, tma=False)
NO_SIDE_INPUTS = SideInputs()


def product(
    a: QuantizedRows,
    b: QuantizedRows,
    side_inputs: SideInputs = NO_SIDE_INPUTS,
    *,
    dtype: Any,
    in_blocks: bool = False,
    tiles: Tiles | None = None,
) -> Any:
    """Return y (T, N) in `dtype`; `in_blocks`, as `QuantizedBlocks` of such numbers: N is a multiple of BLOCK."""
    (tokens, inner), width = a.values.shape, len(b.values)
    if not uses_triton(a.values):
        if in_blocks:
            return quantize_blocks_reference(product_reference(a, b, side_inputs, torch.float32), dtype)
        return product_reference(a, b, side_inputs, dtype)
    blocks = empty_blocks(tokens, width, dtype, a.values.device) if in_blocks else None
    y = torch.empty((tokens, width), dtype=dtype, device=a.values.device) if blocks is None else blocks.values
    capability, processors = gpu_properties(y.device)
    tiles = tiles or tiles_for(capability)
    grid = ceil_div(tokens, tiles.tokens) * ceil_div(width, BLOCK)
    programs = min(grid, tiles.persistent_programs * processors) if tiles.persistent_programs else grid
    left, right = a.values, b.values
    if tiles.tma:
        left = TensorDescriptor.from_tensor(left, [tiles.tokens, tiles.inner])
        right = TensorDescriptor.from_tensor(right, [BLOCK, tiles.inner])
    outlier_count = 0 if side_inputs.outlier_weights is None else side_inputs.outlier_weights.shape[1]
    target_count = len(side_inputs.columns)
    _int8_matmul[(programs,)](
        left, right, y, y if blocks is None else blocks.scales, a.scales, y if b.scales is None else b.scales,
        y if not outlier_count else a.outliers, y if not outlier_count else side_inputs.outlier_weights,
        y if not target_count else side_inputs.u, y if not target_count else side_inputs.work_b, tokens, width, inner,
        outlier_count, side_inputs.rank * target_count, *column_edges(side_inputs.columns), IN_BLOCKS=in_blocks,
        HAS_SCALES=b.scales is not None, HAS_OUTLIERS=outlier_count > 0,
        OUTLIERS=max(MIN_SUM, next_power_of_2(outlier_count)), TARGETS=target_count, RANK=side_inputs.rank,
        RANKS=max(MIN_SUM, next_power_of_2(side_inputs.rank)), TOKENS=tiles.tokens, COLUMNS=BLOCK, INNER=tiles.inner,
        GROUP=GROUP_TILES, TMA=tiles.tma, PROGRAMS=programs, PERSISTENT=tiles.persistent_programs > 0,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return y if blocks is None else blocks


def tiles_for(capability: tuple[int, int]) -> Tiles:
    """Return the default tiles for a GPU of this compute capability."""
    return AMPERE if capability < triton_compat.HOPPER else HOPPER


def column_edges(columns: tuple[slice, ...]) -> tuple[int, ...]:
    """Return first and end column of MAX_TARGETS adapters; a missing one covers no column."""
    edges = [edge for part in columns for edge in (part.start, part.stop)]
    return (*edges, *[0] * (2 * MAX_TARGETS - len(edges)))


def product_reference(a: QuantizedRows, b: QuantizedRows, side_inputs: SideInputs, dtype: Any) -> Any:
    # float64 holds every sum of INT8 products exactly.
    y = (a.values.double() @ b.values.double().T).float() * a.scales[:, None]
    if b.scales is not None:
        y *= b.scales
    if side_inputs.outlier_weights is not None:
        y += a.outliers.float() @ side_inputs.outlier_weights.float().T
    for target, columns in enumerate(side_inputs.columns):
        part = side_inputs.u[:, target * side_inputs.rank : (target + 1) * side_inputs.rank]
        y[:, columns] += part.float() @ side_inputs.work_b[columns].float().T
    return y.to(dtype)


@jit
def _int8_matmul(
    a, b, y, scales_y, scales_a, scales_b, left_outliers, right_outliers, u, work_b, tokens, count, width,
    outlier_count, u_stride, first_0, last_0, first_1, last_1, first_2, last_2, IN_BLOCKS: tl.constexpr,
    HAS_SCALES: tl.constexpr, HAS_OUTLIERS: tl.constexpr, OUTLIERS: tl.constexpr, TARGETS: tl.constexpr,
    RANK: tl.constexpr, RANKS: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    GROUP: tl.constexpr, TMA: tl.constexpr, PROGRAMS: tl.constexpr, PERSISTENT: tl.constexpr,
):  # fmt: skip
    row_tiles, column_tiles = tl.cdiv(tokens, TOKENS), tl.cdiv(count, COLUMNS)
    for tile in tl.range(tl.program_id(0), row_tiles * column_tiles, PROGRAMS, flatten=PERSISTENT):
        # Neighbouring programs compute neighbouring tiles of y, GROUP tiles of tokens at a time.
        group = tile // (GROUP * column_tiles)
        group_rows = min(row_tiles - group * GROUP, GROUP)
        first_row = (group * GROUP + tile % (GROUP * column_tiles) % group_rows) * TOKENS
        first_column = tile % (GROUP * column_tiles) // group_rows * COLUMNS
        row, column = first_row + tl.arange(0, TOKENS), first_column + tl.arange(0, COLUMNS)
        row_64, column_64 = row.to(tl.int64)[:, None], column.to(tl.int64)[:, None]
        is_row, is_column = row < tokens, column < count
        total = tl.zeros((TOKENS, COLUMNS), dtype=tl.int32)
        for start in range(tl.cdiv(width, INNER)):
            if TMA:
                left = a.load([first_row, start * INNER])
                right = b.load([first_column, start * INNER])
            else:
                inner = start * INNER + tl.arange(0, INNER)
                inside = (inner < width)[None, :]
                left = tl.load(a + row_64 * width + inner[None, :], mask=is_row[:, None] & inside, other=0)
                right = tl.load(b + column_64 * width + inner[None, :], mask=is_column[:, None] & inside, other=0)
            total = tl.dot(left, right.T, total, out_dtype=tl.int32)
        value = total.to(tl.float32) * tl.load(scales_a + row, mask=is_row, other=0.0)[:, None]
        if HAS_SCALES:
            value *= tl.load(scales_b + column, mask=is_column, other=0.0)[None, :]
        if HAS_OUTLIERS:
            outlier = tl.arange(0, OUTLIERS)
            outlier_mask = (outlier < outlier_count)[None, :]
            left_tile = tl.load(
                left_outliers + row_64 * outlier_count + outlier[None, :],
                mask=is_row[:, None] & outlier_mask,
                other=0.0,
            )
            right_tile = tl.load(
                right_outliers + column_64 * outlier_count + outlier[None, :],
                mask=is_column[:, None] & outlier_mask,
                other=0.0,
            )
            value = tl.dot(left_tile, right_tile.T, value, input_precision="ieee")
        for target in tl.static_range(TARGETS):
            first = first_0 if target == 0 else (first_1 if target == 1 else first_2)
            last = last_0 if target == 0 else (last_1 if target == 1 else last_2)
            if (first_column < last) & (first_column + COLUMNS > first):
                rank = tl.arange(0, RANKS)
                rank_mask = (rank < RANK)[None, :]
                u_tile = tl.load(
                    u + row_64 * u_stride + (target * RANK + rank)[None, :], mask=is_row[:, None] & rank_mask, other=0.0
                )
                inside = ((column >= first) & (column < last))[:, None]
                b_tile = tl.load(work_b + column_64 * RANK + rank[None, :], mask=inside & rank_mask, other=0.0)
                value = tl.dot(u_tile, b_tile.T, value, input_precision="ieee")
        offsets = row_64 * count + column[None, :]
        mask = is_row[:, None] & is_column[None, :]
        if IN_BLOCKS:
            scale, factor = scale_and_inverse(tl.reduce(tl.abs(value), 1, max_with_nan))
            tl.store(scales_y + row.to(tl.int64) * column_tiles + first_column // COLUMNS, scale, mask=is_row)
            tl.store(y + offsets, round_to_int8(value * factor[:, None]), mask=mask)
        else:
            tl.store(y + offsets, value.to(y.dtype.element_ty), mask=mask)
