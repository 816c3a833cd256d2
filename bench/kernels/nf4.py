"""NF4 back to numbers, both levels of quantization in one pass.

A weight of N numbers is stored as (Dettmers et al. 2023, "QLoRA", section 3):

    packed        N / 2 bytes     two numbers each, the first in the high half: an index into `levels`
    levels        16 float32      the quantiles of a normal distribution
    scales        N / 64 bytes    one for every block of 64 numbers, itself an index into `scale_levels`
    scale_levels  256 float32
    scale_scales  N / 64 / 256 float32, one for every 256 scales, and `offset`, one for all

    number[i] = levels[index[i]] * (scale_levels[scales[i / 64]] * scale_scales[i / 64 / 256] + offset)

The library does this in three kernels, writing the scales as float32 in between and rounding at the same places, so the
results can be compared bit by bit; the products and the sum must not be contracted into a fused multiply-add.

Bytes moved: N/2 + N/64 in, 2N out in bf16; for 7e9 numbers 3.6 GB and 14 GB, once in a forward and once in a backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.launch import compiled, jit, parts, tl

BLOCK = 64  # numbers to a scale
SCALE_BLOCK = 256  # scales to a scale of scales
WORD = 8  # numbers to 4 bytes
WORDS = 512  # to a program; 256 to 1024 with 2 or 4 warps are within 2 % of each other


@dataclass(frozen=True, kw_only=True)
class Nf4:
    """One quantized weight of `shape` (out_features, in_features); the tensors are those of the module's docstring.

    `dtype` is what the library rounds its numbers to, that of the weight it quantized.
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


def dequantize(weight: Nf4, out: Any) -> None:
    """Fill `out`, contiguous and of `weight.shape`, rounding each number to its dtype once."""
    if compiled(out):
        words = weight.numbers // WORD
        _nf4_dequantize[(parts(words, WORDS),)](
            weight.packed.view(torch.int32),
            weight.levels,
            weight.scales,
            weight.scale_levels,
            weight.scale_scales,
            weight.offset,
            out,
            words,
            WORDS=WORDS,
            WORD=WORD,
            BLOCK=BLOCK,
            SCALE_BLOCK=SCALE_BLOCK,
            num_warps=4,
            enable_fp_fusion=False,
        )
    else:
        out.copy_(dequantize_reference(weight))


def dequantize_reference(weight: Nf4) -> Any:
    """float32 of `weight.shape`."""
    scales = weight.scale_levels[weight.scales.long()]
    of_scales = weight.scale_scales.repeat_interleave(SCALE_BLOCK)[: len(scales)]
    scales = (scales * of_scales + weight.offset).repeat_interleave(BLOCK)[: weight.numbers]
    indices = torch.stack((weight.packed >> 4, weight.packed & 0xF), dim=-1).view(-1)[: weight.numbers]
    return (weight.levels[indices.long()] * scales).view(weight.shape)


@jit
def _nf4_dequantize(
    packed,
    levels,
    scales,
    scale_levels,
    scale_scales,
    offset,
    out,
    words,
    WORDS: tl.constexpr,
    WORD: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,
):
    # One thread takes a word of 4 bytes and writes its 8 numbers at once, 16 bytes in bf16: both sides coalesce.
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
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
