"""Every Triton kernel against its PyTorch reference, on random inputs, at shapes that are not multiples of a tile.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_kernels.py

Without a GPU, Triton's interpreter runs the same kernels in six minutes: put TRITON_INTERPRET=1 before the command. It
needs torch, pytest, pytest-timeout and Triton 3.9 or later. Install them outside .venv, whose tests expect no Triton.
"""

import os
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bench.kernels import attention, groups, lora, lora_out, loss, nf4, norm, pinned_gather, rope, swiglu  # noqa: E402 - after the skips
from bench.kernels.attention import Samples, attend, attend_backward, attend_reference  # noqa: E402
from bench.kernels.lora import LoraInput, MaskSeed  # noqa: E402
from tests.support.gpu import on_gpu, relative_error  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), *([] if INTERPRETED else [on_gpu])]
TYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]  # the interpreter's numpy has no bf16
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 4e-3}  # relative; bf16 rounds to 8 bits at the end, once


def random(*shape: int, dtype: Any) -> Any:
    return torch.randn(shape, device=DEVICE).to(dtype)


def seed(number: int) -> MaskSeed:
    return MaskSeed(base=torch.tensor(number - 3, device=DEVICE), offset=3)


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    """Fill what the kernels' functions allocate with NaN, so that unwritten numbers show."""
    empty = torch.empty

    def poisoned(*arguments: Any, **options: Any) -> Any:
        made = empty(*arguments, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", poisoned)


def quantized(rows: int, width: int) -> nf4.Nf4:
    """Make an NF4 weight with random codes and scales."""
    numbers = rows * width
    blocks = -(-numbers // nf4.BLOCK)
    return nf4.Nf4(
        shape=(rows, width),
        dtype=torch.bfloat16,
        packed=torch.randint(0, 256, ((numbers + 1) // 2,), dtype=torch.uint8, device=DEVICE),
        levels=torch.linspace(-1, 1, 16, device=DEVICE) ** 3,
        scales=torch.randint(0, 256, (blocks,), dtype=torch.uint8, device=DEVICE),
        scale_levels=torch.randn(256, device=DEVICE),
        scale_scales=torch.rand(-(-blocks // nf4.SCALE_BLOCK), device=DEVICE),
        offset=torch.randn(1, device=DEVICE),
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("rows", "width"), [((64,), 64), ((48,), 200), ((7,), 64 * 300), ((130,), 516), ((70, 3), 320), ((64, 200, 8), 320)]
)
def test_concatenated_nf4_weights_are_bit_identical(rows, width, dtype):
    weights = tuple(quantized(each, width) for each in rows)
    out = torch.full((sum(rows), width), float("nan"), dtype=dtype, device=DEVICE)
    nf4.dequantize_joined(weights, out)
    assert torch.equal(out, torch.cat([nf4.dequantize_reference(weight) for weight in weights]).to(dtype))


@pytest.mark.skipif(INTERPRETED, reason="bitsandbytes' kernel needs a GPU")
@pytest.mark.parametrize("shape", [(4096, 4096), (1024, 4096), (96, 320)])
def test_nf4_dequantization_is_bit_identical_to_bitsandbytes(shape):
    import bitsandbytes

    original = random(*shape, dtype=torch.bfloat16)
    packed, state = bitsandbytes.functional.quantize_4bit(
        original, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    weight = nf4.from_bitsandbytes(SimpleNamespace(data=packed, quant_state=state))
    out = torch.full(shape, float("nan"), dtype=torch.bfloat16, device=DEVICE)
    nf4.dequantize_joined((weight,), out)
    assert torch.equal(out, bitsandbytes.functional.dequantize_4bit(packed, state))
    assert relative_error(out, original) < 0.1


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "width"), [(3, 64), (17, 200), (5, 4096)])
@pytest.mark.parametrize("adds", [False, True])
def test_the_backward_of_a_norm(tokens, width, adds, dtype):
    x, weight = random(tokens, width, dtype=dtype), random(width, dtype=dtype)
    passing = random(tokens, width, dtype=dtype) if adds else None
    _, rstd, _ = norm.stream_norm_reference(norm.ResidualStream(high=x), weight, 1e-5)
    d_normed = random(tokens, width, dtype=dtype)
    reference = norm.rms_norm_backward_reference(d_normed, x, rstd, weight, passing)
    gradient, _ = norm.rms_norm_backward(d_normed, x, rstd, weight, passing)
    assert relative_error(gradient, reference) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "width"), [(3, 64), (17, 200), (5, 4096)])
def test_the_stream_keeps_the_same_bits_as_the_reference_over_many_sums(tokens, width, dtype):
    weight = random(width, dtype=dtype)
    actual = expected = norm.ResidualStream(high=1000 * random(tokens, width, dtype=dtype))
    for _ in range(5):
        y = random(tokens, width, dtype=dtype)
        normed, rstd, actual, _ = norm.stream_norm(actual, weight, 1e-5, y)
        *both, expected = norm.stream_norm_reference(expected, weight, 1e-5, y)
        assert max(map(relative_error, (normed, rstd), both)) < LIMIT[dtype]
        assert torch.equal(norm.join_stream(actual), norm.join_stream(expected))
    again, _, same, _ = norm.stream_norm(actual, weight, 1e-5)
    assert same is actual
    assert relative_error(again, both[0]) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "heads", [rope.AttentionHeads(query=4, key=2, width=16), rope.AttentionHeads(query=6, key=3, width=24)]
)
def test_rope_in_place_and_back(heads, dtype):
    tokens = 11
    joined = random(tokens, heads.joined, dtype=dtype)
    cos, sin = (random(tokens, heads.width // 2, dtype=torch.float32) for _ in range(2))
    turned = joined.clone()
    rope.rotate_(turned, cos, sin, heads)
    for number, (actual, before) in enumerate(zip(heads.split(turned), heads.split(joined), strict=True)):
        expected = rope.rotate_reference(before, cos, sin) if number < 2 else before
        assert relative_error(actual, expected) < LIMIT[dtype]
    parts = [part.contiguous() for part in heads.split(joined)]
    back = rope.unrotate(*parts, cos, sin, heads)
    for number, (actual, part) in enumerate(zip(heads.split(back), parts, strict=True)):
        expected = rope.rotate_reference(part, cos, -sin) if number < 2 else part
        assert relative_error(actual, expected) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "inner"), [(3, 64), (9, 1500)])
def test_swiglu_and_its_backward_in_place(tokens, inner, dtype):
    joined, d_act = random(tokens, 2 * inner, dtype=dtype), random(tokens, inner, dtype=dtype)
    act, gradient = swiglu.swiglu_reference(joined), swiglu.swiglu_backward_reference(joined, d_act)
    assert relative_error(swiglu.swiglu(joined), act) < LIMIT[dtype]
    swiglu.swiglu_backward_(joined, d_act)
    assert relative_error(joined, gradient) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("p", [0.0, 0.05, 0.6])
@pytest.mark.parametrize(
    ("rank", "targets", "tokens", "width"),
    [
        *((1, 3, 40, 72), (16, 2, 130, 3200), (100, 2, 70, 130), (256, 1, 33, 64), (16, 3, 530, 1100)),
        *((16, 1, 33, 136), (20, 2, 70, 130), (64, 1, 33, 64), (40, 2, 33, 64)),
    ],
)
def test_lora_products_and_their_gradients_at_every_rank(rank, targets, tokens, width, p, dtype):
    x, a = random(tokens, width, dtype=dtype), random(targets * rank, width, dtype=dtype)
    d_u, d_x = random(tokens, targets * rank, dtype=dtype), random(tokens, width, dtype=dtype)
    adapters = LoraInput(rank=rank, scaling=2.0, p=p, seed=seed(2_000_000_011))
    assert relative_error(lora.down(x, a, adapters), lora.down_reference(x, a, adapters)) < LIMIT[dtype]
    gain = random(width, dtype=dtype)
    normed, rstd, _ = norm.stream_norm_reference(norm.ResidualStream(high=x), gain, 1e-5)
    for source, value in ((x, x), (lora.NormedInput(total=x, rstd=rstd, weight=gain), normed)):
        expected = lora.weight_gradient_reference(d_u, value, adapters)
        sum_ = (d_x.float() + lora.input_gradient_reference(d_u, a, adapters)).to(dtype)
        assert relative_error(lora.backward_(d_x, d_u, a, source, adapters), expected) < LIMIT[dtype]
        assert relative_error(d_x, sum_) < LIMIT[dtype]
        assert relative_error(lora.backward_(None, d_u, a, source, adapters), expected) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rank", [1, 16, 100, 256])
@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ((slice(0, 300),), 300),
        ((slice(0, 130), slice(130, 200), slice(200, 333)), 333),
        ((slice(0, 64), slice(150, 200)), 210),
    ],
)
def test_lora_products_on_separate_columns(columns, width, rank, dtype):
    tokens, adapters = 77 if rank == 100 else 600, LoraInput(rank=rank, scaling=2.0, p=0.0)
    u = random(tokens, len(columns) * rank, dtype=dtype)
    b, d_y = random(width, rank, dtype=dtype), random(tokens, width, dtype=dtype)
    assert (
        relative_error(lora_out.out(u, b, columns, adapters), lora_out.out_reference(u, b, columns, adapters))
        < LIMIT[dtype]
    )
    d_u, actual = lora_out.out_gradients(d_y, b, u, columns, adapters)
    assert relative_error(d_u, lora_out.out_gradient_reference(d_y, b, columns)) < LIMIT[dtype]
    expected = lora_out.out_weight_gradient_reference(d_y, u, columns, adapters)
    for each in columns:
        assert relative_error(actual[each], expected[each]) < LIMIT[dtype]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "vocabulary"), [(5, 40), (3, 5000), (2, 32_768)])
