"""Predicted memory of a trial: properties that hold for any fitted numbers."""

import statistics

import pytest

from bench.predict import flops, memory, throughput
from bench.qlora import step
from bench.qlora.step import sized_config
from bench.records.trial import RECIPES
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.benchmarks.predicted_memory import GRID, HELD_OUT, memory_ratios
from tests.model_shapes import MISTRAL_7B as CONFIG
from tests.model_shapes import SHAPES
from tests.support import tiny_models, tiny_training
from tests.support.cases import load_cases

pytestmark = pytest.mark.slow

SAVED = {"gradient_checkpointing": False}


def peak(make_trial, *, captured=False, **changes) -> int:
    trial = make_trial(**({"max_seq_len": 512, "micro_batch_size": 8} | changes))
    return memory.peak_bytes(CONFIG, trial, captured=captured)


@pytest.mark.parametrize("recipe", memory.RECIPES)
def test_more_positions_need_more_memory_and_saved_activations_need_more_still(make_trial, recipe):
    for changes in ({}, SAVED):
        sizes = [peak(make_trial, recipe=recipe, micro_batch_size=batch, **changes) for batch in (1, 2, 4, 8, 16)]
        assert sizes == sorted(set(sizes)), changes
    assert peak(make_trial, recipe=recipe, max_seq_len=1024, micro_batch_size=4) == peak(make_trial, recipe=recipe)
    assert peak(make_trial, recipe=recipe, **SAVED) > peak(make_trial, recipe=recipe)


def test_the_base_takes_the_bytes_of_its_formats(make_trial):
    blocks = 6_979_321_856  # weights in the linear layers of all 32 blocks
    nf4 = memory.base_bytes(CONFIG, make_trial(recipe="fast"))
    assert nf4 == pytest.approx(blocks * (0.5 + 1 / 64 + 4 / 16384) + 2 * 2 * 4096 * 32768)
    held = memory.base_bytes(CONFIG, make_trial(recipe="fast", held_layers=32))
    assert held - nf4 == pytest.approx(2 * blocks)
    assert memory.base_bytes(CONFIG, make_trial(base_precision="bf16")) == pytest.approx(2 * 7_247_757_312)


def test_adapters_take_their_weights_and_optimizer_state(make_trial):
    small, large = make_trial(lora_rank=8, lora_alpha=16), make_trial(lora_rank=16)
    assert memory.adapter_bytes(CONFIG, large) == 2 * memory.adapter_bytes(CONFIG, small)
    plain = memory.adapter_bytes(CONFIG, make_trial(optimizer="adamw_torch"))
    assert plain / memory.adapter_bytes(CONFIG, large) == pytest.approx((4 + 8) / (4 + 2))


def test_every_recipe_has_a_memory_model():
    assert set(memory.RECIPES) == set(RECIPES)


@pytest.mark.parametrize(("recipe", "pairs"), [("reference", 3), ("stock", 3), ("fast", 0)])
def test_samples_that_share_a_row_cost_memory_and_time_if_a_mask_separates_them(make_trial, recipe, pairs):
    trials = [
        make_trial(recipe=recipe, max_seq_len=512, micro_batch_size=32, layout=layout) for layout in ("pad", "varlen")
    ]
    separate, shared = (memory.peak_bytes(CONFIG, trial, captured=False) for trial in trials)
    assert shared - separate == pytest.approx(pairs * (32 * 512) ** 2, abs=1)
    separate, shared = (throughput.positions_per_sec(CONFIG, trial) for trial in trials)
    assert (shared < 0.8 * separate) is (pairs > 0)


def activations(make_trial, batch: int = 4, **changes) -> int:
    """Predict the memory that another `batch` rows of 512 positions need."""
    return peak(make_trial, micro_batch_size=2 * batch, **changes) - peak(make_trial, micro_batch_size=batch, **changes)


