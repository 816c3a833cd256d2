"""The plain PyTorch side of every kernel against PyTorch's own functions and autograd, in float32 on fresh inputs.

The Triton side is compared with these references on a GPU: tests/gpu/test_kernels.py.
"""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from bench.kernels import attention, lora, lora_out, loss, nf4, norm, rope, swiglu
from bench.kernels.attention import Samples
from bench.kernels.lora import LoraInput, Seed
from bench.kernels.rope import AttentionHeads


def close(found, expected, limit=1e-5):
    found, expected = found.detach(), expected.detach()
    return float((found - expected).norm() / expected.norm()) < limit


def seed(number):
    return Seed(number=torch.tensor(number - 3), plus=3)


def leaf(*shape):
    return torch.randn(shape, requires_grad=True)


# NF4 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "rows", "width"),
    [
        *((torch.float32, *shape) for shape in ((64, 64), (33, 200), (256, 128))),
        *((torch.bfloat16, *shape) for shape in ((64, 64), (192, 256), (96, 448), (5, 128))),
    ],
)
def test_nf4_comes_back_as_the_library_has_it_bit_by_bit(modules, quantized, dtype, rows, width):
    weight = quantized(rows, width, dtype)
    out = torch.full((rows, width), float("nan"), dtype=dtype)
    nf4.dequantize_joined((nf4.from_bitsandbytes(weight),), out)
    assert torch.equal(out, modules.bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state))


def test_what_is_not_nf4_with_double_quantization_is_named(quantized):
    with pytest.raises(nf4.NotDoubleNf4, match="the base is not NF4 with double quantization"):
        nf4.from_bitsandbytes(torch.nn.Linear(8, 8).weight)
    weight = quantized(64, 64)
    for odd, message in (
        ({"blocksize": 128}, "NF4 in blocks of 128 and 256, not 64 and 256"),
        ({"shape": (3, 5)}, r"of shape \(3, 5\), not a matrix of a multiple of 8 numbers"),
    ):
        state = SimpleNamespace(**{**vars(weight.quant_state), **odd, "nested": True})
        with pytest.raises(nf4.NotDoubleNf4, match=message):
            nf4.from_bitsandbytes(SimpleNamespace(data=weight.data, quant_state=state))


# Norm, rotation, activation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adds", [False, True])
def test_rms_norm_is_pytorchs_and_its_backward_is_autograds(adds):
    x, weight, y = leaf(5, 24), torch.randn(24), torch.randn(5, 24) if adds else None
    total = x if y is None else x + y
    expected = torch.nn.functional.rms_norm(total, (24,), weight, 1e-5)
    normed, rstd, kept = norm.rms_norm(x.detach(), weight, 1e-5, y)
    assert close(normed, expected)
    assert close(kept, total)
    d_normed, passing = torch.randn(5, 24), torch.randn(5, 24)
    (gradient,) = torch.autograd.grad(expected, x, d_normed)
    found = norm.rms_norm_backward(d_normed.clone(), kept.detach(), rstd.detach(), weight, passing)
    assert close(found, gradient + passing)


def test_a_stream_in_bf16_keeps_what_its_sums_would_lose():
    stream = norm.ResidualStream(high=torch.full((2, 8), -1000.0).bfloat16())
    weight, y = torch.ones(8), torch.full((2, 8), 0.25)
    rounded = stream.high
    for _ in range(64):
        normed, _, stream = norm.stream_norm(stream, weight, 1e-5, y.bfloat16())
        rounded = norm.rms_norm(rounded, weight, 1e-5, y.bfloat16())[2]
    assert (rounded == -1000).all(), "a quarter is less than half a step of bf16 there"
    assert (norm.whole(stream) + 984).abs().max() < 0.05
    assert torch.equal(normed, -torch.ones(2, 8).bfloat16())
    assert norm.stream_norm(stream, weight, 1e-5)[2] is stream


