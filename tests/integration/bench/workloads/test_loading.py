"""The tiny loading trial, run in a process."""

import pytest


@pytest.mark.slow
def test_a_small_model_is_loaded_and_phase_by_phase(make_trial, tiny_model, tiny_data, run_trial):
    result, _ = run_trial(make_trial(kind="loading", model=str(tiny_model), data=str(tiny_data)))
    assert not any("were not freed" in flag for flag in result.flags)  # other flags depend on this machine
    measurements = {(m.name, m.context.get("cache")): m for m in result.measurements}
    for name in ("load_time_sec", "read_time_sec"):
        warm = measurements[name, "warm"]
        assert warm.value is not None
        assert warm.value > 0
        assert warm.interval is not None
        assert warm.interval.n == 3
    assert measurements["first_load_time_sec", "as found"].value
    assert measurements["quantize_time_sec", None].value
    assert (measurements["move_time_sec", None].value, measurements["move_time_sec", None].note) == (
        None,
        "no CUDA device",
    )
    assert measurements["host_memory_peak_bytes", None].value