def test_cross_entropy_turns_logits_into_their_gradient(tokens, vocabulary, dtype):
    logits = 4 * random(tokens, vocabulary, dtype=dtype)
    targets = torch.randint(0, vocabulary, (tokens,), device=DEVICE)
    targets[0] = loss.IGNORED
    share = torch.tensor(1 / (tokens - 1), device=DEVICE)
    gradient, losses = loss.cross_entropy_reference(logits, targets, share)
    actual = torch.full((tokens,), float("nan"), device=DEVICE)
    loss.cross_entropy_(logits, targets, share, actual)
    assert relative_error(logits, gradient) < LIMIT[dtype]
    assert relative_error(actual, losses) < 1e-5


LENGTHS = [[64, 64], [3, 3, 3], [5, 130, 1, 77], [300], [1] * 70, [31, 33, 32, 65, 63, 1]]


@pytest.mark.skipif(INTERPRETED, reason="FlashAttention needs a GPU")
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (6, 3)])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_and_its_gradients_never_cross_samples(lengths, rows, window, width, heads, short, monkeypatch):
    monkeypatch.setattr(attention, "MAX_SHORT_TOKENS", 512 if short else 0)
    edges = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)
    equal = len(lengths) if rows and len(set(lengths)) == 1 else 0
    samples = Samples(edges=edges, longest=max(lengths), window=window, rows=equal)
    shape, limits = rope.AttentionHeads(query=heads[0], key=heads[1], width=width), (1e-2, 2e-2)
    check_attention(sum(lengths), shape, samples, torch.bfloat16, limits)


