"""The memory that a trial is predicted to need: what must hold whatever the fitted numbers are."""

import statistics

import pytest

from bench.predict import flops, memory, throughput
from bench.records import ALL_LINEAR, ATTENTION_PROJECTIONS, RECIPES
from tests.benchmarks.tune_replay import HELD_OUT, fitted_ratios, held_out_ratios
from tests.mistral_7b import CONFIG

KEPT = {"gradient_checkpointing": False}


def peak(make_trial, *, captured=False, **changes) -> int:
    trial = make_trial(**({"max_seq_len": 512, "micro_batch_size": 8} | changes))
    return memory.peak_bytes(CONFIG, trial, captured=captured)


@pytest.mark.parametrize("recipe", memory.RECIPES)
def test_more_positions_need_more_wherever_they_are_and_more_again_where_activations_are_kept(make_trial, recipe):
    for changes in ({}, KEPT):
        sizes = [peak(make_trial, recipe=recipe, micro_batch_size=batch, **changes) for batch in (1, 2, 4, 8, 16)]
        assert sizes == sorted(set(sizes)), changes
    assert peak(make_trial, recipe=recipe, max_seq_len=1024, micro_batch_size=4) == peak(make_trial, recipe=recipe)
    assert peak(make_trial, recipe=recipe, **KEPT) > peak(make_trial, recipe=recipe)


def test_fewer_layers_computed_again_need_more_and_the_hosts_memory_less(make_trial):
    every = [peak(make_trial, recipe="fast", checkpoint_every=number) for number in (1, 2, 4, 8)]
    assert every == sorted(set(every))
    assert peak(make_trial, recipe="fast", offload_checkpoints=True) < every[0]


def test_the_recipes_stand_in_the_order_that_was_measured(make_trial):
    reference, stock, fast = (peak(make_trial, recipe=recipe, **KEPT) for recipe in ("reference", "stock", "fast"))
    assert reference > stock > fast


def test_the_base_alone_is_what_its_formats_say(make_trial):
    blocks = 6_979_321_856  # weights in the linear layers of all 32 blocks
    nf4 = memory.weight_bytes(CONFIG, make_trial(recipe="fast"))
    assert nf4 == pytest.approx(blocks * (0.5 + 1 / 64 + 4 / 16384) + 2 * 2 * 4096 * 32768)
    held = memory.weight_bytes(CONFIG, make_trial(recipe="fast", held_layers=32))
    assert held - nf4 == pytest.approx(2 * blocks)
    assert memory.weight_bytes(CONFIG, make_trial(base_precision="bf16")) == pytest.approx(2 * 7_247_757_312)


def test_adapters_cost_what_their_optimizer_keeps(make_trial):
    small, large = make_trial(lora_rank=8, lora_alpha=16), make_trial(lora_rank=16)
    assert memory.trained_bytes(CONFIG, large) == 2 * memory.trained_bytes(CONFIG, small)
    plain = memory.trained_bytes(CONFIG, make_trial(optimizer="adamw_torch"))
    assert plain / memory.trained_bytes(CONFIG, large) == pytest.approx((4 + 8) / (4 + 2))


def test_every_recipe_has_its_numbers():
    assert set(memory.RECIPES) == set(RECIPES)


@pytest.mark.parametrize(("recipe", "pairs"), [("reference", 3), ("stock", 3), ("fast", 0)])
def test_samples_that_share_a_row_cost_memory_and_time_where_a_mask_keeps_them_apart(make_trial, recipe, pairs):
    trials = [
        make_trial(recipe=recipe, max_seq_len=512, micro_batch_size=32, layout=layout) for layout in ("pad", "varlen")
    ]
    alone, shared = (memory.peak_bytes(CONFIG, trial, captured=False) for trial in trials)
    assert shared - alone == pytest.approx(pairs * (32 * 512) ** 2, abs=1)
    alone, shared = (throughput.rate(CONFIG, trial) for trial in trials)
    assert (shared < 0.8 * alone) is (pairs > 0)


def activations(make_trial, batch: int = 4, **changes) -> int:
    """What as many more positions as `batch` rows of 512 have need."""
    return peak(make_trial, micro_batch_size=2 * batch, **changes) - peak(make_trial, micro_batch_size=batch, **changes)


