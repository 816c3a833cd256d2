"""The order of configurations by their predicted speed."""

from typing import Any

from bench.predict import throughput
from tests.model_shapes import MISTRAL_7B as CONFIG


def test_recomputing_less_and_a_larger_batch_are_predicted_to_be_faster(make_trial):
    def rate(**changes: Any) -> float:
        fields = {"recipe": "fast", "max_seq_len": 512, "micro_batch_size": 8}
        return throughput.positions_per_sec(CONFIG, make_trial(**(fields | changes)))

    assert rate(gradient_checkpointing=False) > rate(checkpoint_every=4) > rate(checkpoint_every=2) > rate()
    assert rate(micro_batch_size=16) > rate() > rate(micro_batch_size=1)
    assert rate() > rate(recipe="stock") > rate(recipe="reference")
