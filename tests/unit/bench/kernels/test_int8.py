"""Products in 8 bits in plain PyTorch: what is rounded, what stands apart, what is not finite.

The Triton side is compared with these references on a GPU: tests/gpu/test_int8.py.
"""

import pytest
import torch

from bench.kernels import nf4, swiglu
from bench.kernels.int8 import block_quant, matmul, row_quant, weight_quant
from bench.kernels.int8 import swiglu as eight_swiglu
from bench.predict import memory
from bench.qlora.recipes import int8
from bench.qlora.recipes.fused_linear import FusedLinear

STEP = 0.5 / 127  # of a row's largest number: the most that rounding moves a number


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


def apart(width, *numbers):
    return row_quant.columns_apart(torch.tensor(numbers), width)


def test_no_number_moves_by_more_than_half_a_step_of_its_row():
    x = torch.randn(9, 64) * torch.logspace(-3, 3, 9)[:, None]
    found = row_quant.rows(x)
    moved = (found.values.float() * found.scales[:, None] - x).abs()
    assert (moved <= 1.001 * STEP * x.abs().amax(1, keepdim=True)).all()


def test_columns_apart_stay_as_they_are_and_do_not_coarsen_the_others():
    x = torch.randn(5, 64)
    x[:, 7] *= 1000
    found = row_quant.rows(x, columns=apart(64, 7, 20))
    assert torch.equal(found.apart, x[:, [7, 20]])
    assert not found.values[:, [7, 20]].any()
    rest = x.index_fill(1, torch.tensor([7, 20]), 0)
    assert (found.values.float() * found.scales[:, None] - rest).abs().max() <= 1.001 * STEP * rest.abs().max()


def test_factors_multiply_the_columns_first():
    x, factors = torch.randn(5, 64), torch.rand(64) + 0.5
    found, expected = row_quant.rows(x, factors=factors), row_quant.rows(x * factors)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.scales, expected.scales)


def test_a_row_that_is_not_finite_stays_so_and_one_of_nothing_becomes_zero():
    x = torch.randn(5, 64)
    x[1], x[2, 7], x[3, 5], x[4] = 0, float("nan"), float("-inf"), 1e-38
    y = matmul.product(row_quant.rows(x), row_quant.rows(torch.randn(8, 64)), dtype=torch.float32)
    assert y[0].isfinite().all()
    assert not y[2:4].isfinite().any()
    assert (y[[1, 4]] == 0).all()


def test_a_weight_is_the_same_in_both_orientations():
    parts = (weight(32, 64), weight(8, 64))
    scales = weight_quant.scales_of(parts)
    values = weight_quant.copy(parts, scales)
    assert torch.equal(values.T, weight_quant.transposed(parts, scales))
    whole = torch.cat([nf4.dequantize_reference(part) for part in parts])
    assert ((values * scales[:, None] - whole).abs() <= 1.001 * STEP * whole.abs().amax(1, keepdim=True)).all()


def test_a_product_is_that_of_the_numbers_with_what_stands_beside_it():
    x, parts, rank = torch.randn(7, 64), (weight(24, 64),), 4
    scales, columns = weight_quant.scales_of(parts), apart(64, 3, 60)
    whole = nf4.dequantize_reference(parts[0])
    u, work_b = torch.randn(7, 2 * rank), torch.randn(24, rank)
    beside = matmul.SideInputs(
        apart=whole[:, columns.numbers], u=u, work_b=work_b, columns=(slice(0, 8), slice(16, 24)), rank=rank
    )
    b = row_quant.Rows(values=weight_quant.copy(parts, scales), scales=scales)
    found = matmul.product(row_quant.rows(x, columns=columns), b, beside, dtype=torch.float32)
    exact = x @ whole.T
    exact[:, :8] += u[:, :rank] @ work_b[:8].T
    exact[:, 16:] += u[:, rank:] @ work_b[16:].T
    assert (found - exact).norm() / exact.norm() < 0.01
    d_y = torch.randn(7, 24)
    turned = row_quant.Rows(values=weight_quant.transposed(parts, scales))
    d_x = matmul.product(row_quant.rows(d_y, factors=scales), turned, dtype=torch.float32)
    assert (d_x - d_y @ whole).norm() / (d_y @ whole).norm() < 0.01


