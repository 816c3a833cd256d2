"""What of this subject starts a process."""

import pytest


@pytest.mark.slow
def test_the_result_says_which_recipe_ran(make_trial, tiny_model, tiny_data, measured):
    result, _ = measured(
        make_trial(model=str(tiny_model), data=str(tiny_data), recipe="fast", layout="varlen", max_seq_len=64)
    )
    assert result.fingerprint["recipe"] == "fast"
    assert result.metrics.padding_percent < 25
