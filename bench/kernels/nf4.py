"""NF4 weights, and their dequantization: both levels of quantization in one pass.

A weight of N numbers is stored as (Dettmers et al. 2023, "QLoRA", section 3):

    packed        N / 2 bytes     two numbers each, the first in the high half: an index into `levels`
    levels        16 float32      the quantiles of a normal distribution
    scales        N / 64 bytes    one for every block of 64 numbers, itself an index into `scale_levels`
    scale_levels  256 float32
    scale_scales  N / 64 / 256 float32, one for every 256 scales, and `offset`, one for all

    number[i] = levels[index[i]] * (scale_levels[scales[i / 64]] * scale_scales[i / 64 / 256] + offset)

The library does this in three kernels, with the scales in memory as float32, and rounds at the same places, so results
are equal bit by bit; the products and the sum must not become a fused multiply-add.

Bytes moved: N/2 + N/64 in, 2N out in bf16; for 7e9 numbers 3.6 GB and 14 GB, once in a forward and once in a backward.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import compiled, jit, parts, tl

BLOCK = 64  # numbers to a scale
SCALE_BLOCK = 256  # scales to a scale of scales
WORD = 8  # numbers to 4 bytes
MOST_WEIGHTS = 3  # to a launch: q, k and v
WORDS = 512  # to a program; 256 to 1024 with 2 or 4 warps are within 2 % of each other


@dataclass(frozen=True, kw_only=True)
class Nf4:
    """One quantized weight of `shape` (out_features, in_features); for the tensors see the module's docstring.

    `dtype` is that of the original weight, to which the library rounds.
    """

    shape: tuple[int, int]
    dtype: Any
    packed: Any
    levels: Any
    scales: Any
    scale_levels: Any
    scale_scales: Any
    offset: Any

    @property
    def numbers(self) -> int:
        return self.shape[0] * self.shape[1]


class NotDoubleNf4(ValueError):
    """A weight that is not NF4 with double quantization in the usual block sizes; the message says what it is."""


def from_bitsandbytes(weight: Any) -> Nf4:
    """The tensors of a `Params4bit`, not copied. Raises NotDoubleNf4."""
    state = getattr(weight, "quant_state", None)
    if state is None or state.quant_type != "nf4" or not state.nested:
        raise NotDoubleNf4("the base is not NF4 with double quantization")
    if (state.blocksize, state.state2.blocksize) != (BLOCK, SCALE_BLOCK):
        raise NotDoubleNf4(f"NF4 in blocks of {state.blocksize} and {state.state2.blocksize}, not 64 and 256")
    if len(state.shape) != 2 or math.prod(state.shape) % WORD:
        raise NotDoubleNf4(f"a quantized weight of shape {tuple(state.shape)}, not a matrix of a multiple of 8 numbers")
    return Nf4(
        shape=(int(state.shape[0]), int(state.shape[1])),
        dtype=state.dtype,
        packed=weight.data.view(-1),
        levels=state.code,
        scales=state.absmax,
        scale_levels=state.state2.code,
        scale_scales=state.state2.absmax,
        offset=state.offset.reshape(1),
    )


def dequantize_joined(weights: tuple[Nf4, ...], out: Any) -> None:
    """Fill `out`, contiguous, with up to MOST_WEIGHTS weights one below the other, each number rounded once.

    One launch for all: small weights take less time than a launch costs, and run beside the others.
    """
    if not compiled(out):
        torch.cat([dequantize_reference(weight) for weight in weights], out=out)
        return
    words = [weight.numbers // WORD for weight in weights]
    _nf4_dequantize[(sum(parts(count, WORDS) for count in words),)](
        *tables_of_all(weights), out, *filled(words), WEIGHTS=len(weights), WORDS=WORDS, WORD=WORD, BLOCK=BLOCK,
        SCALE_BLOCK=SCALE_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def tables_of_all(weights: tuple[Nf4, ...]) -> tuple[Any, ...]:
    """The tensors of MOST_WEIGHTS weights, in the order of a kernel's arguments; the first fills what is missing."""
    every = [_tables(weight) for weight in weights]
    every += every[:1] * (MOST_WEIGHTS - len(weights))
    return tuple(tensor for tables in every for tensor in tables)


