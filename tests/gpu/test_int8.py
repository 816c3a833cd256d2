"""Products in 8 bits: every Triton kernel against its plain PyTorch reference, at shapes that fit no tile.

    python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_int8.py

Not covered: GPUs before Hopper, whose tiles are compiled but not run (`compiled_for_an_a10`).
"""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from bench.kernels import nf4, norm, swiglu  # noqa: E402 - after the skips
from bench.kernels.int8 import block_quant, matmul, row_quant, weight_quant  # noqa: E402
from bench.kernels.int8 import swiglu as eight_swiglu  # noqa: E402
from tests.support.compiled_kernel import BF16, compiled_for_an_a10  # noqa: E402
from tests.support.gpu import on_gpu  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
SHAPES = [(1, 64, 64), (37, 192, 320), (300, 576, 1536), (257, 4096, 1088)]  # tokens, rows, columns


def random(*shape: int) -> Any:
    return torch.randn(shape, device="cuda").bfloat16()


def error(found: Any, expected: Any) -> float:
    found, expected = found.double(), expected.double()
    assert found.shape == expected.shape
    return float((found - expected).norm() / expected.norm())


def weight(height: int, width: int) -> nf4.Nf4:
    """NF4 with every code, and scales of both signs and of all sizes down to 0."""
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
    """Three weights one below the other."""
    return weight(height // 2, width), weight(height // 4, width), weight(height - height // 2 - height // 4, width)


def apart(width: int) -> row_quant.Columns:
    return row_quant.columns_apart(torch.tensor([3, 11, width - 1], device="cuda"), width)


@on_gpu
@pytest.mark.parametrize(("tokens", "width"), [(tokens, width) for tokens, _, width in SHAPES])
def test_activations_become_what_the_reference_says(tokens, width):
    x = random(tokens, width)
    for choice in ({}, {"columns": apart(width)}, {"factors": torch.rand(width, device="cuda") + 0.5}):
        found, expected = row_quant.rows(x, **choice), row_quant.rows_reference(x, **choice)
        assert error(found.scales, expected.scales) < 1e-6
        # The last bit of a quotient may fall to either side of a half.
        assert float((found.values != expected.values).float().mean()) < 2e-3
        assert int((found.values.int() - expected.values.int()).abs().max()) <= 1
        assert expected.apart is None or torch.equal(found.apart, expected.apart)


@on_gpu
@pytest.mark.parametrize(("height", "width"), [(height, width) for _, height, width in SHAPES])
def test_weights_are_those_of_the_reference_to_one_step_and_equal_in_both_orientations(height, width):
    parts = joined(height, width)
    scales = weight_quant.scales_of(parts)
    found, turned = weight_quant.copy(parts, scales), weight_quant.transposed(parts, scales)
    expected = weight_quant.reference(parts, scales)
    assert torch.equal(found.T, turned)
    assert int((found.int() - expected.int()).abs().max()) <= 1
    assert float((found != expected).float().mean()) < 0.03


@on_gpu
@pytest.mark.parametrize("tiles", [matmul.HOPPER, matmul.AMPERE])
@pytest.mark.parametrize(("tokens", "height", "width"), SHAPES)
def test_a_product_and_all_that_stands_beside_it(tokens, height, width, tiles):
    parts, columns, rank = joined(height, width), apart(width), 24
    scales = weight_quant.scales_of(parts)
    a, b = (
        row_quant.rows(random(tokens, width), columns=columns),
        row_quant.Rows(values=weight_quant.copy(parts, scales)),
    )
    beside = matmul.SideInputs(
        apart=random(height, 3), u=random(tokens, 2 * rank), work_b=random(height, rank),
        columns=(slice(0, height // 3), slice(height // 2, height)), rank=rank,
    )  # fmt: skip
    for right in (b, row_quant.Rows(values=b.values, scales=scales)):
        for what in (matmul.NOTHING, beside):
            if what is matmul.NOTHING or a.apart is not None:
                expected = matmul.product_reference(a, right, what, torch.float32)
                found = matmul.product(a, right, what, dtype=torch.bfloat16, tiles=tiles)
                assert error(found, expected) < 4e-3
                assert torch.equal(found, matmul.product(a, right, what, dtype=torch.bfloat16, tiles=tiles))
                if height % block_quant.BLOCK == 0:
                    kept = matmul.product_in_blocks(a, right, what, dtype=torch.bfloat16, tiles=tiles)
                    reference = block_quant.blocks_reference(expected, torch.bfloat16)
                    assert error(kept.scales, reference.scales) < 1e-4
                    assert int((kept.values.int() - reference.values.int()).abs().max()) <= 1


@on_gpu
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize(("tokens", "inner"), [(1, 64), (37, 1536), (130, 14336)])
def test_swiglu_writes_8_bits_and_16_where_these_are_wanted(tokens, inner, in_blocks):
    gate_up, d_act, columns = random(tokens, 2 * inner), random(tokens, inner), apart(inner)
    factors = torch.rand(2 * inner, device="cuda") + 0.5
    if in_blocks:
        if inner % block_quant.BLOCK:
            pytest.skip("no whole blocks")
        gate_up = block_quant.blocks_reference(gate_up, torch.bfloat16)
    wide = block_quant.restored(gate_up)
    act, gradient = swiglu.swiglu_reference(wide), swiglu.swiglu_backward_reference(wide, d_act)
    found, kept = eight_swiglu.swiglu_rows(gate_up, columns, keep_act=True)
    expected = row_quant.rows_reference(act, columns=columns)
    assert error(found.apart, expected.apart) < 4e-3
    assert error(kept, act) < 4e-3
    alone, nothing = eight_swiglu.swiglu_rows(gate_up, columns)
    assert nothing is None
    assert torch.equal(found.values, alone.values)
    assert error(eight_swiglu.swiglu_rows(gate_up, None, keep_act=True)[1], act) < 4e-3
    assert_same(found, expected)
    before = d_act.clone()
    again = copy.deepcopy(gate_up)
    assert_same(
        eight_swiglu.swiglu_backward_rows(again, d_act, factors)[0], row_quant.rows_reference(gradient, factors=factors)
    )
    assert torch.equal(d_act, before)
    found, kept = eight_swiglu.swiglu_backward_rows(gate_up, d_act, factors, keep_act=True, keep_gradient=True)
    assert_same(found, row_quant.rows_reference(gradient, factors=factors))
    assert error(kept, gradient) < 4e-3
    assert error(d_act, act) < 4e-3


@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize(("tokens", "width"), [(1, 64), (37, 320), (130, 4096)])
def test_a_norm_writes_8_bits_and_16_where_these_are_wanted(tokens, width, adds, dtype):
    x, y = random(tokens, width).to(dtype), random(tokens, width).to(dtype)
    weight, columns = random(width), apart(width)
    stream = norm.split(x.float() * 1.001, dtype)
    before = stream, weight, 1e-5, y if adds else None
    normed, rstd, total = norm.stream_norm_reference(*before)
    kept, found_rstd, found_total, in_eight = norm.stream_norm_rows(*before, columns, keep_normed=True)
    assert error(kept, normed) < 4e-3
    assert error(found_rstd, rstd) < 1e-6
    assert torch.equal(found_total.high, total.high)
    assert error(in_eight.apart, normed[:, columns.numbers]) < 4e-3
    expected = row_quant.rows_reference(normed, columns=columns)
    assert error(restored(in_eight), restored(expected)) < 1e-2
    nothing, *_, alone = norm.stream_norm_rows(*before, columns, keep_normed=False)
    assert nothing is None
    assert torch.equal(alone.values, in_eight.values)
    factors, d_normed, d_passing = torch.rand(width, device="cuda") + 0.5, random(tokens, width), random(tokens, width)
    d_total = norm.rms_norm_backward_reference(d_normed, total.high, rstd, weight, d_passing)
    found, in_eight = norm.rms_norm_backward_rows(d_normed, total.high, rstd, weight, d_passing, factors)
    assert error(found, d_total) < 4e-3
    assert error(restored(in_eight), restored(row_quant.rows_reference(d_total, factors=factors))) < 1e-2


def restored(of: row_quant.Rows) -> Any:
    return of.values.float() * of.scales[:, None]


def assert_same(found: row_quant.Rows, expected: row_quant.Rows) -> None:
    """To one step, and seldom that: the last bit of a quotient may fall to either side of a half."""
    assert error(found.scales, expected.scales) < 1e-5
    assert int((found.values.int() - expected.values.int()).abs().max()) <= 1
    assert float((found.values != expected.values).float().mean()) < 2e-3


@on_gpu
def test_what_is_not_finite_stays_so_and_what_is_nothing_becomes_zero():
    x = random(6, 128)
    x[1], x[2, 7], x[3, 5], x[4] = 0, float("nan"), float("inf"), 1e-38
    b = row_quant.rows(random(64, 128))
    y = matmul.product(row_quant.rows(x), b, dtype=torch.bfloat16)
    assert y[[0, 5]].isfinite().all()
    assert not y[[2, 3]].isfinite().any()
    assert (y[[1, 4]] == 0).all()
    wide = row_quant.rows(random(128, 128))
    kept = block_quant.restored(matmul.product_in_blocks(row_quant.rows(x), wide, dtype=torch.bfloat16))
    assert torch.equal(kept.isfinite().all(1).cpu(), torch.tensor([True, True, False, False, True, True]))
    in_rows, _ = eight_swiglu.swiglu_rows(x, apart(64))
    assert torch.equal(in_rows.scales.isfinite().cpu(), torch.tensor([True, True, False, False, True, True]))


@on_gpu
def test_columns_a_thousand_times_the_rest_cost_nothing_when_they_stand_apart():
    x, w = random(64, 512), random(128, 512)
    x[:, [5, 99]] *= 1000
    exact = x.double() @ w.double().T
    columns = row_quant.columns_apart(torch.tensor([5, 99], device="cuda"), 512)
    b = row_quant.rows(w)
    tiles = matmul.AMPERE  # float32 results, which no step asks for, do not fit beside Hopper's tiles
    plain = matmul.product(row_quant.rows(x), b, dtype=torch.float32, tiles=tiles)
    beside = matmul.SideInputs(apart=w[:, columns.numbers].contiguous())
    better = matmul.product(row_quant.rows(x, columns=columns), b, beside, dtype=torch.float32, tiles=tiles)
    rest = x.double().index_fill(1, columns.numbers, 0) @ w.double().T  # what the other columns add
    assert (better.double() - exact).norm() / rest.norm() < 0.02
    assert (plain.double() - exact).norm() / rest.norm() > 0.5


@pytest.mark.parametrize("in_blocks", [False, True])
def test_the_tiles_of_a_product_fit_an_a10(tmp_path, in_blocks):
    tiles = matmul.AMPERE
    constants = {
        "IN_BLOCKS": in_blocks, "HAS_SCALES": True, "HAS_APART": True, "APART": 32, "TARGETS": 3, "RANK": 16,
        "RANKS": 16, "TOKENS": tiles.tokens, "COLUMNS": block_quant.BLOCK, "INNER": tiles.inner, "GROUP": matmul.GROUP,
        "TMA": False, "PROGRAMS": 1, "LASTS": False,
    }  # fmt: skip
    eight = {"a", "b"} | ({"y"} if in_blocks else set())
    kinds = dict.fromkeys(("y", "left_apart", "right_apart", "u", "work_b"), BF16) | dict.fromkeys(eight, "*i8")
    made = compiled_for_an_a10(
        tmp_path, matmul._eight_product, constants, kinds, tiles.warps, tiles.stages, max_spilled_bytes=900
    )
    assert "mma.sync" in made.asm["ptx"]


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (
            eight_swiglu._eight_swiglu,
            {"IN_BLOCKS": True, "KEEPS": True, "HAS_APART": True, "APART": 32, "BLOCKS": 128, "BLOCK": block_quant.BLOCK},
        ),
        (
            eight_swiglu._eight_swiglu_backward,
            {"IN_BLOCKS": True, "KEEPS_ACT": True, "KEEPS_GRADIENT": True, "BLOCKS": 128, "BLOCK": block_quant.BLOCK},
        ),
        (
            norm._rms_norm_forward,
            {
                "ADDS": True, "HAS_LOW": True, "SPLITS": True, "KEEPS": True, "IN_EIGHT": True, "APART": 32,
                "WIDE": 4096,
            },
        ),
        (norm._rms_norm_backward, {"ADDS": True, "IN_EIGHT": True, "WIDE": 4096}),
    ],
)  # fmt: skip
def test_what_stands_beside_the_products_fits_an_a10(tmp_path, kernel, constants):
    kinds = dict.fromkeys(("d_act", "gradient_16", "act_16", "apart", "x", "y", "weight", "total", "normed"), BF16)
    kinds |= dict.fromkeys(("d_normed", "d_passing"), BF16)
    kinds |= dict.fromkeys(("joined", "values", "low", "total_low"), "*i8")
    compiled_for_an_a10(tmp_path, kernel, constants, kinds, warps=8 if "WIDE" in constants else 16, stages=3)
