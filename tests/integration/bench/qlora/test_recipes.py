"""A trial that reports its recipe, run in a process."""

import pytest


@pytest.mark.slow
def test_the_result_names_the_recipe_that_ran(make_trial, tiny_model, tiny_data, run_trial):
    result, _ = run_trial(
        make_trial(model=str(tiny_model), data=str(tiny_data), recipe="fast", layout="varlen", max_seq_len=64)
    )
    assert result.fingerprint["recipe"] == "fast"
    assert result.metrics.padding_percent < 25
