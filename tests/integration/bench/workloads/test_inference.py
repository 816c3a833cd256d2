"""The tiny inference trial, run in a process."""

import pytest


@pytest.mark.slow
def test_a_small_model_answers_batches_of_one_and_two(make_trial, tiny_model, tiny_data, run_trial):
    shape = {"micro_batch_size": 2, "new_tokens": 3}
    result, _ = run_trial(make_trial(kind="inference", model=str(tiny_model), data=str(tiny_data), **shape))
    measurements = {(m.name, m.context.get("batch"), m.context.get("path")): m for m in result.measurements}
    for path in ("base", "adapter"):
        for batch in (1, 2):
            for name in ("time_to_first_token_sec", "prefill_tokens_per_sec", "decode_tokens_per_sec"):
                measurement = measurements[name, batch, path]
                assert measurement.value is not None
                assert measurement.value > 0
                assert measurement.interval is not None
                assert measurement.interval.n == 3
        assert measurements["largest_batch_sequences", None, path].value == 2
