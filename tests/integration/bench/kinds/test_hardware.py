"""What of this subject starts a process."""

import subprocess
import sys

import pytest

from bench.kinds.hardware import TINY
from bench.records import suite
from bench.records.result import End, TrialResult


@pytest.mark.slow
def test_the_tiny_hardware_trial_measures_everything_this_machine_has(
    bench_environment, tiny_model, tiny_data, tmp_path
):
    (trial,) = suite("hardware", "tiny", str(tiny_model), str(tiny_data))
    (tmp_path / "trial.json").write_text(trial.to_text())
    argv = (
        sys.executable,
        "-m",
        "bench",
        "run",
        "--trial",
        str(tmp_path / "trial.json"),
        "--out",
        str(tmp_path / "out"),
    )
    done = subprocess.run(argv, env=bench_environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    result = TrialResult.read(tmp_path / "out" / "result.json")
    assert result.status == End.SUCCEEDED
    products = [m for m in result.measurements if m.name == "matmul_tflops"]
    assert [(m.context["dtype"], m.context["size"]) for m in products] == [
        (d, s) for d in TINY.dtypes for s in TINY.sizes
    ]
    assert all(m.value > 0 and m.interval is not None and m.share_percent is None for m in products)
    values = {m.name: m.value for m in result.measurements}
    assert values["device_copy_gb_per_sec"] > 0.1
    assert values["disk_read_gb_per_sec"] > 0
    assert values["host_to_device_gb_per_sec"] is None
    assert result.fingerprint["chip_source"] is None