@pytest.mark.parametrize(
    ("recipe", "layers", "targets", "fewer", "inputs"),
    [
        ("reference", 32, ALL_LINEAR, ATTENTION_PROJECTIONS, 4096 + 4096 + 14336),
        ("stock", 32, ALL_LINEAR, ATTENTION_PROJECTIONS, 4096 + 4096 + 14336),
        ("reference", 32, ATTENTION_PROJECTIONS, ("q_proj", "v_proj"), 4096 + 4096),
        ("stock", 1, ALL_LINEAR, ATTENTION_PROJECTIONS, 4096 + 4096 + 14336),  # computed again, one at a time
    ],
)
def test_an_adapter_has_its_input_in_each_layer_that_is_there_at_the_peak(
    make_trial, recipe, layers, targets, fewer, inputs
):
    changes = {"recipe": recipe, "gradient_checkpointing": layers == 1}
    some, all_of_them = (activations(make_trial, lora_targets=one, **changes) for one in (fewer, targets))
    assert all_of_them - some == pytest.approx(4 * 512 * layers * 3 * inputs, abs=2)


@pytest.mark.parametrize(("recipe", "inputs"), [("reference", 3 * 4096), ("stock", 4096)])
def test_without_dropout_an_input_is_kept_in_16_bit_and_by_stock_once_for_all(make_trial, recipe, inputs):
    some, more = (activations(make_trial, recipe=recipe, lora_dropout=p, **KEPT) for p in (0.0, 0.05))
    assert more - some == pytest.approx(4 * 512 * 32 * (3 * 4 * 4096 - 2 * inputs), abs=2)


def test_only_the_fast_recipe_has_its_gradients_beside_what_layers_keep(make_trial):
    for recipe, captured, bytes_each in (
        ("fast", False, 4 + 8 + 2 + 4), ("fast", True, 4 + 8 + 2 + 4 + 4), ("reference", True, 4 + 8)
    ):  # fmt: skip
        changes = {"recipe": recipe, "optimizer": "adamw_torch", "micro_batch_size": 1}
        small, large = (make_trial(max_seq_len=8, lora_rank=rank, lora_alpha=16, **changes) for rank in (8, 256))
        weights = [flops.adapter_weights(CONFIG, trial.lora_rank, trial.lora_targets) for trial in (small, large)]
        before, after = (memory.peak_bytes(CONFIG, trial, captured=captured) for trial in (small, large))
        assert (after - before) / (weights[1] - weights[0]) == pytest.approx(bytes_each, rel=0.01)


IN_8_BITS = {"recipe": "fast", "optimizer": "adamw_torch", "gradient_checkpointing": False, "products": "eight"}


@pytest.mark.parametrize(
    ("captured", "changes", "measured"),
    [
        (False, {"products": "eight_backward", "held_layers": 22}, 20.4),
        (True, {"gradient_checkpointing": True, "offload_checkpoints": True}, 4.126),
        (True, {"products": "bf16", "gradient_checkpointing": True, "offload_checkpoints": True}, 4.29),
        (True, {"products": "bf16", "held_layers": 11}, 20.445),
        (True, {"products": "eight_backward", "held_layers": 22}, 20.451),
        (True, {"held_layers": 19}, 20.28),
        (True, {"held_layers": 19, "max_seq_len": 1024, "micro_batch_size": 4}, 20.28),
        (True, {"held_layers": 17, "lora_targets": ALL_LINEAR}, 20.13),
        (True, {"held_layers": 19, "layout": "varlen"}, 20.28),
    ],
    ids=str,
)
def test_products_in_8_bits_and_captured_steps_take_the_memory_that_was_measured(
    make_trial, captured, changes, measured
):
    """GiB on an H200, as docs/performance.md has them; nothing was fitted to these."""
    found = peak(make_trial, captured=captured, **(IN_8_BITS | changes)) / 2**30
    assert found == pytest.approx(measured, rel=0.004 if captured else 0.01)


def test_the_constants_still_predict_the_peaks_that_were_measured():
    # 60 points that they were fitted to, and 25 chosen afterwards, all of H200s; the promise is 3 % and 8 %.
    measured = [fitted_ratios(), *map(held_out_ratios, HELD_OUT)]
    assert list(map(len, measured)) == [60, 9, 10, 6]
    for ratios in measured:
        errors = [abs(ratio - 1.0) for ratio in ratios]
        assert statistics.median(errors) < 0.01
        assert max(errors) < 0.03