@pytest.mark.parametrize("heads", [(8, 2), (4, 4), (6, 2), (16, 1)])
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_attention_of_short_samples(lengths, width, heads):
    edges = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(torch.int32)
    shape = rope.AttentionHeads(query=heads[0], key=heads[1], width=width)
    dtype, limits = (torch.float32, (2e-6, 2e-6)) if INTERPRETED else (torch.bfloat16, (1e-2, 2e-2))
    check_attention(sum(lengths), shape, Samples(edges=edges, longest=512), dtype, limits)


def test_a_sample_of_nan_does_not_affect_others():
    shape, edges = (
        rope.AttentionHeads(query=4, key=1, width=16),
        torch.tensor([0, 40, 45, 100], device=DEVICE).to(torch.int32),
    )
    joined = random(100, shape.joined, dtype=torch.float32 if INTERPRETED else torch.bfloat16)
    joined[40:45] = float("nan")
    samples, angles = Samples(edges=edges, longest=55), random(2, 100, 8, dtype=torch.float32)
    out, kept = attend(joined, shape, samples)
    gradient = attend_backward(torch.ones_like(out), joined, shape, out, kept, samples, *angles)
    for each in (out.flatten(1), gradient):
        spoilt = each.isnan().any(1)
        assert spoilt[40:45].all()
        assert not spoilt[:40].any()
        assert not spoilt[45:].any()


def check_attention(
    tokens: int, shape: rope.AttentionHeads, samples: Samples, dtype: Any, limits: tuple[float, float]
) -> None:
    joined = random(tokens, shape.joined, dtype=dtype)
    cos, sin = random(2, tokens, shape.width // 2, dtype=torch.float32)
    out, kept = attend(joined, shape, samples)
    leaves = [part.float().detach().requires_grad_() for part in shape.split(joined)]
    expected = attend_reference(*leaves, samples)
    assert relative_error(out, expected) < limits[0]
    d_out = torch.randn_like(out)
    actual = attend_backward(d_out, joined, shape, out, kept, samples, cos, sin)
    dq, dk, dv = torch.autograd.grad(expected, leaves, d_out.float())
    references = rope.rotate_reference(dq, cos, -sin), rope.rotate_reference(dk, cos, -sin), dv
    # Samples of one token have zero gradients of queries and keys: the result there is float32 rounding.
    smallest = (0.2 if INTERPRETED else 1e-3) * actual.double().norm()
    for gradient, reference in zip(shape.split(actual), references, strict=True):
        wrong = (gradient.double() - reference.double()).norm()
        assert wrong < limits[1] * torch.maximum(reference.double().norm(), smallest)
    assert torch.equal(actual, attend_backward(d_out, joined, shape, out, kept, samples, cos, sin))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "width"), [(1, 8), (300, 576), (70, 4096)])
def test_rows_of_a_matrix_in_the_hosts_memory(tokens, width, dtype):
    matrix = torch.randn(1000, width).to(dtype)
    matrix = matrix if INTERPRETED else matrix.pin_memory()
    indices = torch.randint(0, 1000, (tokens,), device=DEVICE)
    indices[0] = 999
    actual = pinned_gather.gather_rows(matrix, indices)
    assert actual.device == indices.device
    assert torch.equal(actual, pinned_gather.gather_rows_reference(matrix, indices))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("choices", "width"), [(1, 64), (3, 200), (8, 2048)])
def test_sum_of_each_tokens_rows(dtype, choices, width):
    ids = torch.randint(0, 16, (33, choices), device=DEVICE)
    sorted_groups, rows = groups.Groups.sort(ids, 16), random(33 * choices, width, dtype=dtype)
    for scores in (None, torch.rand(33, choices, device=DEVICE).to(dtype)):
        expected = groups.combine_reference(rows.float(), sorted_groups, scores)
        assert relative_error(groups.combine(rows, sorted_groups, scores), expected) < LIMIT[dtype]
