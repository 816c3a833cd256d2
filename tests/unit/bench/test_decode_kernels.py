"""What a decoding step's kernels compute, against plain PyTorch. Their Triton side needs a GPU: tests/gpu."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from bench import stack as stacks  # noqa: E402
from bench.kernels import grouped_attention, nf4_linear  # noqa: E402

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
    ours = nf4_linear.dequantized(torch, nf4_linear.packed(weight), torch.bfloat16)
    assert torch.equal(ours, theirs)


def test_the_sixteen_values_are_the_librarys(stack):
    values = stack.bitsandbytes.functional.get_4bit_type("nf4", device="cpu").to(torch.bfloat16)
    assert tuple(bits & 0xFFFF for bits in values.view(torch.int16).tolist()) == nf4_linear.NF4_BF16_BITS


def test_values_below_zero_are_the_first_seven_so_one_bit_tells_the_halves_apart():
    is_negative = [bits >> 15 == 1 for bits in nf4_linear.NF4_BF16_BITS]
    assert is_negative == [True] * 7 + [False] * 9


@pytest.mark.parametrize("how", [{"quant_type": "fp4"}, {"compress_statistics": False}, {"blocksize": 128}])
def test_weights_kept_another_way_are_left_to_the_library(stack, how):
    assert nf4_linear.packed(quantized(stack, 64, 256, **how)) is None


def test_a_weight_that_is_not_quantized_is_left_alone():
    assert nf4_linear.packed(torch.zeros(4, 4)) is None


def test_on_a_cpu_no_layer_is_changed(stack):
    layer = stack.bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    layer.weight = quantized(stack, 64, 64)
    with nf4_linear.used_in(stack, torch.nn.Sequential(layer), rows=1) as products:
        assert products == []
        assert "forward" not in vars(layer)


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (4, 4), (6, 1)])
def test_a_groups_queries_attend_as_each_would_alone(heads, kv_heads):
    torch.manual_seed(heads)
    batch, length, width = 3, 24, 16
    query = torch.randn(batch, heads, 1, width)
    key, value = torch.randn(2, batch, kv_heads, length, width)
    mask = torch.zeros(1, 1, 1, length)
    mask[..., 17:] = torch.finfo(torch.float32).min
    attend = grouped_attention._attend(torch)
    out, weights = attend(None, query, key, value, mask, scaling=0.25)
    each = heads // kv_heads
    expected = torch.nn.functional.scaled_dot_product_attention(
        query,
        key.repeat_interleave(each, 1),
        value.repeat_interleave(each, 1),
        attn_mask=mask,
        scale=0.25,
    )
    assert weights is None
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_more_than_one_token_is_refused():
    with pytest.raises(ValueError, match="not 2"):
        grouped_attention._attend(torch)(None, torch.zeros(1, 2, 2, 4), None, None, None)


def test_the_models_own_attention_is_back_afterwards():
    functions: dict[str, Any] = {}
    modules = SimpleNamespace(modeling_utils=SimpleNamespace(ALL_ATTENTION_FUNCTIONS=functions))
    stack: Any = SimpleNamespace(torch=torch, transformers=modules)
    model = SimpleNamespace(config=SimpleNamespace(_attn_implementation="sdpa"))
    seen = []

    def fail_inside() -> None:
        with grouped_attention.used_in(stack, model):
            seen.append((model.config._attn_implementation, list(functions)))
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert seen == [(grouped_attention.NAME, [grouped_attention.NAME])]
    assert (model.config._attn_implementation, functions) == ("sdpa", {})
