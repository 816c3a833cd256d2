"""FLOP counts checked in three ways: by hand for Mistral-7B, on a small model's tensors, and by torch's counter."""

import math

import pytest

from bench.predict import flops
from bench.records.validation import ATTENTION_PROJECTIONS
from tests.model_shapes import MISTRAL_7B as CONFIG
from tests.model_shapes import SHAPES
from tests.unit.bench.architectures.test_architecture import CONFIG as LLAMA

TINY = LLAMA | {"model_type": "mistral", "tie_word_embeddings": False}


def parameters(config):
    """Count all parameters: blocks, two norms per block and one at the end, embeddings and the output layer."""
    norms = (2 * config["num_hidden_layers"] + 1) * config["hidden_size"]
    return flops.block_weights(config) + norms + 2 * flops.head_weights(config)


def test_mistral_7b_has_its_published_parameters():
    # One block by hand: q and o 2 x 4096^2, k and v 2 x 4096 x 1024, gate, up and down 3 x 4096 x 14336.
    block = 33_554_432 + 8_388_608 + 176_160_768
    assert flops.block_weights(CONFIG) == 32 * block == 6_979_321_856
    assert flops.head_weights(CONFIG) == 134_217_728
    assert parameters(CONFIG) == SHAPES["mistral-7b"].parameters
    # Tied embeddings are still a product.
    assert flops.head_weights(CONFIG | {"tie_word_embeddings": True}) == 134_217_728


def test_mistral_7b_has_the_expected_adapter_weights():
    # A block by hand: 16 x (q 8192 + k 5120 + v 5120 + o 8192).
    assert flops.adapter_weights(CONFIG, 16, ATTENTION_PROJECTIONS) == 32 * 16 * 26_624 == 13_631_488
    assert flops.adapter_weights(CONFIG, 8, ATTENTION_PROJECTIONS) == 13_631_488 // 2


def test_mistral_7bs_flop_per_token_equal_those_computed_by_hand():
    cost = flops.per_token(CONFIG, sequence=512, rank=16, targets=ATTENTION_PROJECTIONS, checkpointing=True)
    base, adapters, attention = 7_113_539_584, 13_631_488, 4 * 32 * 4096 * 512
    assert flops.attention_forward(CONFIG, 512) == attention == 268_435_456
    assert cost.forward == 2 * base + 2 * adapters + attention == 14_522_777_600
    assert cost.backward == 2 * base + 4 * adapters + 2 * attention == 14_818_476_032
    assert cost.recompute == 2 * (base - 134_217_728) + 2 * adapters + attention == 14_254_342_144
    assert cost.model == cost.forward + cost.backward == 29_341_253_632
    kept = flops.per_token(CONFIG, sequence=512, rank=16, targets=ATTENTION_PROJECTIONS, checkpointing=False)
    assert kept.recompute == 0
    windowed = CONFIG | {"sliding_window": 1024}
    assert flops.attention_forward(windowed, 2048) == flops.attention_forward(windowed, 1024) == 2 * attention


def test_mfu_of_a_fully_used_device_is_a_hundred():
    assert flops.mfu_percent(29.3e9, 1000.0, 29.3) == pytest.approx(100.0)
    assert flops.mfu_percent(29.3e9, 748.0, 125.0) == pytest.approx(17.53, abs=0.01)


def test_torch_counts_the_same_products_in_a_small_model():
    """Compare with torch's counter, forward and backward, with a gradient for the embeddings' output."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    model = transformers.MistralForCausalLM(transformers.MistralConfig(**TINY, attn_implementation="eager"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters(TINY)
    rows, sequence = 2, 16
    ids = torch.randint(0, 64, (rows, sequence))
    for parameter in model.parameters():
        parameter.requires_grad_(requires_grad=False)
    model.enable_input_require_grads()
    expected = flops.per_token(TINY, sequence=sequence, rank=1, targets=(), checkpointing=False)
    with FlopCounterMode(display=False) as counter:
        loss = model(input_ids=ids, labels=ids).loss
    # torch also counts the rotary embedding's outer product of positions and frequencies.
    rotary = 2 * sequence * (32 // 4 // 2)
    assert counter.get_total_flops() - rows * sequence * expected.forward in (0, rotary)
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    assert math.isclose(counter.get_total_flops(), rows * sequence * expected.backward)


@pytest.mark.parametrize("name", SHAPES)
def test_a_published_shape_has_the_weights_and_products_of_transformers_model(name):
    """Build the model without memory for its weights, with two of its layers, and count its forward products."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    shape = SHAPES[name]
    config = shape.config | {"num_hidden_layers": 2}
    with torch.device("meta"):
        settings = transformers.AutoConfig.for_model(**config, attn_implementation="eager")
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
        ids = torch.zeros((1, 16), dtype=torch.int64)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(input_ids=ids)
    blocks = list(model.model.layers)
    linear = [module for block in blocks for module in block.modules() if isinstance(module, torch.nn.Linear)]
    assert flops.block_weights(config) == sum(module.weight.numel() for module in linear)
    per_block = sum(parameter.numel() for parameter in blocks[0].parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total + (shape.config["num_hidden_layers"] - 2) * per_block == shape.parameters
    expected = flops.per_token(config, sequence=16, rank=1, targets=(), checkpointing=False).forward
    assert counter.get_total_flops() == pytest.approx(16 * expected, rel=1e-4)  # and the rotation's outer product