def test_swiglu_in_8_bits_is_swiglu_and_then_8_bits():
    joined, d_act, columns = torch.randn(6, 128), torch.randn(6, 64), apart(64, 1)
    factors, act = torch.rand(128), swiglu.swiglu_reference(joined)
    (found, kept), expected = (
        eight_swiglu.swiglu_rows(joined, columns, keep_act=True),
        row_quant.rows(act, columns=columns),
    )
    assert torch.equal(found.values, expected.values)
    assert torch.equal(kept, act)
    gradient = swiglu.swiglu_backward_reference(joined, d_act)
    found, kept = eight_swiglu.swiglu_backward_rows(joined, d_act, factors, keep_act=True, keep_gradient=True)
    assert torch.equal(found.values, row_quant.rows(gradient, factors=factors).values)
    assert torch.equal(kept, gradient)
    assert torch.equal(d_act, act)


def test_a_product_in_blocks_moves_no_number_by_more_than_half_a_step_of_its_block():
    a, b = (
        row_quant.rows(torch.randn(7, 64)),
        row_quant.rows(torch.randn(256, 64) * torch.logspace(-2, 2, 256)[:, None]),
    )
    exact = matmul.product(a, b, dtype=torch.float32)
    found = matmul.product_in_blocks(a, b, dtype=torch.float32)
    moved = (block_quant.restored(found) - exact).abs().unflatten(1, (-1, block_quant.BLOCK))
    assert (moved <= 1.001 * STEP * exact.abs().unflatten(1, (-1, block_quant.BLOCK)).amax(-1, keepdim=True)).all()


def test_swiglu_of_blocks_is_that_of_the_numbers_they_stand_for():
    joined, d_act, factors = torch.randn(6, 512), torch.randn(6, 256), torch.rand(512)
    joined[2, 7] = float("nan")
    in_blocks = block_quant.blocks_reference(joined, torch.float32)
    wide = block_quant.restored(in_blocks)
    assert wide[2, :128].isnan().all()
    for of in (in_blocks, wide):
        found, _ = eight_swiglu.swiglu_rows(of, apart(256, 1, 200))
        expected = row_quant.rows(swiglu.swiglu_reference(wide), columns=apart(256, 1, 200))
        assert torch.equal(found.values, expected.values)
        assert torch.equal(found.scales.isnan(), torch.arange(6) == 2)
        gradient, _ = eight_swiglu.swiglu_backward_rows(of, d_act, factors)
        expected = row_quant.rows(swiglu.swiglu_backward_reference(wide, d_act), factors=factors)
        assert torch.equal(gradient.values, expected.values)


@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_gradient_made_in_parts_of_the_tokens_has_the_same_bits(tokens, parts):
    down, gate_up = (weight(64, 256),), (weight(256, 64), weight(256, 64))
    down_eight, gate_up_eight = (int8.Int8Linear(each, forward=True, hold=False) for each in (down, gate_up))
    product_of_both = FusedLinear(weights=gate_up, eight=gate_up_eight)
    d_y, joined = torch.randn(tokens, 64), block_quant.blocks_reference(torch.randn(tokens, 512), torch.float32)
    d_act = down_eight.input_gradient(d_y, None)
    _, expected = product_of_both.activated_gradient(joined, d_act, keep_act=False)
    found = product_of_both.activated_gradients(joined, down_eight.input_gradients(d_y, None, parts), parts)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.scales, expected.scales)
    assert found.values is joined.values, "gate and up are used up"


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), matmul.HOPPER), ((8, 6), matmul.AMPERE), ((8, 0), matmul.AMPERE)]
)
def test_the_copy_engine_is_used_where_there_is_one(capability, expected):
    assert matmul.tiles_for(capability) is expected


def test_the_prediction_of_memory_has_the_same_constants():
    assert (memory.BLOCK, memory.COLUMNS_APART) == (block_quant.BLOCK, int8.APART)