def filled(counts: list[int]) -> list[int]:
    """One count for each of MOST_WEIGHTS weights, 0 for a missing one."""
    return counts + [0] * (MOST_WEIGHTS - len(counts))


def _tables(weight: Nf4) -> tuple[Any, ...]:
    """The tensors in the order of the kernel's arguments."""
    packed = weight.packed.view(torch.int32)
    return packed, weight.levels, weight.scales, weight.scale_levels, weight.scale_scales, weight.offset


def dequantize_reference(weight: Nf4) -> Any:
    """float32 of `weight.shape`."""
    scales = weight.scale_levels[weight.scales.long()]
    of_scales = weight.scale_scales.repeat_interleave(SCALE_BLOCK)[: len(scales)]
    scales = (scales * of_scales + weight.offset).repeat_interleave(BLOCK)[: weight.numbers]
    indices = torch.stack((weight.packed >> 4, weight.packed & 0xF), dim=-1).view(-1)[: weight.numbers]
    return (weight.levels[indices.long()] * scales).view(weight.shape)


@jit
def _nf4_words(
    packed, levels, scales, scale_levels, scale_scales, offset, out, words, program,
    WORDS: tl.constexpr, WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    # One thread takes a word of 4 bytes and writes its 8 numbers at once, 16 bytes in bf16: both sides coalesce.
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    there = word < words
    block = word // (BLOCK // WORD)
    scale = tl.load(scale_levels + tl.load(scales + block, mask=there, other=0).to(tl.int32))
    scale = scale * tl.load(scale_scales + block // SCALE_BLOCK, mask=there, other=0.0) + tl.load(offset)
    nibble = tl.arange(0, WORD)
    shift = nibble // 2 * 8 + (1 - nibble % 2) * 4  # bytes from the low end, the high half of each first
    index = (tl.load(packed + word, mask=there, other=0)[:, None] >> shift[None, :]) & 0xF
    number = tl.load(levels + index) * scale[:, None]
    place = word[:, None] * WORD + nibble[None, :]
    tl.store(out + place, number.to(out.dtype.element_ty), mask=there[:, None])


@jit
def _nf4_dequantize(
    packed_0, levels_0, scales_0, scale_levels_0, scale_scales_0, offset_0,
    packed_1, levels_1, scales_1, scale_levels_1, scale_scales_1, offset_1,
    packed_2, levels_2, scales_2, scale_levels_2, scale_scales_2, offset_2,
    out, words_0, words_1, words_2,
    WEIGHTS: tl.constexpr, WORDS: tl.constexpr, WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    first_1 = (words_0 + WORDS - 1) // WORDS
    first_2 = first_1 + (words_1 + WORDS - 1) // WORDS
    if program < first_1:
        _nf4_words(
            packed_0, levels_0, scales_0, scale_levels_0, scale_scales_0, offset_0, out, words_0, program,
            WORDS, WORD, BLOCK, SCALE_BLOCK,
        )  # fmt: skip
    if WEIGHTS > 1:
        out_1 = out + words_0.to(tl.int64) * WORD
        if (program >= first_1) & (program < first_2):
            _nf4_words(
                packed_1, levels_1, scales_1, scale_levels_1, scale_scales_1, offset_1, out_1, words_1,
                program - first_1, WORDS, WORD, BLOCK, SCALE_BLOCK,
            )  # fmt: skip
    if WEIGHTS > 2:
        out_2 = out + (words_0.to(tl.int64) + words_1) * WORD
        if program >= first_2:
            _nf4_words(
                packed_2, levels_2, scales_2, scale_levels_2, scale_scales_2, offset_2, out_2, words_2,
                program - first_2, WORDS, WORD, BLOCK, SCALE_BLOCK,
            )  # fmt: skip