@pytest.mark.parametrize(
    ("recipe", "layers", "targets", "fewer", "inputs"),
    [
        ("reference", 32, ALL_LINEAR, ATTENTION_PROJECTIONS, 4096 + 4096 + 14336),
        ("stock", 1, ALL_LINEAR, ATTENTION_PROJECTIONS, 4096 + 4096 + 14336),  # recomputed, one at a time
    ],
)
def test_an_adapters_input_counts_in_each_layer_that_exists_at_the_peak(
    make_trial, recipe, layers, targets, fewer, inputs
):
    changes = {"recipe": recipe, "gradient_checkpointing": layers == 1}
    small = activations(make_trial, lora_targets=fewer, **changes)
    large = activations(make_trial, lora_targets=targets, **changes)
    assert large - small == pytest.approx(4 * 512 * layers * 3 * inputs, abs=2)


@pytest.mark.parametrize(("recipe", "inputs"), [("reference", 3 * 4096), ("stock", 4096)])
def test_without_dropout_an_input_is_saved_in_16_bit_and_by_stock_once_for_all(make_trial, recipe, inputs):
    without, dropout = (activations(make_trial, recipe=recipe, lora_dropout=p, **SAVED) for p in (0.0, 0.05))
    assert dropout - without == pytest.approx(4 * 512 * 32 * (3 * 4 * 4096 - 2 * inputs), abs=2)


def test_only_the_fast_recipe_has_its_gradients_together_with_saved_activations(make_trial):
    for recipe, captured, bytes_each in (
        ("fast", False, 4 + 8 + 2 + 4), ("fast", True, 4 + 8 + 2 + 4 + 4), ("reference", True, 4 + 8)
    ):  # fmt: skip
        changes = {"recipe": recipe, "optimizer": "adamw_torch", "micro_batch_size": 1}
        small, large = (make_trial(max_seq_len=8, lora_rank=rank, lora_alpha=16, **changes) for rank in (8, 256))
        weights = [flops.adapter_weights(CONFIG, trial.lora_rank, trial.lora_targets) for trial in (small, large)]
        before, after = (memory.peak_bytes(CONFIG, trial, captured=captured) for trial in (small, large))
        assert (after - before) / (weights[1] - weights[0]) == pytest.approx(bytes_each, rel=0.01)


IN_8_BITS = {"recipe": "fast", "optimizer": "adamw_torch", "gradient_checkpointing": False, "matmul": "int8"}


@pytest.mark.parametrize("case", load_cases(__file__, "measured_memory.yaml"))
def test_products_in_8_bits_and_captured_steps_take_the_measured_memory(make_trial, case):
    changes, captured = IN_8_BITS | case["input"], case["captured"]
    changes |= {"lora_targets": ALL_LINEAR} if "lora_targets" in changes else {}
    trial = make_trial(**({"max_seq_len": 512, "micro_batch_size": 8} | changes))
    predicted = memory.peak_bytes(SHAPES[case.get("shape", "mistral-7b")].config, trial, captured=captured) / 2**30
    assert predicted == pytest.approx(case["expected"], rel=0.004 if captured else 0.02)


A10_BYTES = 23_680_000_000  # 22.05 GiB


@pytest.mark.parametrize(("held", "fits"), [(18, True), (19, False)])
def test_held_layers_leave_half_a_gib_of_an_a10(make_trial, held, fits):
    predicted = peak(make_trial, captured=True, **(IN_8_BITS | {"held_layers": held}))
    assert (memory.device_bytes(predicted) + memory.SPARE_BYTES <= A10_BYTES) is fits
    assert (predicted <= memory.largest_peak(A10_BYTES)) is fits


def test_the_memory_of_the_device_is_the_measured_one():
    assert memory.device_bytes(20.4 * 2**30) == pytest.approx(21.98 * 2**30, rel=0.001)
    assert memory.largest_peak(1 << 30) == 0


def test_the_constants_still_predict_the_measured_peaks():
    # 60 fitted points and 25 chosen afterwards, all of H200s; the documented error is 3 % and 8 %.
    measured = list(map(memory_ratios, (GRID, *HELD_OUT)))
    assert list(map(len, measured)) == [60, 9, 10, 6]
    for ratios in measured:
        errors = [abs(ratio - 1.0) for ratio in ratios]
        assert statistics.median(errors) < 0.01
        assert max(errors) < 0.03


