"""PyTorch references of the INT8 products: rounding, outlier columns, non-finite numbers.

tests/gpu/test_int8.py compares the Triton kernels with them.
"""

import pytest
import torch

from bench.kernels import nf4, swiglu
from bench.kernels.int8 import matmul, row_quant, weight_quant
from bench.kernels.int8 import swiglu as int8_swiglu
from bench.predict import memory
from bench.qlora.recipes import int8
from bench.qlora.recipes.fused_linear import FusedLinear

STEP = 0.5 / 127  # maximum rounding error, relative to a row's largest number


def weight(height, width):
    blocks = height * width // nf4.BLOCK
    return nf4.Nf4(
        shape=(height, width),
        dtype=torch.float32,
        packed=torch.randint(0, 256, (height * width // 2,), dtype=torch.uint8),
        levels=torch.tensor(weight_quant.NF4),
        scales=torch.randint(1, 256, (blocks,), dtype=torch.uint8),
        scale_levels=torch.linspace(0, 1, 256),
        scale_scales=torch.rand(-(-blocks // nf4.SCALE_BLOCK)) + 0.5,
        offset=torch.zeros(1),
    )


def outliers(width, *indices):
    return row_quant.outlier_columns(torch.tensor(indices), width)


def test_no_number_moves_by_more_than_half_a_step_of_its_row():
    x = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    actual = row_quant.quantize_rows(x)
    moved = (actual.values.float() * actual.scales[:, None] - x).abs()
    assert (moved <= 1.001 * STEP * x.abs().amax(1, keepdim=True)).all()


def test_outlier_columns_are_exact_and_do_not_coarsen_the_others():
    x = torch.randn(5, 64)
    x[:, 7] *= 1000
    actual = row_quant.quantize_rows(x, columns=outliers(64, 7, 20))
    assert torch.equal(actual.outliers, x[:, [7, 20]])
    rest = row_quant.rotate_reference(x.index_fill(1, torch.tensor([7, 20]), 0))
    assert (actual.values.float() * actual.scales[:, None] - rest).abs().max() <= 1.001 * STEP * rest.abs().max()


def test_a_rotation_is_its_own_inverse_and_spreads_a_large_number_over_its_group_alone():
    x = torch.zeros(2, 128)
    x[0, 70], x[1] = 4.0, torch.randn(128)
    rotated = row_quant.rotate_reference(x)
    assert torch.equal(rotated[0].abs(), torch.ones(128).index_fill(0, torch.tensor([*range(64), *range(80, 128)]), 0))
    assert torch.allclose(row_quant.rotate_reference(rotated), x, atol=1e-6)


def test_factors_multiply_the_columns_first():
    x, factors = torch.randn(5, 64), torch.rand(64) + 0.5
    actual, expected = row_quant.quantize_rows(x, factors=factors), row_quant.quantize_rows(x * factors)
    assert torch.equal(actual.values, expected.values)
    assert torch.equal(actual.scales, expected.scales)


def test_non_finite_rows_stay_non_finite_and_tiny_ones_become_zero():
    x = torch.randn(5, 64)
    x[1], x[2, 7], x[3, 5], x[4] = 0, float("nan"), float("-inf"), 1e-38
    y = matmul.product(row_quant.quantize_rows(x), row_quant.quantize_rows(torch.randn(8, 64)), dtype=torch.float32)
    assert y[0].isfinite().all()
    assert not y[2:4].isfinite().any()
    assert (y[[1, 4]] == 0).all()


@pytest.mark.parametrize("rotated", [False, True])
def test_no_number_of_a_weight_moves_by_more_than_half_a_step_of_its_row(rotated):
    parts = (weight(32, 64), weight(8, 64))
    scales = weight_quant.row_scales(parts, rotated=rotated)
    whole = torch.cat([nf4.dequantize_reference(part) for part in parts])
    if rotated:
        values, whole = weight_quant.quantize_rotated(parts, scales), row_quant.rotate_reference(whole)
    else:
        values = weight_quant.quantize_transposed(parts, scales).T
    assert ((values * scales[:, None] - whole).abs() <= 1.001 * STEP * whole.abs().amax(1, keepdim=True)).all()


def test_a_product_with_side_inputs_approximates_the_exact_one():
    x, parts, rank = torch.randn(7, 64), (weight(24, 64),), 4
    scales, rotated, columns = (
        *(weight_quant.row_scales(parts, rotated=each) for each in (False, True)),
        outliers(64, 3),
    )
    whole = nf4.dequantize_reference(parts[0])
    u, work_b = torch.randn(7, 2 * rank), torch.randn(24, rank)
    side_inputs = matmul.SideInputs(
        outlier_weights=whole[:, columns.indices], u=u, work_b=work_b, columns=(slice(0, 8), slice(16, 24)), rank=rank
    )
    b = row_quant.QuantizedRows(values=weight_quant.quantize_rotated(parts, rotated), scales=rotated)
    actual = matmul.product(row_quant.quantize_rows(x, columns=columns), b, side_inputs, dtype=torch.float32)
    exact = x @ whole.T
    exact[:, :8] += u[:, :rank] @ work_b[:8].T
    exact[:, 16:] += u[:, rank:] @ work_b[16:].T
    assert (actual - exact).norm() / exact.norm() < 0.01
    d_y = torch.randn(7, 24)
    turned = row_quant.QuantizedRows(values=weight_quant.quantize_transposed(parts, scales))
    d_x = matmul.product(row_quant.quantize_rows(d_y, factors=scales), turned, dtype=torch.float32)
    assert (d_x - d_y @ whole).norm() / (d_y @ whole).norm() < 0.01


def test_a_product_in_blocks_moves_no_number_by_more_than_half_a_step_of_its_block():
    a, b = (
        row_quant.quantize_rows(torch.randn(7, 64)),
        row_quant.quantize_rows(torch.randn(256, 64) * torch.logspace(-2, 2, 256)[:, None]),
    )
    exact = matmul.product(a, b, dtype=torch.float32)
    actual = matmul.product(a, b, dtype=torch.float32, in_blocks=True)
    moved = (row_quant.dequantize(actual) - exact).abs().unflatten(1, (-1, row_quant.BLOCK))
    assert (moved <= 1.001 * STEP * exact.abs().unflatten(1, (-1, row_quant.BLOCK)).amax(-1, keepdim=True)).all()


def test_swiglu_of_blocks_equals_swiglu_of_their_numbers():
    joined, d_act, factors = torch.randn(6, 512), torch.randn(6, 256), torch.rand(512)
    joined[2, 7] = float("nan")
    blocks = row_quant.quantize_blocks_reference(joined, torch.float32)
    numbers = row_quant.dequantize(blocks)
    assert numbers[2, :128].isnan().all()
    for source in (blocks, numbers):
        actual, act = int8_swiglu.swiglu_rows(source, outliers(256, 1, 200), keep_act=True)
        expected = row_quant.quantize_rows(swiglu.swiglu_reference(numbers), columns=outliers(256, 1, 200))
        assert torch.equal(row_quant.quantize_rows(act, columns=outliers(256, 1, 200)).values, expected.values)
        assert torch.equal(actual.values, expected.values)
        assert torch.equal(actual.scales.isnan(), torch.arange(6) == 2)
        gradient, kept = int8_swiglu.swiglu_backward_rows(source, d_act, factors, keep_gradient=True)
        expected = row_quant.quantize_rows(swiglu.swiglu_backward_reference(numbers, d_act), factors=factors)
        assert torch.equal(gradient.values, expected.values)
        assert torch.equal(row_quant.quantize_rows(kept, factors=factors).values, expected.values)


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_gradient_in_parts_of_tokens_is_bit_identical(tokens, parts):
    down, gate_up = (weight(64, 256),), (weight(256, 64), weight(256, 64))
    down_eight, gate_up_eight = (int8.Int8Linear(each, hold=False) for each in (down, gate_up))
    product_of_both = FusedLinear(weights=gate_up, int8=gate_up_eight)
    d_y, joined = (
        torch.randn(tokens, 64),
        row_quant.quantize_blocks_reference(torch.randn(tokens, 512), torch.float32),
    )
    d_act = down_eight.input_gradient(d_y, None)
    _, expected = product_of_both.activation_gradient(joined, d_act)
    actual = product_of_both.activation_gradient_in_parts(
        joined, down_eight.input_gradient_in_parts(d_y, None, parts), parts
    )
    assert torch.equal(actual.values, expected.values)
    assert torch.equal(actual.scales, expected.scales)
    assert actual.values is joined.values, "gate and up are overwritten"


def test_the_copy_engine_is_used_from_hopper_on():
    assert [matmul.tiles_for(capability).tma for capability in ((8, 6), (9, 0))] == [False, True]


def test_the_memory_prediction_has_the_same_constants():
    assert (memory.QUANT_BLOCK, memory.OUTLIER_COLUMNS) == (row_quant.BLOCK, int8.MAX_OUTLIER_COLUMNS)
