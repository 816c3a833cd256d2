"""Predictions before a search: padding of rows, memory, and the order of trials.

Not covered: the command on a model and a text; tests/system/tuning/test_inv_tune.py runs it.
"""

from typing import Any

import pytest

from bench.predict import memory, throughput
from tests.model_shapes import MISTRAL_7B as CONFIG

LENGTHS = [10, 100, 30, 200, 64, 65, 1, 128]


def share(make_trial, layout: str, lengths: list[int] = LENGTHS, **sizes: int) -> float:
    return throughput.useful_share(
        make_trial(layout=layout, **({"max_seq_len": 128, "micro_batch_size": 2} | sizes)), lengths
    )


def test_padded_rows_are_as_full_as_their_samples_cut_at_the_length(make_trial):
    assert share(make_trial, "pad") == pytest.approx((10 + 100 + 30 + 128 + 64 + 65 + 1 + 128) / (8 * 128))


def test_a_bucketed_batch_is_as_wide_as_the_next_multiple_above_its_longest(make_trial):
    # By length: 128 128 | 100 65 | 64 30 | 10 1, two per batch, each padded to a multiple of 64.
    assert share(make_trial, "bucket") == pytest.approx(526 / (2 * 128 + 2 * 128 + 2 * 64 + 2 * 64))
    # Data that fills no bucket is padded.
    assert share(make_trial, "bucket", [10, 20], micro_batch_size=4) == share(make_trial, "pad", [10, 20])


def test_packed_rows_are_full_and_rows_of_whole_samples_nearly(make_trial):
    assert share(make_trial, "pack") == 1.0
    assert share(make_trial, "pad") < share(make_trial, "varlen") == pytest.approx(526 / (256 * 3))


def test_samples_without_a_token_fill_nothing(make_trial):
    for layout in ("pad", "bucket", "varlen"):
        assert share(make_trial, layout, [*LENGTHS, 0, 0]) == share(make_trial, layout)


@pytest.mark.parametrize(("part", "expected"), [(1, 1), (50, 5), (90, 9), (91, 10), (100, 10)])
def test_a_percentile_is_a_length_that_this_share_of_samples_does_not_exceed(part, expected):
    assert throughput.percentile([10, 3, 1, 2, 5, 4, 9, 8, 7, 6], part) == expected


def test_a_candidate_is_ordered_by_its_rate_and_by_how_full_its_rows_are(make_trial):
    trial = make_trial(recipe="fast", max_seq_len=512, micro_batch_size=8)
    prediction = throughput.predict_trial(CONFIG, trial, [256] * 64)
    assert prediction["useful_share"] == 0.5
    assert prediction["score"] == pytest.approx(0.5 * throughput.positions_per_sec(CONFIG, trial))
    assert prediction["peak_bytes"] == memory.peak_bytes(CONFIG, trial)


def test_the_memory_of_a_held_layer_is_predicted_only_for_the_recipe_that_can_hold_one(make_trial):
    def layer_bytes(**changes: Any) -> int:
        return throughput.predict_trial(CONFIG, make_trial(max_seq_len=512, **changes), [256] * 64)["layer_bytes"]

    weights = 2 * 6_979_321_856 // 32  # one layer in 16 bits
    assert layer_bytes(recipe="fast") == pytest.approx(weights, abs=1)
    assert layer_bytes(recipe="fast", matmul="int8_backward") == pytest.approx(weights / 2, abs=1)
    assert layer_bytes(recipe="stock") == layer_bytes(recipe="reference") == 0


def test_recomputing_less_and_a_larger_batch_are_predicted_to_be_faster(make_trial):
    def rate(**changes: Any) -> float:
        fields = {"recipe": "fast", "max_seq_len": 512, "micro_batch_size": 8}
        return throughput.positions_per_sec(CONFIG, make_trial(**(fields | changes)))

    assert rate(gradient_checkpointing=False) > rate(checkpoint_every=4) > rate(checkpoint_every=2) > rate()
    assert rate(micro_batch_size=16) > rate() > rate(micro_batch_size=1)
    assert rate() > rate(recipe="stock") > rate(recipe="reference")
