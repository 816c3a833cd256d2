"""Loading and inference on a real GPU: every batch is measured, and loading frees its memory."""

from typing import Any

import pytest

from bench.records import choose, suite
from bench.records.result import Measurement, TrialResult
from bench.records.status import TrialStatus
from bench.workloads.loading import LEFTOVER_BYTES
from tests.support.gpu import on_gpu, run_trial

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu, pytest.mark.usefixtures("_cuda")]


@pytest.fixture
def measure_trial(tiny_model, demo_data, tmp_path) -> Any:
    """Run a trial of the suites at the gpu profile, on the small model; its measurements by name and context."""

    def run(suite_name: str, trial_id: str) -> tuple[TrialResult, Any]:
        (trial,) = choose(suite(suite_name, "gpu", str(tiny_model), str(demo_data)), (trial_id,))
        result = run_trial(trial, tmp_path)
        assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)

        def find(name: str, **context: Any) -> Measurement:
            matches = [m for m in result.measurements if m.name == name and context.items() <= m.context.items()]
            assert len(matches) == 1, (name, context, matches)
            return matches[0]

        return result, find

    return run


@pytest.mark.parametrize("precision", ["nf4", "bf16"])
def test_every_batch_is_measured_on_both_paths(measure_trial, precision):
    _, find = measure_trial("inference", f"generate-{precision}")
    for batch in (1, 2, 4, 8, 16, 32):
        for path in ("base", "adapter"):
            for name in ("time_to_first_token_sec", "decode_tokens_per_sec", "peak_memory_bytes"):
                assert find(name, batch=batch, path=path).value > 0
    assert find("largest_batch_sequences", path="adapter").value == 32


@pytest.mark.parametrize("precision", ["nf4", "bf16"])
def test_a_load_frees_its_memory(measure_trial, precision):
    result, find = measure_trial("loading", f"load-{precision}")
    assert find("load_time_sec", cache="warm").interval.n == 3
    parameter_bytes = result.fingerprint["model_parameters"] * 2
    held = find("device_memory_bytes").value
    assert held < 0.9 * parameter_bytes if precision == "nf4" else held >= parameter_bytes
    assert find("device_memory_peak_bytes").value >= held
    assert find("device_memory_share_percent").value > 0
    assert 0 <= find("device_memory_leftover_bytes").value <= LEFTOVER_BYTES
    assert not any("were not freed" in flag for flag in result.flags)
