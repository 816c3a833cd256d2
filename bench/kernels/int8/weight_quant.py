"""NF4 weights in INT8 with a scale per row, for both products with a frozen weight W (N, K).

`quantize_rotated` is W for y = x W^T, rotated like its input (`row_quant`). `quantize_transposed` is W^T for d_x =
d_y W, because INT8 products need the summed index contiguous on both sides. It is not rotated: the scale of a row of W
applies to a column of d_y, as `factors` of `row_quant.quantize_rows`.

Both are written from NF4 in one pass. A block of 64 numbers has only sixteen distinct values: `prmt` selects four at a
time from registers. Pairs of float16 are rotated by sums and differences, multiplied by the ratio of block scale to row
scale and rounded by adding 1536, after which the low byte is the number. Compared with float32 arithmetic, one number
in a hundred differs by one step, one in seventy of the rotated ones.

Bytes moved: N K (1/2 + 1/64) in, N K out. One H200, microseconds for gate and up (28672 x 4096): 62 rotated, 55 without
the rotation, 70 transposed; memory bandwidth would allow 43. A table look-up in memory for each number took 106 for
either, and so did a rotation by matrix products with the Hadamard matrix.
"""

import struct
from typing import Any

import torch

from bench.kernels import nf4
from bench.kernels.int8 import row_quant
from bench.kernels.triton_compat import ceil_div, jit, tl, uses_triton

PROGRAM_GROUPS = 256  # per program, for a rotated weight
PROGRAM_ROWS, PROGRAM_ROW_WORDS = 128, 16  # per program, for a transposed weight


def row_scales(weights: tuple[nf4.Nf4, ...], *, rotated: bool = False) -> Any:
    """Compute the scales of the concatenated weights' rows, float32 (N,). Once is enough: weights are frozen."""
    largest = []
    for weight in weights:
        numbers = torch.empty(weight.shape, dtype=torch.float32, device=weight.packed.device)
        nf4.dequantize_joined((weight,), numbers)
        largest.append((row_quant.rotate_reference(numbers) if rotated else numbers).abs_().amax(1))
    return torch.cat(largest) / row_quant.MAX_INT8


