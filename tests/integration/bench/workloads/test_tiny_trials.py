"""The tiny trials of single measurements, each run in a process."""

import pytest

from bench.workloads.hardware import TINY

pytestmark = pytest.mark.slow


@pytest.fixture
def measured(make_trial, tiny_model, tiny_data, run_trial):
    """Return a function that runs a trial; it returns its measurements by name and some of their context."""

    def run(kind: str, *keys: str, **changes: int):
        result, _ = run_trial(make_trial(kind=kind, model=str(tiny_model), data=str(tiny_data), **changes))
        assert not any("were not freed" in flag for flag in result.flags)  # other flags depend on this machine
        return {(m.name, *map(m.context.get, keys)): m for m in result.measurements}

    return run


def test_hardware_measures_everything_that_this_machine_supports(measured):
    measurements = measured("hardware", "dtype", "size")
    products = [measurements["matmul_tflops", dtype, size] for dtype in TINY.dtypes for size in TINY.sizes]
    assert all(m.value > 0 and m.interval is not None and m.share_percent is None for m in products)
    assert measurements["device_copy_gb_per_sec", None, None].value > 0.1
    assert measurements["host_to_device_gb_per_sec", None, None].value is None


def test_a_small_model_is_loaded_first_and_warm(measured):
    measurements = measured("loading", "cache")
    warm = measurements["load_time_sec", "warm"]
    assert (warm.value > 0, warm.interval.n) == (True, 3)
    assert measurements["first_load_time_sec", "as found"].value
    assert measurements["host_memory_peak_bytes", None].value


def test_a_small_model_answers_batches_of_one_and_two(measured):
    measurements = measured("inference", "batch", "path", micro_batch_size=2, new_tokens=3)
    for path in ("base", "adapter"):
        for name in ("time_to_first_token_sec", "prefill_tokens_per_sec", "decode_tokens_per_sec"):
            assert [measurements[name, batch, path].interval.n for batch in (1, 2)] == [3, 3]
            assert all(measurements[name, batch, path].value > 0 for batch in (1, 2))
        assert measurements["largest_batch_sequences", None, path].value == 2
