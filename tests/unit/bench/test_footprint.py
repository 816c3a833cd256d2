"""The memory that a trial is predicted to need: what must hold whatever the fitted numbers are."""

import pytest

from bench import flops, footprint, survey

MISTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
}
GIB = 2**30
KEPT = {"gradient_checkpointing": False}


def peak(make_trial, **changes) -> int:
    return footprint.peak_bytes(MISTRAL, make_trial(**({"max_seq_len": 512, "micro_batch_size": 8} | changes)))


@pytest.mark.parametrize("recipe", footprint.RECIPES)
@pytest.mark.parametrize("changes", [{}, KEPT])
def test_more_positions_need_more(make_trial, recipe, changes):
    sizes = [peak(make_trial, recipe=recipe, micro_batch_size=batch, **changes) for batch in (1, 2, 4, 8, 16)]
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("recipe", footprint.RECIPES)
def test_positions_count_wherever_they_are(make_trial, recipe):
    assert peak(make_trial, recipe=recipe, max_seq_len=1024, micro_batch_size=4) == peak(make_trial, recipe=recipe)


@pytest.mark.parametrize("recipe", footprint.RECIPES)
def test_keeping_activations_needs_more_than_computing_them_again(make_trial, recipe):
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
    nf4 = footprint.weight_bytes(MISTRAL, make_trial(recipe="fast"))
    assert nf4 == pytest.approx(blocks * (0.5 + 1 / 64 + 4 / 16384) + 2 * 2 * 4096 * 32768)
    held = footprint.weight_bytes(MISTRAL, make_trial(recipe="fast", held_layers=32))
    assert held - nf4 == pytest.approx(2 * blocks)
    assert footprint.weight_bytes(MISTRAL, make_trial(base_precision="bf16")) == pytest.approx(2 * 7_247_757_312)


def test_adapters_cost_what_their_optimizer_keeps(make_trial):
    small, large = make_trial(lora_rank=8, lora_alpha=16), make_trial(lora_rank=16)
    assert footprint.trained_bytes(MISTRAL, large) == 2 * footprint.trained_bytes(MISTRAL, small)
    plain = footprint.trained_bytes(MISTRAL, make_trial(optimizer="adamw_torch"))
    assert plain / footprint.trained_bytes(MISTRAL, large) == pytest.approx((4 + 8) / (4 + 2))


def test_every_recipe_has_its_numbers():
    from bench.trial import RECIPES

    assert set(footprint.RECIPES) == set(RECIPES)


@pytest.mark.parametrize(("recipe", "pairs"), [("reference", 3), ("stock", 3), ("fast", 0)])
def test_samples_that_share_a_row_cost_a_mask_over_it_where_a_mask_keeps_them_apart(make_trial, recipe, pairs):
    alone = peak(make_trial, recipe=recipe, micro_batch_size=32, layout="pad")
    shared = peak(make_trial, recipe=recipe, micro_batch_size=32, layout="varlen")
    assert shared - alone == pytest.approx(pairs * (32 * 512) ** 2, abs=1)


@pytest.mark.parametrize(("recipe", "is_slower"), [("reference", True), ("stock", True), ("fast", False)])
def test_that_mask_is_predicted_to_cost_time_too(make_trial, recipe, is_slower):
    def rate(layout: str) -> float:
        trial = make_trial(recipe=recipe, max_seq_len=512, micro_batch_size=32, layout=layout)
        return survey.rate(MISTRAL, trial)

    assert (rate("varlen") < 0.8 * rate("pad")) is is_slower


@pytest.mark.parametrize(("recipe", "each"), [("reference", 3), ("stock", 3)])
def test_adapters_beyond_attention_keep_their_inputs_where_layers_are_kept(make_trial, recipe, each):
    def activations(batch: int, targets: tuple[str, ...]) -> int:
        changes = {"recipe": recipe, "lora_targets": targets, "gradient_checkpointing": False}
        return peak(make_trial, micro_batch_size=2 * batch, **changes) - peak(
            make_trial, micro_batch_size=batch, **changes
        )

    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    more = activations(4, (*attention, "gate_proj", "up_proj", "down_proj")) - activations(4, attention)
    assert more == pytest.approx(4 * 512 * 32 * each * (4096 + 4096 + 14336), abs=2)


def test_only_the_fast_recipe_has_its_gradients_beside_what_layers_keep(make_trial):
    for recipe, bytes_each in (("fast", 4 + 8 + 2 + 4), ("reference", 4 + 8)):
        changes = {"recipe": recipe, "optimizer": "adamw_torch", "micro_batch_size": 1}
        small, large = (make_trial(max_seq_len=8, lora_rank=rank, lora_alpha=16, **changes) for rank in (8, 256))
        weights = [flops.adapter_weights(MISTRAL, trial.lora_rank, trial.lora_targets) for trial in (small, large)]
        grown = footprint.peak_bytes(MISTRAL, large) - footprint.peak_bytes(MISTRAL, small)
        assert grown / (weights[1] - weights[0]) == pytest.approx(bytes_each, rel=0.01)
