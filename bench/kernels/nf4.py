"""NF4 weights and their dequantization, both levels of quantization in one pass.

A weight of N numbers is stored as (Dettmers et al. 2023, "QLoRA", section 3):

    packed        N / 2 bytes     two codes each, the first in the high half: indices into `levels`
    levels        16 float32      the quantiles of a normal distribution
    scales        N / 64 bytes    one per block of 64 numbers: an index into `scale_levels`
    scale_levels  256 float32
    scale_scales  N / 64 / 256 float32, one per 256 scales; and one `offset` for all

    number[i] = levels[index[i]] * (scale_levels[scales[i / 64]] * scale_scales[i / 64 / 256] + offset)

The library uses three kernels, with the scales in memory as float32, and rounds at the same points, so results are
bit-identical; the products and the sum must not become a fused multiply-add.

Bytes moved: N/2 + N/64 in, 2N out in bf16; for 7e9 numbers 3.6 GB and 14 GB per forward and per backward.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from bench.kernels.triton_compat import ceil_div, jit, tl, uses_triton

BLOCK = 64  # numbers per scale
SCALE_BLOCK = 256  # scales per outer scale
WORD = 8  # numbers per 4-byte word
PROGRAM_WORDS = 512  # 256 to 1024 with 2 or 4 warps are within 2 % of each other


@dataclass(frozen=True, kw_only=True)
class Nf4:
    """Quantized weight of `shape` (out_features, in_features); the module's docstring explains the tensors.

    Of a weight of three dimensions the first two are joined. `dtype` is that of the original weight, to which the
    library rounds.
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
    def numel(self) -> int:
        return self.shape[0] * self.shape[1]


class UnsupportedQuantization(ValueError):
    """Weight that is not NF4 with double quantization in the usual block sizes; the message names its format."""


def from_bitsandbytes(weight: Any) -> Nf4:
    """Wrap the tensors of a `Params4bit` without a copy. Raises UnsupportedQuantization."""
    state = getattr(weight, "quant_state", None)
    if state is None or state.quant_type != "nf4" or not state.nested:
        raise UnsupportedQuantization("the base is not NF4 with double quantization")
    if (state.blocksize, state.state2.blocksize) != (BLOCK, SCALE_BLOCK):
        raise UnsupportedQuantization(
            f"NF4 in blocks of {state.blocksize} and {state.state2.blocksize}, not 64 and 256"
        )
    if math.prod(state.shape) % WORD:
        raise UnsupportedQuantization(f"a quantized weight of shape {tuple(state.shape)}, not a multiple of 8 numbers")
    return Nf4(
        shape=(math.prod(state.shape[:-1]), int(state.shape[-1])),
        dtype=state.dtype,
        packed=weight.data.view(-1),
        levels=state.code,
        scales=state.absmax,
        scale_levels=state.state2.code,
        scale_scales=state.state2.absmax,
        offset=state.offset.reshape(1),
    )


def dequantize_joined(weights: tuple[Nf4, ...], out: Any) -> None:
    """Fill `out`, contiguous, with the concatenated weights, each number rounded once.

    One launch serves all: a small weight takes less time than a launch, and runs in parallel with the others.
    """
    if not uses_triton(out):
        torch.cat([dequantize_reference(weight) for weight in weights], out=out)
        return
    word_counts = tuple(weight.numel // WORD for weight in weights)
    _nf4_dequantize[(sum(ceil_div(count, PROGRAM_WORDS) for count in word_counts),)](
        tuple(map(kernel_tensors, weights)), out, word_counts, WORDS=PROGRAM_WORDS, WORD=WORD, BLOCK=BLOCK,
        SCALE_BLOCK=SCALE_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def kernel_tensors(weight: Nf4) -> tuple[Any, ...]:
    """Return the tensors in the order that kernels unpack."""
    packed = weight.packed.view(torch.int32)
    return packed, weight.levels, weight.scales, weight.scale_levels, weight.scale_scales, weight.offset


def dequantize_reference(weight: Nf4) -> Any:
    """Return the weight in float32."""
    scales = weight.scale_levels[weight.scales.long()]
    outer_scales = weight.scale_scales.repeat_interleave(SCALE_BLOCK)[: len(scales)]
    scales = (scales * outer_scales + weight.offset).repeat_interleave(BLOCK)[: weight.numel]
    indices = torch.stack((weight.packed >> 4, weight.packed & 0xF), dim=-1).view(-1)[: weight.numel]
    return (weight.levels[indices.long()] * scales).view(weight.shape)


@jit
def _nf4_dequantize_words(
    weight, out, word_count, program, WORDS: tl.constexpr, WORD: tl.constexpr, BLOCK: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,
):  # fmt: skip
    packed, levels, scales, scale_levels, scale_scales, offset = weight
    # A thread reads a word of 4 bytes and writes its 8 numbers at once, 16 bytes in bf16: both accesses coalesce.
    word = program.to(tl.int64) * WORDS + tl.arange(0, WORDS)
    mask = word < word_count
    block = word // (BLOCK // WORD)
    scale = tl.load(scale_levels + tl.load(scales + block, mask=mask, other=0).to(tl.int32))
    scale = scale * tl.load(scale_scales + block // SCALE_BLOCK, mask=mask, other=0.0) + tl.load(offset)
    nibble = tl.arange(0, WORD)
    shift = nibble // 2 * 8 + (1 - nibble % 2) * 4  # lowest byte first, in each byte the high half first
    index = (tl.load(packed + word, mask=mask, other=0)[:, None] >> shift[None, :]) & 0xF
    number = tl.load(levels + index) * scale[:, None]
    offsets = word[:, None] * WORD + nibble[None, :]
    tl.store(out + offsets, number.to(out.dtype.element_ty), mask=mask[:, None])


@jit
def _nf4_dequantize(
    weights, out, word_counts, WORDS: tl.constexpr, WORD: tl.constexpr, BLOCK: tl.constexpr, SCALE_BLOCK: tl.constexpr
):
    program = tl.program_id(0)
    for index in tl.static_range(len(weights)):
        programs = (word_counts[index] + WORDS - 1) // WORDS
        if (program >= 0) & (program < programs):
            _nf4_dequantize_words(weights[index], out, word_counts[index], program, WORDS, WORD, BLOCK, SCALE_BLOCK)
        program -= programs
        out += word_counts[index].to(tl.int64) * WORD
