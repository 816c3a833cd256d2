"""The tiny loading trial, run in a process."""

import pytest


@pytest.mark.slow
def test_a_small_model_is_loaded_first_and_warm(make_trial, tiny_model, tiny_data, run_trial):
    result, _ = run_trial(make_trial(kind="loading", model=str(tiny_model), data=str(tiny_data)))
    assert not any("were not freed" in flag for flag in result.flags)  # other flags depend on this machine
    measurements = {(m.name, m.context.get("cache")): m for m in result.measurements}
    warm = measurements["load_time_sec", "warm"]
    assert (warm.value > 0, warm.interval.n) == (True, 3)
    assert measurements["first_load_time_sec", "as found"].value
    assert measurements["host_memory_peak_bytes", None].value
