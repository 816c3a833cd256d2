"""FLOP counts by hand for Mistral-7B, and by torch's counter for transformers' models of published shapes."""

import pytest

from bench.predict import flops
from bench.records.validation import ATTENTION_PROJECTIONS
from tests.model_shapes import MISTRAL_7B as CONFIG
from tests.model_shapes import SHAPES


def test_mistral_7b_has_its_published_parameters():
    # One block by hand: q and o 2 x 4096^2, k and v 2 x 4096 x 1024, gate, up and down 3 x 4096 x 14336.
    block = 33_554_432 + 8_388_608 + 176_160_768
    assert flops.block_weights(CONFIG) == 32 * block == 6_979_321_856
    assert flops.head_weights(CONFIG) == 134_217_728
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


@pytest.mark.parametrize("name", SHAPES)
def test_a_published_shape_has_the_weights_and_products_of_transformers_model(name):
    """Build the model without memory for its weights, with two of its layers, and count its products."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode

    shape = SHAPES[name]
    config = shape.config | {"num_hidden_layers": 2}
    with torch.device("meta"):
        settings = transformers.AutoConfig.for_model(**config, attn_implementation="eager")
        model = transformers.AutoModelForCausalLM.from_config(settings, attn_implementation="eager")
        ids = torch.zeros((1, 16), dtype=torch.int64)
        model.requires_grad_(False).enable_input_require_grads()
        with FlopCounterMode(display=False) as forward:
            loss = model(input_ids=ids, labels=ids).loss
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    blocks = list(model.model.layers)
    linear = [module for block in blocks for module in block.modules() if isinstance(module, torch.nn.Linear)]
    assert flops.block_weights(config) == sum(module.weight.numel() for module in linear)
    per_block = sum(parameter.numel() for parameter in blocks[0].parameters())
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total + (shape.config["num_hidden_layers"] - 2) * per_block == shape.parameters
    expected = flops.per_token(config, sequence=16, rank=1, targets=(), checkpointing=False)
    # torch also counts the rotation's outer product of positions and frequencies.
    assert forward.get_total_flops() == pytest.approx(16 * expected.forward, rel=1e-4)
    assert backward.get_total_flops() == pytest.approx(16 * expected.backward, rel=1e-4)