def test_a_number_in_two_parts_is_off_by_a_32768th_at_most_and_what_is_not_finite_stays_so():
    bits = torch.arange(-(1 << 31), 1 << 31, 999_331).int()  # of every exponent and both signs
    wide = torch.cat((bits.view(torch.float32), torch.tensor([1 + 2.0**-8, 0.0, float("inf"), float("nan")])))
    stream = norm.split(wide, torch.bfloat16)
    whole, finite = norm.whole(stream), stream.high.isfinite()
    assert ((whole - wide).abs() <= (wide / 32768).abs() + 1e-40)[finite].all()
    assert torch.equal(whole.isnan() | stream.high.isinf(), ~finite)
    assert norm.split(wide, torch.float32).low is None


def test_rotation_turns_pairs_by_their_angle_and_back():
    heads = rope.AttentionHeads(query=4, key=2, width=6)
    angle = torch.randn(5, 3)
    joined = torch.randn(5, heads.joined)
    turned = joined.clone()
    rope.rotate_(turned, angle.cos(), angle.sin(), heads)
    for number, (found, part) in enumerate(zip(heads.split(turned), heads.split(joined), strict=True)):
        as_complex = torch.complex(part[..., :3], part[..., 3:]) * torch.polar(torch.ones(5, 1, 3), angle[:, None])
        expected = torch.cat((as_complex.real, as_complex.imag), dim=-1) if number < 2 else part
        assert close(found, expected)
    assert close(rope.unrotate(*heads.split(turned), angle.cos(), angle.sin(), heads), joined)


@pytest.mark.parametrize("keep_act", [False, True])
def test_swiglu_backward_is_autograds_and_leaves_the_activation_only_where_asked(keep_act):
    joined, d_act = leaf(5, 14), torch.randn(5, 7)
    gate, up = joined.chunk(2, dim=-1)
    act = torch.nn.functional.silu(gate) * up
    (expected,) = torch.autograd.grad(act, joined, d_act)
    in_place, kept = joined.detach().clone(), d_act.clone()
    assert close(swiglu.swiglu(in_place), act)
    swiglu.swiglu_backward_(in_place, kept, keep_act=keep_act)
    assert close(in_place, expected)
    assert close(kept, act.detach() if keep_act else d_act)


# LoRA -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rank", "targets"), [(1, 3), (4, 1), (5, 2)])
def test_gradients_of_the_small_products_are_autograds_under_the_same_masks(rank, targets, p):
    side = LoraInput(rank=rank, scaling=2.0, p=p, seed=seed(77))
    x, a = leaf(9, 12), leaf(targets * rank, 12)
    columns = tuple(slice(10 * place, 10 * place + 7) for place in range(targets))
    u = lora.down(x, a, side)
    d_u = torch.randn_like(u)
    d_x, d_a = torch.autograd.grad(u, (x, a), d_u)
    found = torch.ones(9, 12)
    lora.add_input_gradient_(found, d_u, a.detach(), side)
    assert close(found, d_x + 1)
    room = lora.sums(d_u, a)
    lora.weight_gradient(d_u, x.detach(), side, room)
    assert close(room.sum(0), d_a)
    both, room = torch.ones(9, 12), torch.zeros_like(room)
    lora.backward_(both, d_u, a.detach(), x.detach(), side, room)
    assert close(both, found)
    assert close(room.sum(0), d_a)
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
    assert close(lora_out.out(u.detach(), b.detach(), columns, side), y.detach())
    of_u, of_b = lora_out.out_gradients(d_y, b.detach(), u.detach(), columns, side)
    assert close(of_u, d_u)
    assert close(of_b, d_b)


def test_an_input_that_is_not_kept_is_made_again_as_the_norm_made_it():
    total, weight = torch.randn(9, 12), torch.randn(12)
    normed, rstd, _ = norm.rms_norm(total, weight, 1e-5)
    assert torch.equal(lora.Normed(total=total, rstd=rstd, weight=weight).made(), normed)


