"""The tiny hardware trial, run in a process."""

import pytest

from bench.records import suite
from bench.workloads.hardware import TINY


@pytest.mark.slow
def test_the_tiny_hardware_trial_measures_everything_this_machine_supports(tiny_model, tiny_data, run_trial):
    (trial,) = suite("hardware", "tiny", str(tiny_model), str(tiny_data))
    result, _ = run_trial(trial)
    products = [m for m in result.measurements if m.name == "matmul_tflops"]
    assert [(m.context["dtype"], m.context["size"]) for m in products] == [
        (d, s) for d in TINY.dtypes for s in TINY.sizes
    ]
    assert all(m.value > 0 and m.interval is not None and m.share_percent is None for m in products)
    values = {m.name: m.value for m in result.measurements}
    assert values["device_copy_gb_per_sec"] > 0.1
    assert values["host_to_device_gb_per_sec"] is None
