"""What of this subject starts a process."""

import pytest


@pytest.mark.slow
def test_a_small_model_is_loaded_cold_and_warm_and_phase_by_phase(make_trial, tiny_model, tiny_data, measured):
    result, _ = measured(make_trial(kind="loading", model=str(tiny_model), data=str(tiny_data)))
    assert not any("were not given back" in flag for flag in result.flags)  # others speak of this machine
    found = {(m.name, m.context.get("cache")): m for m in result.measurements}
    for name in ("load_time_sec", "read_time_sec"):
        warm, cold = found[name, "warm"], found[name, "cold"]
        assert warm.value is not None
        assert warm.value > 0
        assert warm.interval is not None
        assert warm.interval.n == 3
        assert (cold.value is None) == (cold.note is not None and "would not drop" in cold.note)
    assert found["first_load_time_sec", "as found"].value
    assert found["quantize_time_sec", None].value
    assert (found["move_time_sec", None].value, found["move_time_sec", None].note) == (None, "no CUDA device")
    assert found["host_memory_peak_bytes", None].value
