"""The kernels of a decoding step, and the whole step, against PyTorch formulas on random inputs."""

import pytest

torch = pytest.importorskip("torch")

from bench import torch_stack as real_stack  # noqa: E402 - after the skip
from bench.kernels import nf4  # noqa: E402
from bench.kernels.decode import products  # noqa: E402
from bench.kernels.decode.attention import DecodeAttention  # noqa: E402
from bench.kernels.decode.products import DecodeLora, DecodeProduct, LaunchConfig, Norm  # noqa: E402
from bench.kernels.rope import AttentionHeads, rotate_reference  # noqa: E402
from bench.workloads import decode_step, decoding  # noqa: E402
from tests.support.gpu import on_gpu, relative_error  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu, pytest.mark.usefixtures("_cuda")]
ROUNDED = 8e-3  # rounding of levels, inputs and outputs to bf16; small products reached 0.0064
COUNTS = (1, 2, 3, 8, 9, 17, 32)
# Mistral's, SmolLM2's (nine blocks of 64 per row, not a multiple of four), and small ones.
TOGETHER = [
    ((4096, 4096),),
    ((4096, 4096), (1024, 4096), (1024, 4096)),
    ((4096, 14336),),
    ((576, 576), (192, 576), (192, 576)),
    ((576, 1536),),
    ((112, 320),),
    ((16, 64), (16, 64)),
]
GATED = [((14336, 4096), (14336, 4096)), ((1536, 576), (1536, 576)), ((48, 64), (48, 64))]
HEADS = [
    AttentionHeads(query=32, key=8, width=128),
    AttentionHeads(query=9, key=3, width=64),
    AttentionHeads(query=8, key=1, width=128),
]


def quantized(rows: int, columns: int):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    weight = torch.randn(rows, columns, dtype=torch.bfloat16) * 0.02
    return bitsandbytes.nn.Params4bit(
        weight, requires_grad=False, quant_type="nf4", compress_statistics=True, blocksize=64
    ).to("cuda")


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("with_adapters", [False, True])
@pytest.mark.parametrize(("shapes", "gated"), [(s, False) for s in TOGETHER] + [(s, True) for s in GATED])
def test_a_product_matches_the_formula(shapes, gated, with_adapters, with_norm):
    _check(shapes, gated=gated, rank=16 if with_adapters else 0, with_norm=with_norm, counts=COUNTS)


@pytest.mark.parametrize("rank", [1, 12, 24, 64])
@pytest.mark.parametrize(("shapes", "gated"), [(TOGETHER[1], False), (TOGETHER[3], False), (GATED[2], True)])
def test_adapters_of_every_rank_match_the_formula(shapes, gated, rank):
    _check(shapes, gated=gated, rank=rank, with_norm=True, counts=(1, 8, 17))


@pytest.mark.parametrize(
    ("config", "covers_all"),
    [
        *((each, True) for each in (*products.DEFAULT_CONFIGS[1:], LaunchConfig(16, 1, 2))),
        (LaunchConfig(14, 1, 2, 2), False),
    ],
    ids=str,
)
def test_every_launch_config_computes_the_same(monkeypatch, config, covers_all):
    monkeypatch.setattr(products, "launch_configs", lambda *_, **__: (config,))
    for shapes in (TOGETHER[1], TOGETHER[2], TOGETHER[3]) if covers_all else (TOGETHER[2], TOGETHER[0], ((576, 1536),)):
        _check(shapes, gated=False, rank=16, with_norm=len(shapes) > 1, counts=(1, 8))
    if covers_all:
        _check(GATED[0], gated=True, rank=16, with_norm=True, counts=(8,))


