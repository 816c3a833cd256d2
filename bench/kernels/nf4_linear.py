"""y = x W^T for few rows of x, with W in NF4 (`bench.kernels.nf4`): dequantized in registers, never in memory.

A decoding step multiplies every weight by one row per sequence. bitsandbytes has a kernel for a single row; for more it
writes the whole matrix in 16 bits and reads it back. Bytes a step must move for N x K weights: K N / 2 of codes and
K N / 64 of scales, instead of those and 4 K N more. The arithmetic (2 M N K) stays far below what the chip can do.

A program multiplies BLOCK_N rows of W, over its share of the columns, by all of x. On a large chip it is bound not by
memory but by turning four bits into sixteen. All of Mistral-7B's 7 G weights by 8 rows took 6.9 ms on an H200 with a
look-up in memory for each byte, and 4.9 ms like this (the library 11 ms; reading the codes alone 0.9 ms). The table is
in the instructions: `prmt` picks four bytes out of eight by four selectors at once. Each byte of a bf16 is picked from
the eight lower and from the eight upper values, and one of the two by the code's upper bit. A word of 32 bits holds
eight weights, which become four pairs.

Where too few programs would leave the chip idle, the columns are split; the program that finishes last adds the parts
in order. It knows by a counter that is raised atomically; no sum is added atomically.

Against W dequantized and multiplied by torch, the products differ by rounding alone: here value, scale and their
product are rounded to bf16, there the product is.

Not covered: more than 32 rows, and weights that `nf4.from_bitsandbytes` refuses; the library multiplies those.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.launch import jit, parts, power_of_two, tl
from bench.kernels.nf4 import BLOCK, SCALE_BLOCK, Nf4, NotDoubleNf4, from_bitsandbytes

MOST_ROWS = 32
# The sixteen values of NF4, rounded to bf16, as its bits: from -1 by 0 (the eighth) to 1.
NF4_BF16_BITS = (
    *(0xBF80, 0xBF32, 0xBF06, 0xBECA, 0xBE92, 0xBE3D, 0xBDBA, 0x0000),
    *(0x3DA3, 0x3E25, 0x3E7C, 0x3EAD, 0x3EE2, 0x3F10, 0x3F39, 0x3F80),
)
SMALLEST_DOT = 16
WORDS = 32  # a program takes this many words of each of its rows at a time: 128 bytes, 256 weights
PER_WORD = 8
PROGRAMS_PER_PROCESSOR = 4
MOST_PARTS = 16


def _registers(shift: int) -> list[int]:
    """One byte of each of the sixteen values, four to a register."""
    picked = [(bits >> shift) & 0xFF for bits in NF4_BF16_BITS]
    return [int.from_bytes(bytes(picked[at : at + 4]), "little") for at in range(0, 16, 4)]


def _half(selectors: str, first: int) -> list[str]:
    """Four codes, the lower 16 bits of `selectors`, into outputs `first` and `first + 1`."""
    lines = [
        f"and.b32 index, {selectors}, 0x7777;",
        # A selector with its upper bit set copies the sign of a byte: 0xff here, and 0x80 where it is not set.
        f"prmt.b32 upper, ones, ones, {selectors};",
        "and.b32 upper, upper, 0x01010101;",
        "mul.lo.u32 upper, upper, 255;",
    ]
    for name, shift in (("low", 0), ("high", 8)):
        table = [f"0x{register:08x}" for register in _registers(shift)]
        lines += [f"mov.b32 a, {table[0]};", f"mov.b32 b, {table[1]};", "prmt.b32 below, a, b, index;"]
        lines += [f"mov.b32 a, {table[2]};", f"mov.b32 b, {table[3]};", "prmt.b32 above, a, b, index;"]
        lines += [f"lop3.b32 {name}, upper, above, below, 0xca;"]  # upper ? above : below
    # Of a byte's two codes the upper four bits come first.
    for number, order in ((first, "0x4051"), (first + 1, "0x6273")):
        lines += [f"prmt.b32 pair, low, high, {order};", f"fma.rn.bf16x2 ${number}, pair, $5, minus_zero;"]
    return lines


DECODE = tl.constexpr(
    "\n".join(
        [
            "{ .reg .b32 index, upper, ones, a, b, below, above, low, high, pair, rest, minus_zero;",
            "mov.b32 ones, 0x80808080;",
            "mov.b32 minus_zero, 0x80008000;",
            *_half("$4", 0),
            "shr.u32 rest, $4, 16;",
            *_half("rest", 2),
            "}",
        ]
    )
)


@jit
def _lower(pair):
    return (pair & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)


@jit
def _upper(pair):
    return (pair >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


@jit
def _multiply(
    x,
    codes,
    absmax,
    levels,
    outer,
    offset,
    partials,
    tickets,
    out,
    m_rows,
    n_rows,
    columns: tl.constexpr,
    block: tl.constexpr,
    outer_block: tl.constexpr,
    words: tl.constexpr,
    per_word: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    split: tl.constexpr,
):
    tile, share = tl.program_id(0), tl.program_id(1)
    row_words: tl.constexpr = columns // per_word
    steps: tl.constexpr = (row_words + words - 1) // words
    blocks: tl.constexpr = words * per_word // block
    per_share: tl.constexpr = (steps + split - 1) // split
    rows = tile * block_n + tl.arange(0, block_n)
    sequences = tl.arange(0, block_m)
    base = tl.load(offset)
    total = tl.zeros((block_n, block_m), tl.float32)
    for step in range(share * per_share, min((share + 1) * per_share, steps)):
        at = step * words + tl.arange(0, words)
        is_code = (rows[:, None] < n_rows) & (at[None, :] < row_words)
        word = tl.load(codes + rows[:, None] * row_words + at[None, :], mask=is_code, other=0)
        # Loaded once for each block and spread over its words: loading for each word took five times as long.
        at_block = step * blocks + tl.arange(0, blocks)
        is_block = (rows[:, None] < n_rows) & (at_block[None, :] < columns // block)
        place = rows[:, None] * (columns // block) + at_block[None, :]
        level = tl.load(levels + tl.load(absmax + place, mask=is_block, other=0).to(tl.int32))
        scale = level * tl.load(outer + place // outer_block, mask=is_block, other=0.0) + base
        scale = tl.broadcast_to(scale[:, :, None], (block_n, blocks, words // blocks)).reshape(block_n, words)
        bits = scale.to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        first, second, third, fourth = tl.inline_asm_elementwise(
            DECODE,
            "=&r,=&r,=&r,=&r,r,r",
            [word, bits | (bits << 16)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )
        # Each of a word's eight weights to its place: the last axis that is joined counts fastest.
        low = tl.join(tl.join(_lower(first), _lower(third)), tl.join(_lower(second), _lower(fourth)))
        high = tl.join(tl.join(_upper(first), _upper(third)), tl.join(_upper(second), _upper(fourth)))
        tile_w = tl.join(low, high).reshape(block_n, words * per_word)
        at_x = step * words * per_word + tl.arange(0, words * per_word)
        is_x = (sequences[None, :] < m_rows) & (at_x[:, None] < columns)
        tile_x = tl.load(x + sequences[None, :] * columns + at_x[:, None], mask=is_x, other=0.0)
        total = tl.dot(tile_w, tile_x, total)
    is_place = (rows[:, None] < n_rows) & (sequences[None, :] < m_rows)
    to = sequences[None, :] * n_rows + rows[:, None]
    if split == 1:
        tl.store(out + to, total.to(tl.bfloat16), mask=is_place)
    else:
        size = m_rows * n_rows
        tl.store(partials + share * size + to, total, mask=is_place)
        tl.debug_barrier()
        if tl.atomic_add(tickets + tile, 1) == split - 1:
            # All other shares of this tile are written: each raised the counter afterwards.
            whole = tl.zeros((block_n, block_m), tl.float32)
            for part in range(split):
                whole += tl.load(partials + part * size + to, mask=is_place, other=0.0, cache_modifier=".cg")
            tl.store(out + to, whole.to(tl.bfloat16), mask=is_place)
            tl.store(tickets + tile, 0)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How a launch is divided: rows of W in a tile, shares of the columns, warps, concurrent loads."""

    block_n: int = 64
    split: int = 1
    warps: int = 4
    stages: int = 2