MIXTURE = {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "tie_word_embeddings": False}
# By type: sizes of a published mixture; its weights in NF4 and those of a token in 10**9; GiB of the base, and of the
# peak of `stock` at 512 x 8 with all layers recomputed.
MIXTURES = {
    "qwen3_moe": (  # Qwen3-30B-A3B
        {**MIXTURE, "hidden_size": 2048, "num_hidden_layers": 48, "moe_intermediate_size": 768, "num_experts": 128,
         "num_experts_per_tok": 8, "vocab_size": 151936},
        (29.90, 2.72, 15.5, 17.6),
    ),
    "gpt_oss": (  # gpt-oss-20b
        {**MIXTURE, "hidden_size": 2880, "num_hidden_layers": 24, "intermediate_size": 2880, "num_local_experts": 32,
         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088},
        (19.75, 3.03, 11.7, 13.8),
    ),
    "llama4_text": (  # Llama 4 Scout, 109B
        {**MIXTURE, "hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 8192, "num_local_experts": 16,
         "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 202048, "interleave_moe_layer_step": 1},
        (105.70, 15.10, 54.6, 60.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("model_type", MIXTURES)
def test_a_mixtures_memory_follows_from_what_the_model_says_is_quantized(modules, make_trial, tmp_path, model_type):
    sizes, expected = MIXTURES[model_type]
    tiny_models.write_shapes(modules, tmp_path, model_type, **sizes)
    trial = make_trial(
        model=str(tmp_path), recipe="stock", optimizer="adamw_torch", max_seq_len=512, micro_batch_size=8
    )
    config = sized_config(trial)
    weights = (flops.block_weights(config), flops.block_weights(config, active=True))
    sizes_gib = (memory.base_bytes(config, trial) / 2**30, memory.peak_bytes(config, trial) / 2**30)
    assert (*(number / 1e9 for number in weights), *sizes_gib) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize(
    ("model_type", "layers", "measured_gib"),
    [("gpt_neox", 4, 4.86), ("phi", 2, 2.95), ("qwen2_moe", 2, 8.81)],
)  # by `tests.benchmarks.every_type --peaks` on one H200
def test_logits_are_in_memory_where_liger_has_no_loss(
    modules, make_trial, monkeypatch, tmp_path, model_type, layers, measured_gib
):
    monkeypatch.setattr(step, "has_liger", lambda: True)
    monkeypatch.setattr(step, "liger_patch", lambda _config: None)
    tiny_models.write_shapes(modules, tmp_path, model_type, num_hidden_layers=layers)
    trial = make_trial(
        model=str(tmp_path), recipe="stock", optimizer="adamw_torch", max_seq_len=512, micro_batch_size=8
    )
    assert memory.peak_bytes(sized_config(trial), trial) / 2**30 == pytest.approx(measured_gib, rel=0.04)


@pytest.mark.parametrize(
    ("shape", "fields", "measured_gib", "error_gib"),
    [
        # by `tests.benchmarks.train_hours` on one H200, rows of 4,096 tokens; the last one reported, 8 x 512 recomputed
        ("mistral-7b", {"gradient_checkpointing": False, "held_layers": 32}, 29.004, 0.02),
        ("smollm2-135m", {"gradient_checkpointing": False, "held_layers": 30}, 1.787, 0.02),
        ("smollm2-135m", {"gradient_checkpointing": True}, 0.43, 0.01),
    ],
)
def test_a_training_needs_what_was_measured_with_its_evaluations(tmp_path, shape, fields, measured_gib, error_gib):
    row = {"max_seq_len": 512, "micro_batch_size": 8, "lora_rank": 16, "layout": "varlen"}
    trial = tiny_training.plan(tmp_path, tmp_path / "d.jsonl", recipe="fast", **row, **fields)
    predicted = memory.peak_bytes(SHAPES[shape].config, trial)
    assert abs(predicted / 2**30 - measured_gib) <= error_gib