def test_masks_lose_as_many_numbers_as_asked_and_depend_on_nothing_but_place_seed_and_adapter():
    tokens, width, p = 256, 512, 0.05
    side, other = (LoraInput(rank=1, scaling=1.0, p=p, seed=seed(number)) for number in (5, 6))
    masks = [lora.kept_reference(tokens, width, target, side, "cpu") for target in range(3)]
    masks.append(lora.kept_reference(tokens, width, 0, other, "cpu"))
    # Neighbours in a row and in a column, and those of the next seed: a seed must not move a mask by a place.
    masks += [mask.roll(1, axis) for mask in (masks[0], masks[3]) for axis in (0, 1)]
    assert torch.equal(masks[0], lora.kept_reference(tokens, width, 0, side, "cpu"))
    table = torch.stack([mask.flatten().double() for mask in masks])
    count = tokens * width
    # Five standard deviations of a mean, and of a correlation between masks that know nothing of each other.
    assert (1 - table.mean(1) - p).abs().max() < 5 * (p * (1 - p) / count) ** 0.5
    apart = torch.corrcoef(table).fill_diagonal_(0.0)
    assert apart.abs().max() < 5 / count**0.5


def test_dropout_keeps_the_mean():
    side = LoraInput(rank=1, scaling=1.0, p=0.3, seed=seed(9))
    assert float(lora.dropped_reference(torch.ones(400, 500), 0, side).mean()) == pytest.approx(1.0, abs=0.01)


# Loss and attention ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 7, loss.CHUNK_TOKENS + 3])
def test_the_head_in_chunks_has_pytorchs_loss_and_gradient(tokens):
    x, head = leaf(tokens, 8), torch.randn(40, 8)
    targets = torch.randint(0, 40, (tokens,))
    targets[::3] = loss.IGNORED if tokens > 1 else targets[0]
    expected = torch.nn.functional.cross_entropy(x @ head.T, targets)
    (gradient,) = torch.autograd.grad(expected, x)
    found, d_x = loss.head_loss(x.detach(), head, targets)
    assert close(found, expected)
    assert close(d_x, gradient)


def test_a_micro_batch_in_which_nothing_is_predicted_has_no_loss_and_no_gradient():
    found, d_x = loss.head_loss(torch.randn(3, 8), torch.randn(40, 8), torch.full((3,), loss.IGNORED))
    assert float(found) == 0.0
    assert torch.equal(d_x, torch.zeros(3, 8))


@pytest.mark.parametrize("window", [None, 4, 100])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3)])
def test_attention_is_each_samples_own(heads, window):
    lengths = [1, 9, 5]
    edges = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    samples = Samples(edges=edges, longest=max(lengths), window=window)
    q, k, v = leaf(15, heads[0], 8), leaf(15, heads[1], 8), leaf(15, heads[1], 8)
    joined = torch.cat([part.detach().flatten(1) for part in (q, k, v)], -1)
    shape = AttentionHeads(query=heads[0], key=heads[1], width=8)
    expected = []
    for first, last in pairwise(edges):
        one = [part[first:last].transpose(0, 1)[None] for part in (q, k, v)]
        distance = torch.arange(last - first)[:, None] - torch.arange(last - first)
        mask = (distance >= 0) & (distance < (window or 99))
        attended = torch.nn.functional.scaled_dot_product_attention(*one, attn_mask=mask, enable_gqa=True)
        expected.append(attended[0].transpose(0, 1))
    out = torch.cat(expected)
    found, kept = attention.attend(joined, shape, samples)
    assert close(found, out)
    d_out = torch.randn_like(out)
    straight = torch.ones(15, 4), torch.zeros(15, 4)  # no angle: the gradient is that of q and k as they came
    d_joined = attention.attend_backward(d_out, joined, shape, found, kept, samples, *straight)
    for gradient, reference in zip(shape.split(d_joined), torch.autograd.grad(out, (q, k, v), d_out), strict=True):
        assert close(gradient, reference)