def shape_for(weight: Nf4, processors: int) -> Shape:
    """A shape with enough programs to keep `processors` multiprocessors busy."""
    tiles = parts(weight.shape[0], Shape().block_n)
    wanted = max(1, min(MOST_PARTS, PROGRAMS_PER_PROCESSOR * processors // tiles))
    return Shape(split=min(wanted, parts(weight.shape[1], WORDS * PER_WORD)))


class Workspace:
    """Memory for the parts of split sums, shared by all weights whose launches follow each other on one stream.

    A captured graph uses its addresses: keep the workspace as long as the graph.
    """

    def __init__(self, cut: Sequence[tuple[Nf4, Shape]], most_rows: int) -> None:
        device = cut[0][0].packed.device
        tiles = max(parts(weight.shape[0], shape.block_n) for weight, shape in cut)
        sums = max(shape.split * most_rows * weight.shape[0] for weight, shape in cut)
        self.tickets = torch.zeros(tiles, dtype=torch.int32, device=device)
        self.parts = torch.empty(sums, dtype=torch.float32, device=device)


class Launch:
    """One weight's launches: x bf16 (..., columns) gives (..., rows) in bf16."""

    def __init__(self, weight: Nf4, shape: Shape, workspace: Workspace) -> None:
        self._weight, self._shape, self._workspace = weight, shape, workspace
        self._grid = (parts(weight.shape[0], shape.block_n), shape.split)

    def __call__(self, x: Any) -> Any:
        weight, shape, workspace = self._weight, self._shape, self._workspace
        flat = x.reshape(-1, weight.shape[1]).contiguous()
        count = flat.shape[0]
        out = torch.empty((count, weight.shape[0]), dtype=torch.bfloat16, device=x.device)
        _multiply[self._grid](
            flat,
            weight.packed.view(torch.int32),
            weight.scales,
            weight.scale_levels,
            weight.scale_scales,
            weight.offset,
            workspace.parts,
            workspace.tickets,
            out,
            count,
            weight.shape[0],
            columns=weight.shape[1],
            block=BLOCK,
            outer_block=SCALE_BLOCK,
            words=WORDS,
            per_word=PER_WORD,
            block_m=max(SMALLEST_DOT, power_of_two(count)),
            block_n=shape.block_n,
            split=shape.split,
            num_warps=shape.warps,
            num_stages=shape.stages,
        )
        return out.reshape(*x.shape[:-1], weight.shape[0])


def launches(weights: Sequence[Nf4], *, most_rows: int) -> list[Callable[[Any], Any]]:
    """One product for each weight, on CUDA: x bf16 (..., columns), at most `most_rows` rows, gives (..., rows) in bf16.

    Deterministic: the parts of a long sum are added in a fixed order. All share one workspace, so one stream at a time.
    """
    processors = torch.cuda.get_device_properties(weights[0].packed.device).multi_processor_count
    cut = [(weight, shape_for(weight, processors)) for weight in weights]
    workspace = Workspace(cut, most_rows)
    return [Launch(weight, shape, workspace) for weight, shape in cut]


def products(stack: Any, linears: Sequence[Any], *, rows: int) -> dict[Any, Callable[[Any], Any]]:
    """This product for each of the linear layers that it covers, for up to `rows` rows; the others are left out.

    None on a CPU, and for more than MOST_ROWS rows. Keep them as long as a graph captured of them.
    """
    covered = {
        linear: weight
        for linear in linears
        if rows <= MOST_ROWS
        and isinstance(linear, stack.bitsandbytes.nn.Linear4bit)
        and linear.bias is None
        and linear.compute_dtype == torch.bfloat16
        and linear.weight.is_cuda
        and (weight := covered_weight(linear.weight)) is not None
    }
    if not covered:
        return {}
    made = launches(list(covered.values()), most_rows=rows)
    return dict(zip(covered, made, strict=True))


def covered_weight(weight: Any) -> Nf4 | None:
    """The weight of a `Params4bit`; None where this kernel does not cover it."""
    try:
        found = from_bitsandbytes(weight)
    except NotDoubleNf4:
        return None
    return found if found.shape[1] % BLOCK == 0 else None
