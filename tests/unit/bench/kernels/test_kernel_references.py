"""The PyTorch reference of every kernel against PyTorch's functions and autograd, in float32 on random inputs.

tests/gpu/test_kernels.py compares the Triton kernels with them.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from bench.kernels import attention, lora, lora_out, loss, nf4, norm, rope, swiglu
from bench.kernels.attention import Samples
from bench.kernels.lora import LoraInput, MaskSeed
from bench.kernels.rope import AttentionHeads


def close(actual, expected, limit=1e-5):
    actual, expected = actual.detach(), expected.detach()
    return float((actual - expected).norm() / expected.norm()) < limit


def seed(number):
    return MaskSeed(base=torch.tensor(number - 3), offset=3)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


# NF4 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rows", "width"),
    [
        (torch.float32, 33, 200),
        (torch.bfloat16, 96, 448),
        (torch.bfloat16, 5, 128),
    ],
)
def test_nf4_dequantization_is_bit_identical_to_the_library(modules, quantized, dtype, rows, width):
    weight = quantized(rows, width, dtype)
    out = torch.full((rows, width), float("nan"), dtype=dtype)
    nf4.dequantize_joined((nf4.from_bitsandbytes(weight),), out)
    assert torch.equal(out, modules.bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state))


def test_other_formats_than_nf4_with_double_quantization_are_named(quantized):
    with pytest.raises(nf4.UnsupportedQuantization, match="NF4 with double quantization"):
        nf4.from_bitsandbytes(torch.nn.Linear(8, 8).weight)
    weight = quantized(64, 64)
    for odd, message in (
        ({"blocksize": 128}, "128 and 256, not 64 and 256"),
        ({"shape": (3, 5)}, r"shape \(3, 5\)"),
    ):
        state = SimpleNamespace(**{**vars(weight.quant_state), **odd, "nested": True})
        with pytest.raises(nf4.UnsupportedQuantization, match=message):
            nf4.from_bitsandbytes(SimpleNamespace(data=weight.data, quant_state=state))


# Norm, rotation, activation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds", [False, True])
def test_rms_norm_is_pytorchs_and_its_backward_is_autograds(adds):
    x, weight, y = leaf(5, 24), torch.randn(24), torch.randn(5, 24) if adds else None
    total = x if y is None else x + y
    expected = torch.nn.functional.rms_norm(total, (24,), weight, 1e-5)
    normed, rstd, kept, _ = norm.stream_norm(norm.ResidualStream(high=x.detach()), weight, 1e-5, y)
    assert close(normed, expected)
    assert close(kept.high, total)
    d_normed, passing = torch.randn(5, 24), torch.randn(5, 24)
    (gradient,) = torch.autograd.grad(expected, x, d_normed)
    actual, _ = norm.rms_norm_backward(d_normed.clone(), kept.high, rstd, weight, passing)
    assert close(actual, gradient + passing)


def test_a_bf16_stream_keeps_small_additions():
    stream = norm.ResidualStream(high=torch.full((2, 8), -1000.0).bfloat16())
    weight, y = torch.ones(8), torch.full((2, 8), 0.25)
    rounded = stream.high
    for _ in range(64):
        normed, _, stream, _ = norm.stream_norm(stream, weight, 1e-5, y.bfloat16())
        rounded = rounded + y.bfloat16()
    assert (rounded == -1000).all(), "a quarter is less than half a step of bf16 there"
    assert (norm.join_stream(stream) + 984).abs().max() < 0.05
    assert torch.equal(normed, -torch.ones(2, 8).bfloat16())
    assert norm.stream_norm(stream, weight, 1e-5)[2] is stream


def test_a_split_number_is_accurate_to_a_32768th_and_non_finite_ones_stay_so():
    bits = torch.arange(-(1 << 31), 1 << 31, 999_331).int()  # every exponent and both signs
    wide = torch.cat((bits.view(torch.float32), torch.tensor([1 + 2.0**-8, 0.0, float("inf"), float("nan")])))
    stream = norm.split_stream(wide, torch.bfloat16)
    whole, finite = norm.join_stream(stream), stream.high.isfinite()
    assert ((whole - wide).abs() <= (wide / 32768).abs() + 1e-40)[finite].all()
    assert torch.equal(whole.isnan() | stream.high.isinf(), ~finite)
    assert norm.split_stream(wide, torch.float32).low is None


def test_rotation_and_its_inverse():
    heads = rope.AttentionHeads(query=4, key=2, width=6)
    angle = torch.randn(5, 3)
    joined = torch.randn(5, heads.joined)
    turned = joined.clone()
    rope.rotate_(turned, angle.cos(), angle.sin(), heads)
    for number, (actual, part) in enumerate(zip(heads.split(turned), heads.split(joined), strict=True)):
        as_complex = torch.complex(part[..., :3], part[..., 3:]) * torch.polar(torch.ones(5, 1, 3), angle[:, None])
        expected = torch.cat((as_complex.real, as_complex.imag), dim=-1) if number < 2 else part
        assert close(actual, expected)
    assert close(rope.unrotate(*heads.split(turned), angle.cos(), angle.sin(), heads), joined)


def test_swiglu_backward_matches_autograd():
    joined, d_act = leaf(5, 14), torch.randn(5, 7)
    gate, up = joined.chunk(2, dim=-1)
    act = torch.nn.functional.silu(gate) * up
    (expected,) = torch.autograd.grad(act, joined, d_act)
    in_place = joined.detach().clone()
    assert close(swiglu.swiglu(in_place), act)
    swiglu.swiglu_backward_(in_place, d_act)
    assert close(in_place, expected)


# LoRA -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rank", "targets"), [(1, 3), (4, 1), (5, 2)])
def test_lora_gradients_match_autograd_under_the_same_masks(rank, targets, p):
    adapters = LoraInput(rank=rank, scaling=2.0, p=p, seed=seed(77))
    x, a = leaf(9, 12), leaf(targets * rank, 12)
    columns = tuple(slice(10 * index, 10 * index + 7) for index in range(targets))
    u = lora.down(x, a, adapters)
    d_u = torch.randn_like(u)
    d_x, d_a = torch.autograd.grad(u, (x, a), d_u)
    actual = torch.ones(9, 12)
    assert close(lora.backward_(actual, d_u, a.detach(), x.detach(), adapters), d_a)
    assert close(actual, d_x + 1)
    assert close(lora.backward_(None, d_u, a.detach(), x.detach(), adapters), d_a)
    assert lora.backward_(actual, d_u, a.detach(), None, adapters) is None
    assert close(actual, 2 * d_x + 1)
    u, b = leaf(9, targets * rank), leaf(10 * targets, rank)
    y = torch.cat(
        [
            torch.nn.functional.pad(part @ b[each].T, (0, 3))
            for part, each in zip(u.split(rank, -1), columns, strict=True)
        ],
        -1,
    )
    d_y = torch.randn_like(y)
    d_u, d_b = torch.autograd.grad(y, (u, b), d_y)
    assert close(lora_out.out(u.detach(), b.detach(), columns, adapters), y.detach())
    actual_d_u, actual_d_b = lora_out.out_gradients(d_y, b.detach(), u.detach(), columns, adapters)
    assert close(actual_d_u, d_u)
    assert close(actual_d_b, d_b)


def test_a_recomputed_input_equals_the_norms_and_swiglus_output():
    total, weight = torch.randn(9, 12), torch.randn(12)
    normed, rstd, *_ = norm.stream_norm(norm.ResidualStream(high=total), weight, 1e-5)
    assert torch.equal(lora.NormedInput(total=total, rstd=rstd, weight=weight).recompute(), normed)
    assert torch.equal(lora.SwigluInput(joined=total).recompute(), swiglu.swiglu(total))


def test_masks_have_the_dropout_rate_and_are_uncorrelated():
    tokens, width, p = 256, 512, 0.05
    adapters, other = (LoraInput(rank=1, scaling=1.0, p=p, seed=seed(number)) for number in (5, 6))
    masks = [lora.keep_mask_reference(tokens, width, target, adapters, "cpu") for target in range(3)]
    masks.append(lora.keep_mask_reference(tokens, width, 0, other, "cpu"))
    # Shifted masks of both seeds: a seed must not shift a mask by one row or column.
    masks += [mask.roll(1, axis) for mask in (masks[0], masks[3]) for axis in (0, 1)]
    assert torch.equal(masks[0], lora.keep_mask_reference(tokens, width, 0, adapters, "cpu"))
    table = torch.stack([mask.flatten().double() for mask in masks])
    count = tokens * width
    # Five standard deviations of a mean, and of a correlation between independent masks.
    assert (1 - table.mean(1) - p).abs().max() < 5 * (p * (1 - p) / count) ** 0.5
    correlations = torch.corrcoef(table).fill_diagonal_(0.0)
    assert correlations.abs().max() < 5 / count**0.5


# Loss and attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 7, loss.CHUNK_TOKENS + 3])
def test_the_head_in_chunks_has_pytorchs_loss_and_gradient(tokens):
    x, head = leaf(tokens, 8), torch.randn(40, 8)
    targets = torch.randint(0, 40, (tokens,))
    targets[::3] = loss.IGNORED if tokens > 1 else targets[0]
    expected = torch.nn.functional.cross_entropy(x @ head.T, targets)
    (gradient,) = torch.autograd.grad(expected, x)
    actual, d_x = loss.head_loss(x.detach(), head, targets)
    assert close(actual, expected)
    assert close(d_x, gradient)


def test_a_micro_batch_without_targets_has_no_loss_and_no_gradient():
    actual, d_x = loss.head_loss(torch.randn(3, 8), torch.randn(40, 8), torch.full((3,), loss.IGNORED))
    assert float(actual) == 0.0
    assert torch.equal(d_x, torch.zeros(3, 8))


@pytest.mark.parametrize("window", [None, 4, 100])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
def test_attention_stays_within_each_sample(heads, window):
    lengths = [1, 9, 5]
    edges = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    samples = Samples(edges=edges, longest=max(lengths), window=window)
    q, k, v = leaf(15, heads[0], 8), leaf(15, heads[1], 8), leaf(15, heads[1], 8)
    joined = torch.cat([part.detach().flatten(1) for part in (q, k, v)], -1)
    shape = AttentionHeads(query=heads[0], key=heads[1], width=8)
    expected = []
    for first, last in pairwise(edges):
        sample_heads = [part[first:last].transpose(0, 1)[None] for part in (q, k, v)]
        distance = torch.arange(last - first)[:, None] - torch.arange(last - first)
        mask = (distance >= 0) & (distance < (window or 99))
        attended = torch.nn.functional.scaled_dot_product_attention(*sample_heads, attn_mask=mask, enable_gqa=True)
        expected.append(attended[0].transpose(0, 1))
    out = torch.cat(expected)
    actual, kept = attention.attend(joined, shape, samples)
    assert close(actual, out)
    d_out = torch.randn_like(out)
    straight = torch.ones(15, 4), torch.zeros(15, 4)  # zero angles: the gradients of q and k are not rotated
    d_joined = attention.attend_backward(d_out, joined, shape, actual, kept, samples, *straight)
    for gradient, reference in zip(shape.split(d_joined), torch.autograd.grad(out, (q, k, v), d_out), strict=True):
        assert close(gradient, reference)
