"""INT8 products: every Triton kernel against its PyTorch reference, at shapes that are not multiples of a tile.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_int8.py

Not covered: GPUs before Hopper, whose tiles are only compiled (`tests/gpu/test_kernels_fit.py`).
"""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from bench.kernels import lora, nf4, norm, swiglu  # noqa: E402 - after the skips
from bench.kernels.int8 import matmul, row_quant, weight_quant  # noqa: E402
from bench.kernels.int8 import swiglu as int8_swiglu  # noqa: E402
from tests.support.gpu import on_gpu, relative_error  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
SHAPES = [(1, 64, 64), (37, 192, 320), (300, 576, 1536), (257, 4096, 1088)]  # tokens, rows, columns


def random(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").bfloat16()


def weight(height: int, width: int) -> nf4.Nf4:
    """Make an NF4 weight with every code, and scales of both signs and all sizes down to 0."""
    blocks = height * width // nf4.BLOCK
    return nf4.Nf4(
        shape=(height, width),
        dtype=torch.bfloat16,
        packed=torch.randint(0, 256, (height * width // 2,), dtype=torch.uint8, device="cuda"),
        levels=torch.tensor(weight_quant.NF4, device="cuda"),
        scales=torch.randint(0, 256, (blocks,), dtype=torch.uint8, device="cuda"),
        scale_levels=torch.linspace(-1, 1, 256, device="cuda"),
        scale_scales=torch.rand(-(-blocks // nf4.SCALE_BLOCK), device="cuda"),
        offset=torch.zeros(1, device="cuda"),
    )


def joined(height: int, width: int) -> tuple[nf4.Nf4, ...]:
    """Make three concatenated weights."""
    return weight(height // 2, width), weight(height // 4, width), weight(height - height // 2 - height // 4, width)


def outliers(width: int) -> row_quant.OutlierColumns:
    return row_quant.outlier_columns(torch.tensor([3, 11, width - 1], device="cuda"), width)


@on_gpu
@pytest.mark.parametrize(("tokens", "width"), [(tokens, width) for tokens, _, width in SHAPES])
def test_quantized_activations_match_the_reference(tokens, width):
    x = random(tokens, width)
    for choice in ({}, {"columns": outliers(width)}, {"factors": torch.rand(width, device="cuda") + 0.5}):
        actual, expected = row_quant.quantize_rows(x, **choice), row_quant.quantize_rows_reference(x, **choice)
        assert_same(actual, expected)
        assert expected.outliers is None or torch.equal(actual.outliers, expected.outliers)


@on_gpu
@pytest.mark.parametrize(("height", "width"), [(height, width) for _, height, width in SHAPES])
def test_weights_match_the_reference_to_one_step(height, width):
    parts = joined(height, width)
    scales, rotated = weight_quant.row_scales(parts), weight_quant.row_scales(parts, rotated=True)
    for actual, expected in (
        (weight_quant.quantize_transposed(parts, scales).T, weight_quant.quantize_reference(parts, scales)),
        (weight_quant.quantize_rotated(parts, rotated), weight_quant.quantize_rotated_reference(parts, rotated)),
    ):
        assert int((actual.int() - expected.int()).abs().max()) <= 1
        assert float((actual != expected).float().mean()) < 0.03


@on_gpu
@pytest.mark.parametrize("tiles", [matmul.HOPPER, matmul.AMPERE])
@pytest.mark.parametrize(("tokens", "height", "width"), SHAPES)
def test_a_product_with_all_side_inputs(tokens, height, width, tiles):
    parts, columns, rank = joined(height, width), outliers(width), 24
    scales = weight_quant.row_scales(parts, rotated=True)
    a, b = (
        row_quant.quantize_rows(random(tokens, width), columns=columns),
        row_quant.QuantizedRows(values=weight_quant.quantize_rotated(parts, scales)),
    )
    all_side_inputs = matmul.SideInputs(
        outlier_weights=random(height, 3), u=random(tokens, 2 * rank), work_b=random(height, rank),
        columns=(slice(0, height // 3), slice(height // 2, height)), rank=rank,
    )  # fmt: skip
    for right in (b, row_quant.QuantizedRows(values=b.values, scales=scales)):
        for side_inputs in (matmul.NO_SIDE_INPUTS, all_side_inputs):
            if side_inputs is matmul.NO_SIDE_INPUTS or a.outliers is not None:
                expected = matmul.product_reference(a, right, side_inputs, torch.float32)
                actual = matmul.product(a, right, side_inputs, dtype=torch.bfloat16, tiles=tiles)
                assert relative_error(actual, expected) < 4e-3
                assert torch.equal(actual, matmul.product(a, right, side_inputs, dtype=torch.bfloat16, tiles=tiles))
                if height % row_quant.BLOCK == 0:
                    blocks = matmul.product(a, right, side_inputs, dtype=torch.bfloat16, in_blocks=True, tiles=tiles)
                    reference = row_quant.quantize_blocks_reference(expected, torch.bfloat16)
                    assert relative_error(blocks.scales, reference.scales) < 1e-4
                    assert int((blocks.values.int() - reference.values.int()).abs().max()) <= 1


@on_gpu
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize(("tokens", "inner"), [(1, 64), (37, 1536), (130, 14336)])
def test_swiglu_writes_int8_and_the_activation_on_request(tokens, inner, in_blocks):
    gate_up, d_act, columns = random(tokens, 2 * inner), random(tokens, inner), outliers(inner)
    factors = torch.rand(2 * inner, device="cuda") + 0.5
    if in_blocks:
        if inner % row_quant.BLOCK:
            pytest.skip("no whole blocks")
        gate_up = row_quant.quantize_blocks_reference(gate_up, torch.bfloat16)
    numbers = row_quant.dequantize(gate_up)
    act, gradient = swiglu.swiglu_reference(numbers), swiglu.swiglu_backward_reference(numbers, d_act)
    actual, kept = int8_swiglu.swiglu_rows(gate_up, columns, keep_act=True)
    expected = row_quant.quantize_rows_reference(act, columns=columns)
    assert relative_error(actual.outliers, expected.outliers) < 4e-3
    assert relative_error(kept, act) < 4e-3
    int8_only, missing = int8_swiglu.swiglu_rows(gate_up, columns)
    assert missing is None
    assert torch.equal(actual.values, int8_only.values)
    assert relative_error(int8_swiglu.swiglu_rows(gate_up, None, keep_act=True)[1], act) < 4e-3
    assert relative_error(restored(actual), restored(expected)) < 1e-2
    check_gradients_of_adapters(tokens, inner, gate_up, act)
    actual, kept = int8_swiglu.swiglu_backward_rows(copy.deepcopy(gate_up), d_act, factors, keep_gradient=True)
    assert_same(actual, row_quant.quantize_rows_reference(gradient, factors=factors))
    assert relative_error(kept, gradient) < 4e-3
    int8_only, missing = int8_swiglu.swiglu_backward_rows(gate_up, d_act, factors)
    assert missing is None
    assert torch.equal(actual.values, int8_only.values)


def check_gradients_of_adapters(tokens: int, inner: int, gate_up: Any, act: Any) -> None:
    """Check the A side of an adapter whose input is SwiGLU, recomputed."""
    seed = lora.MaskSeed(base=torch.tensor(7, device="cuda"))
    adapters = lora.LoraInput(rank=16, scaling=2.0, p=0.1, seed=seed)
    d_u, a, d_x = random(tokens, 16), random(16, inner), random(tokens, inner)
    expected = d_x.float() + lora.input_gradient_reference(d_u, a, adapters)
    d_a = lora.backward_(d_x, d_u, a, lora.SwigluInput(joined=gate_up), adapters)
    assert relative_error(d_x, expected) < 4e-3
    assert relative_error(d_a, lora.weight_gradient_reference(d_u, act, adapters)) < 4e-3


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (37, 320), (130, 4096)])
def test_a_norm_writes_int8_and_16_bits_on_request(tokens, width, adds, dtype):
    x, y = random(tokens, width).to(dtype), random(tokens, width).to(dtype)
    weight, columns = random(width), outliers(width)
    stream = norm.split_stream(x.float() * 1.001, dtype)
    arguments = stream, weight, 1e-5, y if adds else None
    normed, rstd, total = norm.stream_norm_reference(*arguments)
    kept, actual_rstd, actual_total, quantized = norm.stream_norm(*arguments, columns, keep_normed=True)
    assert relative_error(kept, normed) < 4e-3
    assert relative_error(actual_rstd, rstd) < 1e-6
    assert torch.equal(actual_total.high, total.high)
    assert relative_error(quantized.outliers, normed[:, columns.indices]) < 4e-3
    expected = row_quant.quantize_rows_reference(normed, columns=columns)
    assert relative_error(restored(quantized), restored(expected)) < 1e-2
    missing, *_, int8_only = norm.stream_norm(*arguments, columns, keep_normed=False)
    assert missing is None
    assert torch.equal(int8_only.values, quantized.values)
    factors, d_normed, d_passing = torch.rand(width, device="cuda") + 0.5, random(tokens, width), random(tokens, width)
    d_total = norm.rms_norm_backward_reference(d_normed, total.high, rstd, weight, d_passing)
    actual, quantized = norm.rms_norm_backward(d_normed, total.high, rstd, weight, d_passing, factors)
    assert relative_error(actual, d_total) < 4e-3
    assert (
        relative_error(restored(quantized), restored(row_quant.quantize_rows_reference(d_total, factors=factors)))
        < 1e-2
    )


def restored(rows: row_quant.QuantizedRows) -> Any:
    return rows.values.float() * rows.scales[:, None]


def assert_same(actual: row_quant.QuantizedRows, expected: row_quant.QuantizedRows) -> None:
    """Assert equality up to rare differences of one step, from ties in a quotient's last bit."""
    assert relative_error(actual.scales, expected.scales) < 1e-5
    assert int((actual.values.int() - expected.values.int()).abs().max()) <= 1
    assert float((actual.values != expected.values).float().mean()) < 2e-3


@on_gpu
def test_non_finite_rows_stay_non_finite_and_tiny_ones_become_zero():
    x = random(6, 128)
    x[1], x[2, 7], x[3, 5], x[4] = 0, float("nan"), float("inf"), 1e-38
    b = row_quant.quantize_rows(random(64, 128))
    y = matmul.product(row_quant.quantize_rows(x), b, dtype=torch.bfloat16)
    assert y[[0, 5]].isfinite().all()
    assert not y[[2, 3]].isfinite().any()
    assert (y[[1, 4]] == 0).all()
    wide = row_quant.quantize_rows(random(128, 128))
    kept = row_quant.dequantize(matmul.product(row_quant.quantize_rows(x), wide, dtype=torch.bfloat16, in_blocks=True))
    assert torch.equal(kept.isfinite().all(1).cpu(), torch.tensor([True, True, False, False, True, True]))
    in_rows, _ = int8_swiglu.swiglu_rows(x, outliers(64))
    assert torch.equal(in_rows.scales.isfinite().cpu(), torch.tensor([True, True, False, False, True, True]))
