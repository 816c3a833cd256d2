"""Every Triton kernel compiles for an A10 (sm_86), an L4 (sm_89) and an H100 (sm_90) within its memory and registers.

The kernels' own functions are called with the shapes of the 7B and the 135M model, so the tiles are those that each
target uses. No GPU is needed, only triton: `pip install --no-deps --target DIR triton==3.6.0`, then PYTHONPATH=DIR.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from bench.kernels import adamw8, lora, lora_out, loss, nf4, norm, pinned_gather, rope, short_attention  # noqa: E402
from bench.kernels import swiglu as swiglu_16  # noqa: E402
from bench.kernels.int8 import matmul, row_quant, swiglu, weight_quant  # noqa: E402
from bench.kernels.norm import ResidualStream  # noqa: E402
from bench.kernels.rope import AttentionHeads  # noqa: E402
from tests.support import compiled_kernel  # noqa: E402
from tests.support.compiled_kernel import CompiledLaunch  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
TOKENS = 4096
MODELS = {
    "7B": {"hidden": 4096, "inner": 14336, "heads": AttentionHeads(query=32, key=8, width=128), "vocabulary": 32768},
    "135M": {"hidden": 576, "inner": 1536, "heads": AttentionHeads(query=9, key=3, width=64), "vocabulary": 49152},
}
BF16 = torch.bfloat16
# Bytes of registers that a thread of a kernel may spill, measured; 0 for the others.
MAX_SPILLED = {
    "_int8_matmul": 900, "_attention_dkv": 32, "_int8_swiglu_forward": 8, "_int8_swiglu_backward": 24,
    "_lora_down": 12,
}  # fmt: skip


def meta(*shape: int, dtype: Any = BF16) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def floats(*shape: int) -> Any:
    return meta(*shape, dtype=torch.float32)


def int8(*shape: int) -> Any:
    return meta(*shape, dtype=torch.int8)


def weight(height: int, width: int) -> nf4.Nf4:
    blocks = height * width // nf4.BLOCK
    return nf4.Nf4(
        shape=(height, width),
        dtype=BF16,
        packed=meta(height * width // 2, dtype=torch.uint8),
        levels=floats(16),
        scales=meta(blocks, dtype=torch.uint8),
        scale_levels=floats(256),
        scale_scales=floats(-(-blocks // nf4.SCALE_BLOCK)),
        offset=floats(1),
    )


def columns_of(width: int) -> row_quant.OutlierColumns:
    count = min(32, width // 32)
    return row_quant.OutlierColumns(indices=meta(count, dtype=torch.int64), is_outlier=meta(width, dtype=torch.uint8))


def lora_input(rank: int, p: float) -> lora.LoraInput:
    seed = lora.MaskSeed(base=meta(dtype=torch.int64), offset=3) if p else None
    return lora.LoraInput(rank=rank, scaling=2.0, p=p, seed=seed)


def launch_adamw8(**_: Any) -> None:
    moments = adamw8.Moments(
        codes_m=meta(16, 64, dtype=torch.uint8), codes_v=meta(16, 64, dtype=torch.uint8), max_m=floats(4),
        max_v=floats(4),
    )  # fmt: skip
    table = adamw8.TensorTable([(floats(16, 64), floats(16, 64), moments)])
    book = adamw8.Codebook.from_values(floats(256), floats(256))
    adamw8.update_(table, book, adamw8.Update(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, step=2))


def launch_lora(hidden: int, inner: int, **_: Any) -> None:
    for rank, targets, p, width in (
        (16, 3, 0.05, hidden),
        (16, 1, 0.0, inner),
        (64, 1, 0.05, hidden),
        (256, 2, 0.05, hidden),
    ):
        adapters, x, d_u = lora_input(rank, p), meta(TOKENS, width), meta(TOKENS, targets * rank)
        a = meta(targets * rank, width)
        lora.down(x, a, adapters)
        normed = lora.NormedInput(total=x, rstd=floats(TOKENS), weight=meta(width))
        for each in (x, normed):
            lora.backward_(meta(TOKENS, width), d_u, a, each, adapters)
        lora.backward_(None, d_u, a, normed, adapters)
        columns = tuple(slice(each * width // targets, (each + 1) * width // targets) for each in range(targets))
        b = meta(width, rank)
        lora_out.out(d_u, b, columns, adapters)
        lora_out.out_gradients(x, b, d_u, columns, adapters)
    for source in (meta(TOKENS, 2 * inner), row_quant.empty_blocks(TOKENS, 2 * inner, BF16, "meta")):
        joined = lora.SwigluInput(joined=source)
        lora.backward_(meta(TOKENS, inner), meta(TOKENS, 16), meta(16, inner), joined, lora_input(16, 0.05))


def launch_loss(vocabulary: int, **_: Any) -> None:
    targets = meta(512, dtype=torch.int64)
    loss.cross_entropy_(meta(512, vocabulary), targets, floats(), floats(512))


def launch_weights(hidden: int, inner: int, heads: AttentionHeads, **_: Any) -> None:
    query, key = heads.query * heads.width, heads.key * heads.width
    for parts in (
        (weight(query, hidden), weight(key, hidden), weight(key, hidden)),
        (weight(inner, hidden), weight(inner, hidden)),
        (weight(hidden, inner),),
    ):
        scales = weight_quant.row_scales(parts)
        weight_quant.quantize_rotated(parts, scales)
        weight_quant.quantize_transposed(parts, scales)
        nf4.dequantize_joined(parts, meta(len(scales), parts[0].shape[1]))


def launch_norm(hidden: int, **_: Any) -> None:
    x, y, gain, rstd = meta(TOKENS, hidden), meta(TOKENS, hidden), meta(hidden), floats(TOKENS)
    stream = ResidualStream(high=x, low=int8(TOKENS, hidden))
    norm.stream_norm(ResidualStream(high=x), gain, 1e-5)
    for each in (None, y):
        norm.stream_norm(stream, gain, 1e-5, each)
        for keep in (False, True):
            norm.stream_norm(stream, gain, 1e-5, each, columns_of(hidden), keep_normed=keep)
        norm.rms_norm_backward(meta(TOKENS, hidden), x, rstd, gain, each)
        norm.rms_norm_backward(meta(TOKENS, hidden), x, rstd, gain, each, floats(hidden))


def launch_attention(hidden: int, heads: AttentionHeads, **_: Any) -> None:
    joined, cos, sin = meta(TOKENS, heads.joined), floats(TOKENS, heads.width // 2), floats(TOKENS, heads.width // 2)
    rope.rotate_(joined, cos, sin, heads)
    q, k = (meta(TOKENS, count, heads.width) for count in (heads.query, heads.key))
    rope.unrotate(q, k, k, cos, sin, heads)
    edges = meta(22, dtype=torch.int32)
    out, log_sums = short_attention.forward(joined, heads, edges)
    short_attention.backward(q, joined, out, log_sums, heads, edges, cos, sin)
    pinned_gather.gather_rows(meta(32768, hidden), meta(TOKENS, dtype=torch.int64))


def launch_swiglu(inner: int, **_: Any) -> None:
    joined, d_act, columns, factors = meta(TOKENS, 2 * inner), meta(TOKENS, inner), columns_of(inner), floats(2 * inner)
    swiglu_16.swiglu(joined)
    blocks = row_quant.empty_blocks(TOKENS, 2 * inner, BF16, "meta")
    swiglu_16.swiglu_backward_(joined, d_act)
    for each in (joined, blocks):
        for keep in (False, True):
            swiglu.swiglu_rows(each, columns, keep_act=keep)
            swiglu.swiglu_backward_rows(each, d_act, factors, keep_gradient=keep)
    row_quant.quantize_rows(d_act, columns=columns)
    row_quant.quantize_rows(d_act, factors=floats(inner))


def launch_products(capability: tuple[int, int], hidden: int, inner: int, **_: Any) -> None:
    scales = floats(TOKENS)
    for height, width in ((hidden, hidden), (2 * inner, hidden), (hidden, inner)):
        count, rank = min(32, width // 32), 16
        a = row_quant.QuantizedRows(values=int8(TOKENS, width), scales=scales, outliers=meta(TOKENS, count), dtype=BF16)
        plain = row_quant.QuantizedRows(values=int8(TOKENS, width), scales=scales, dtype=BF16)
        with_scales = row_quant.QuantizedRows(values=int8(height, width), scales=floats(height))
        third = height // 3 // 16 * 16
        side_inputs = matmul.SideInputs(
            outlier_weights=meta(height, count), u=meta(TOKENS, 3 * rank), work_b=meta(height, rank), rank=rank,
            columns=(slice(0, third), slice(third, 2 * third), slice(2 * third, height)),
        )  # fmt: skip
        outliers_only = matmul.SideInputs(outlier_weights=meta(height, count))
        tiles = matmul.tiles_for(capability)
        matmul.product(plain, row_quant.QuantizedRows(values=int8(height, width)), dtype=BF16, tiles=tiles)
        for each in (side_inputs, outliers_only):
            matmul.product(a, with_scales, each, dtype=BF16, tiles=tiles)
            if height % row_quant.BLOCK == 0:
                matmul.product_as_blocks(a, with_scales, each, dtype=BF16, tiles=tiles)


LAUNCHES: tuple[Callable[..., None], ...] = (
    launch_adamw8, launch_attention, launch_lora, launch_loss, launch_norm, launch_products, launch_swiglu,
    launch_weights,
)  # fmt: skip


@cache
def compiled(capability: int, launch: Callable[..., None], model: str) -> tuple[CompiledLaunch, ...]:
    with compiled_kernel.recorded_launches(capability) as launches:
        launch(capability=divmod(capability, 10), **MODELS[model])
    return tuple(launches)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.__name__.removeprefix("launch_"))
@pytest.mark.parametrize("capability", compiled_kernel.SHARED_BYTES)
def test_each_kernel_fits_the_target(capability, launch, model):
    for each in compiled(capability, launch, model):
        assert each.shared <= compiled_kernel.SHARED_BYTES[capability], each.name
        assert each.registers <= compiled_kernel.MAX_REGISTERS
        assert each.registers * 32 * each.warps <= compiled_kernel.REGISTERS, each.name
        assert each.spilled <= MAX_SPILLED.get(each.name, 0), each.name
        assert capability >= 90 or "wgmma" not in each.ptx


@pytest.mark.parametrize("capability", compiled_kernel.SHARED_BYTES)
def test_no_kernel_is_left_out(capability):
    names = {each.name for launch in LAUNCHES for each in compiled(capability, launch, "7B")}
    assert names == compiled_kernel.defined_kernels()["launched"]
