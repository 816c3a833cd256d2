"""What a decoding step's kernels compute, against plain PyTorch. Their Triton side needs a GPU: tests/gpu."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import stack as stacks  # noqa: E402
from bench.kernels import nf4, nf4_linear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # bitsandbytes speaks at import


@pytest.fixture(scope="module")
def stack() -> stacks.Stack:
    return stacks.load()


def quantized(stack: stacks.Stack, rows: int, columns: int, **how: Any) -> Any:
    torch.manual_seed(rows * columns)
    options = {"quant_type": "nf4", "compress_statistics": True, "blocksize": 64} | how
    weight = torch.randn(rows, columns, dtype=torch.bfloat16) * 0.02
    return stack.bitsandbytes.nn.Params4bit(weight, requires_grad=False, **options).to("cpu")


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (192, 256), (96, 448), (5, 128)])
def test_the_formula_gives_the_librarys_weights_bit_for_bit(stack, rows, columns):
    weight = quantized(stack, rows, columns)
    theirs = stack.bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    ours = nf4.dequantize_reference(nf4_linear.covered_weight(weight)).bfloat16()
    assert torch.equal(ours, theirs)


def test_the_sixteen_values_are_the_librarys(stack):
    values = stack.bitsandbytes.functional.get_4bit_type("nf4", device="cpu").to(torch.bfloat16)
    assert tuple(bits & 0xFFFF for bits in values.view(torch.int16).tolist()) == nf4_linear.NF4_BF16_BITS


def test_values_below_zero_are_the_first_seven_so_one_bit_tells_the_halves_apart():
    is_negative = [bits >> 15 == 1 for bits in nf4_linear.NF4_BF16_BITS]
    assert is_negative == [True] * 7 + [False] * 9


@pytest.mark.parametrize("how", [{"quant_type": "fp4"}, {"compress_statistics": False}, {"blocksize": 128}])
def test_weights_kept_another_way_are_left_to_the_library(stack, how):
    assert nf4_linear.covered_weight(quantized(stack, 64, 256, **how)) is None


def test_a_weight_that_is_not_quantized_is_left_alone():
    assert nf4_linear.covered_weight(torch.zeros(4, 4)) is None


def test_on_a_cpu_no_layer_is_covered(stack):
    layer = stack.bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    layer.weight = quantized(stack, 64, 64)
    assert nf4_linear.products(stack, [layer], rows=1) == {}