def _check(shapes, *, gated, rank, with_norm, counts):
    weights = tuple(products.supported_weight(quantized(*shape)) for shape in shapes)
    columns = shapes[0][1]
    norm = Norm(weight=(1 + 0.1 * torch.randn(columns, device="cuda")).bfloat16(), eps=1e-5) if with_norm else None
    adapters = ()
    if rank:  # the last of several weights has no adapter
        adapters = tuple(
            DecodeLora(
                a=torch.randn(rank, columns, device="cuda") / columns**0.5,
                b=torch.randn(rows, rank, device="cuda") * 0.02,
                scaling=2.0,
            )
            if index == 0 or index < len(shapes) - 1
            else None
            for index, (rows, _) in enumerate(shapes)
        )
    for count in counts:
        product = DecodeProduct(weights, norm=norm, gated=gated, adapters=adapters, max_rows=count)
        x = torch.randn(count, columns, device="cuda").bfloat16()
        expected = _formula(x, weights, norm, adapters, gated=gated)
        residual = torch.randn(*expected.shape, device="cuda").bfloat16()
        torch.full(
            expected.shape, float("nan"), dtype=torch.bfloat16, device="cuda"
        )  # memory that the output may reuse
        actual = product(x)
        assert actual.shape == expected.shape
        assert relative_error(actual, expected) < ROUNDED
        assert relative_error(product(x, residual=residual), expected + residual.double()) < ROUNDED
        assert torch.equal(product(x), actual), "the same inputs give the same bits"


def _formula(x, weights, norm, adapters, *, gated):
    wide = x.double()
    if norm is not None:
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight.double()
    each = []
    for index, weight in enumerate(weights):
        y = wide @ nf4.dequantize_reference(weight).double().T
        lora = adapters[index] if adapters else None
        if lora is not None:
            y = y + lora.scaling * (wide @ lora.a.bfloat16().double().T) @ lora.b.bfloat16().double().T
        each.append(y)
    return torch.nn.functional.silu(each[0]) * each[1] if gated else torch.cat(each, -1)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("batch", [1, 3, 32])
def test_attention_of_one_token_matches_the_formula_and_updates_the_cache(heads, batch):
    length, device = 328, "cuda"
    cos, sin = torch.rand(2, length, heads.width // 2, device=device)
    attention = DecodeAttention(heads, cos, sin, batch=batch)
    for position in (0, 1, 5, length // 2 + 3, length - 1):
        keys, values = torch.randn(2, batch, heads.key, length, heads.width, device=device).bfloat16()
        # The cache after the position may contain anything.
        keys[:, :, position:], values[:, :, position:] = float("nan"), float("inf")
        joined = torch.randn(batch, heads.joined, device=device).bfloat16()
        q, k, v = heads.split(joined.clone())
        at = torch.tensor([position], device=device).expand(batch)
        q, k = (rotate_reference(part, cos[at], sin[at]) for part in (q, k))
        actual = attention(joined, at[:1].contiguous(), keys, values)
        assert relative_error(keys[:, :, position], k) < 1e-3
        assert torch.equal(values[:, :, position], v)
        grouped = q.double().view(batch, heads.key, -1, heads.width)
        scores = grouped @ keys[:, :, : position + 1].double().transpose(-1, -2) / heads.width**0.5
        expected = (scores.softmax(-1) @ values[:, :, : position + 1].double()).reshape(batch, -1)
        assert relative_error(actual, expected) < ROUNDED
        assert torch.equal(attention(joined, at[:1].contiguous(), keys, values), actual)


@pytest.mark.parametrize("batch", [1, 3, 32])
@pytest.mark.parametrize("with_adapters", [False, True])
def test_the_fused_step_matches_the_general_step(tiny_model, make_trial, with_adapters, batch):
    from bench.qlora.step import Placement, TorchSession, load_base
    from bench.workloads.inference import add_adapters

    stack = real_stack.load()
    placement = Placement(device=torch.device("cuda", 0), compute_dtype=torch.bfloat16)
    trial = make_trial(model=str(tiny_model), base_precision="nf4")
    model = load_base(stack, trial, placement)
    decoding.prepare_model(stack, model)
    if with_adapters:
        add_adapters(TorchSession(modules=stack, placement=placement), trial, model)
    prompts = torch.randint(6, 4000, (batch, 24), device="cuda")
    path = decoding.FastPath(stack, model, placement, prompts, 8, capture=False)
    assert path.not_fused_reason is None
    general = decode_step.DecodeStep(
        stack, path._decoder, path._cache, path._decode._attention._heads, path._decode._attention.angles
    )
    position = torch.tensor([24], device="cuda")
    tokens = prompts[:, -1].contiguous()
    with torch.no_grad():
        actual, expected = path._decode(tokens, position).clone(), general(tokens, position)
        assert relative_error(actual, expected) < 2e-2
        captured = decoding.FastPath(stack, model, placement, prompts, 8, capture=True)
        assert torch.equal(captured.generate().tokens, captured.generate().tokens)