def quantize_rotated(weights: tuple[nf4.Nf4, ...], scales: Any) -> Any:
    """Return the INT8 values (N, K) of the concatenated, rotated weights; `scales` as from `row_scales`."""
    out = torch.empty((len(scales), weights[0].shape[1]), dtype=torch.int8, device=scales.device)
    if not uses_triton(out):
        return quantize_rotated_reference(weights, scales)
    group_counts = tuple(weight.numel // row_quant.GROUP for weight in weights)
    _int8_weight_rows[(sum(ceil_div(count, PROGRAM_GROUPS) for count in group_counts),)](
        tuple(map(nf4.kernel_tensors, weights)), out.view(torch.int32), scales, group_counts,
        weights[0].shape[1] // row_quant.GROUP, GROUPS=PROGRAM_GROUPS, GROUP=row_quant.GROUP, BLOCK=nf4.BLOCK,
        SCALE_BLOCK=nf4.SCALE_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def quantize_transposed(weights: tuple[nf4.Nf4, ...], scales: Any) -> Any:
    """Return the INT8 values (K, N) of the transposed weights. Each weight's number of rows is a multiple of 4."""
    out = torch.empty((weights[0].shape[1], len(scales)), dtype=torch.int8, device=scales.device)
    if not uses_triton(out):
        return quantize_reference(weights, scales).T.contiguous()
    heights, row_words = tuple(weight.shape[0] for weight in weights), weights[0].shape[1] // nf4.WORD
    _int8_weight_columns[
        (sum(ceil_div(height, PROGRAM_ROWS) for height in heights), ceil_div(row_words, PROGRAM_ROW_WORDS))
    ](
        tuple(map(nf4.kernel_tensors, weights)), out.view(torch.int32), scales, heights, row_words, len(scales) // 4,
        FOURS=PROGRAM_ROWS // 4, WORDS=PROGRAM_ROW_WORDS, WORD=nf4.WORD, BLOCK=nf4.BLOCK,
        SCALE_BLOCK=nf4.SCALE_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


# In plain PyTorch -----------------------------------------------------------------------------------------------------


def quantize_rotated_reference(weights: tuple[nf4.Nf4, ...], scales: Any) -> Any:
    numbers = torch.cat([nf4.dequantize_reference(weight).float() for weight in weights])
    return _divide(row_quant.rotate_reference(numbers), scales)


def quantize_reference(weights: tuple[nf4.Nf4, ...], scales: Any) -> Any:
    return _divide(torch.cat([nf4.dequantize_reference(weight) for weight in weights]), scales)


def _divide(numbers: Any, scales: Any) -> Any:
    return torch.where(scales[:, None] > 0, numbers / scales[:, None], 0.0).round().to(torch.int8)


# On the GPU -----------------------------------------------------------------------------------------------------------

# NF4's sixteen values (Dettmers et al. 2023, appendix E), as `state.code` holds them.
NF4 = (
    *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
    *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
)
FLOAT16_1536 = 0x66006600  # twice


def _byte_table(shift: int) -> list[str]:
    """Return one byte of each of the sixteen float16 values, four to a register."""
    picked = [(struct.unpack("<H", struct.pack("<e", value))[0] >> shift) & 0xFF for value in NF4]
    return [f"0x{int.from_bytes(bytes(picked[at : at + 4]), 'little'):08x}" for at in range(0, 16, 4)]


def _decode_four(selectors: str, first: str, second: str) -> list[str]:
    """Decode four codes, the lower 16 bits of `selectors`, to two registers of two float16 values, in their order."""
    lines = [
        f"and.b32 index, {selectors}, 0x7777;",
        # A selector with its upper bit set copies the sign of a byte: 0xff here, and 0x80 where it is not set.
        f"prmt.b32 upper, ones, ones, {selectors};",
        "and.b32 upper, upper, 0x01010101;",
        "mul.lo.u32 upper, upper, 255;",
    ]
    for name, shift in (("low", 0), ("high", 8)):
        table = _byte_table(shift)
        lines += [f"mov.b32 a, {table[0]};", f"mov.b32 b, {table[1]};", "prmt.b32 below, a, b, index;"]
        lines += [f"mov.b32 a, {table[2]};", f"mov.b32 b, {table[3]};", "prmt.b32 above, a, b, index;"]
        lines += [f"lop3.b32 {name}, upper, above, below, 0xca;"]  # upper ? above : below
    # The upper four bits of a byte hold the first code.
    return [*lines, f"prmt.b32 {first}, low, high, 0x4051;", f"prmt.b32 {second}, low, high, 0x6273;"]


def _rotate_pairs(pair_count: int) -> list[str]:
    """Multiply the float16 values of p0, p1, ..., two in each, by a Hadamard matrix of ones."""
    lines = []
    for pair in range(pair_count):  # (a, b) to (a + b, a - b)
        lines += [f"prmt.b32 a, p{pair}, p{pair}, 0x1032;", f"fma.rn.f16x2 p{pair}, p{pair}, signs, a;"]
    for distance in (1 << bit for bit in range((pair_count - 1).bit_length())):
        for pair in (pair for pair in range(pair_count) if not pair & distance):
            left, right = f"p{pair}", f"p{pair + distance}"
            lines += [f"mov.b32 a, {left};", f"add.rn.f16x2 {left}, a, {right};", f"sub.rn.f16x2 {right}, a, {right};"]
    return lines


def _decode(word_count: int, *, rotated: bool) -> str:
    """Return the code from words of eight codes, and the ratio twice as float16, to two words of INT8 for each."""
    pair_count = 4 * word_count
    lines = [f".reg .b32 index, upper, ones, a, b, below, above, low, high, rest, magic, signs, p<{pair_count}>;"]
    lines += ["mov.b32 ones, 0x80808080;", f"mov.b32 magic, 0x{FLOAT16_1536:08x};", "mov.b32 signs, 0xbc003c00;"]
    for word in range(word_count):
        source = f"${2 * word_count + word}"
        lines += [*_decode_four(source, f"p{4 * word}", f"p{4 * word + 1}"), f"shr.u32 rest, {source}, 16;"]
        lines += _decode_four("rest", f"p{4 * word + 2}", f"p{4 * word + 3}")
    lines += _rotate_pairs(pair_count) if rotated else []
    for pair in range(pair_count):
        lines += [f"fma.rn.f16x2 p{pair}, p{pair}, ${3 * word_count}, magic;"]
    lines += [f"prmt.b32 ${out}, p{2 * out}, p{2 * out + 1}, 0x6420;" for out in range(2 * word_count)]
    return "\n".join(["{", *lines, "}"])


DECODE_WORD = tl.constexpr(_decode(1, rotated=False))
DECODE_GROUP = tl.constexpr(_decode(2, rotated=True))
# Transpose 4 x 4 bytes.
TRANSPOSE = tl.constexpr(
    """{ .reg .b32 a, b, c, d;
    prmt.b32 a, $4, $5, 0x5140;
    prmt.b32 b, $4, $5, 0x7362;
    prmt.b32 c, $6, $7, 0x5140;
    prmt.b32 d, $6, $7, 0x7362;
    prmt.b32 $0, a, c, 0x5410;
    prmt.b32 $1, a, c, 0x7632;
    prmt.b32 $2, b, d, 0x5410;
    prmt.b32 $3, b, d, 0x7632;
    }"""
)


@jit
def _int8_weight_ratio(weight, scale_of_row, block, mask, SCALE_BLOCK: tl.constexpr):
    """Return the ratio of block scale to row scale, twice as float16."""
    _, _, scales, scale_levels, scale_scales, offset = weight
    scale = tl.load(scale_levels + tl.load(scales + block, mask=mask, other=0).to(tl.int32))
    scale = scale * tl.load(scale_scales + block // SCALE_BLOCK, mask=mask, other=0.0) + tl.load(offset)
    scale = tl.where(scale_of_row > 0.0, scale / scale_of_row, 0.0)
    bits = scale.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits | (bits << 16)


@jit
def _int8_weight_words(
    weight, row_scale, word_offsets, is_row, mask, WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr
):
    """Return the INT8 numbers of these words, four to an int32."""
    scale = tl.load(row_scale, mask=is_row, other=0.0)[None, :]
    ratio = _int8_weight_ratio(weight, scale, word_offsets // (BLOCK // WORD), mask, SCALE_BLOCK)
    word = tl.load(weight[0] + word_offsets, mask=mask, other=0)
    return tl.inline_asm_elementwise(
        DECODE_WORD, "=&r,=&r,r,r", [word, ratio], dtype=(tl.int32, tl.int32), is_pure=True, pack=1
    )


@jit
def _int8_weight_rows_part(
    weight, out, row_scales, group_count, row_groups, program, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    group = program.to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    mask = group < group_count
    row_scale = tl.load(row_scales + group // row_groups, mask=mask, other=0.0) * 4.0
    ratio = _int8_weight_ratio(weight, row_scale, group // (BLOCK // GROUP), mask, SCALE_BLOCK)
    pair = tl.arange(0, 2)[None, :]
    left, right = tl.split(tl.load(weight[0] + group[:, None] * 2 + pair, mask=mask[:, None], other=0))
    first, second, third, fourth = tl.inline_asm_elementwise(
        DECODE_GROUP, "=&r,=&r,=&r,=&r,r,r,r", [left, right, ratio],
        dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    four = tl.reshape(tl.join(tl.join(first, third), tl.join(second, fourth)), (GROUPS, 4))
    tl.store(out + group[:, None] * 4 + tl.arange(0, 4)[None, :], four, mask=mask[:, None])


@jit
def _int8_weight_rows(
    weights, out, row_scales, group_counts, row_groups, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    for index in tl.static_range(len(weights)):
        programs = (group_counts[index] + GROUPS - 1) // GROUPS
        if (program >= 0) & (program < programs):
            _int8_weight_rows_part(
                weights[index], out, row_scales, group_counts[index], row_groups, program, GROUPS, GROUP, BLOCK,
                SCALE_BLOCK,
            )  # fmt: skip
        program -= programs
        out += group_counts[index].to(tl.int64) * 4
        row_scales += group_counts[index] // row_groups


@jit
def _int8_weight_columns_part(
    weight, out, row_scales, height, row_words, stride, program, FOURS: tl.constexpr, WORDS: tl.constexpr,
    WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    # A thread transposes a word of each of four rows, so that it writes four rows' numbers at once.
    four = program.to(tl.int64) * FOURS + tl.arange(0, FOURS)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    is_row = four * 4 < height
    mask = (word < row_words)[:, None] & is_row[None, :]
    offsets, scale = four[None, :] * 4 * row_words + word[:, None], row_scales + four * 4
    a = _int8_weight_words(weight, scale, offsets, is_row, mask, WORD, BLOCK, SCALE_BLOCK)
    b = _int8_weight_words(weight, scale + 1, offsets + row_words, is_row, mask, WORD, BLOCK, SCALE_BLOCK)
    c = _int8_weight_words(weight, scale + 2, offsets + 2 * row_words, is_row, mask, WORD, BLOCK, SCALE_BLOCK)
    d = _int8_weight_words(weight, scale + 3, offsets + 3 * row_words, is_row, mask, WORD, BLOCK, SCALE_BLOCK)
    column = out + word.to(tl.int64)[:, None] * WORD * stride + four[None, :]
    for half in tl.static_range(2):
        turned = tl.inline_asm_elementwise(
            TRANSPOSE, "=&r,=&r,=&r,=&r,r,r,r,r", [a[half], b[half], c[half], d[half]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
        )  # fmt: skip
        for row in tl.static_range(4):
            tl.store(column + (4 * half + row) * stride, turned[row], mask=mask)


@jit
def _int8_weight_columns(
    weights, out, row_scales, heights, row_words, stride, FOURS: tl.constexpr, WORDS: tl.constexpr,
    WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    for index in tl.static_range(len(weights)):
        programs = (heights[index] + 4 * FOURS - 1) // (4 * FOURS)
        if (program >= 0) & (program < programs):
            _int8_weight_columns_part(
                weights[index], out, row_scales, heights[index], row_words, stride, program, FOURS, WORDS, WORD,
                BLOCK, SCALE_BLOCK,
            )  # fmt: skip
        program -= programs
        out += heights[index] // 4
        row_scales += heights[index]
