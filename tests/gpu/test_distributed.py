"""Distributed trials through NCCL with a small model, on the available GPUs."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.gpu import environment, on_gpu

TRIAL_SEC = 300.0
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), on_gpu]


@pytest.fixture
def run(make_trial, tiny_model, demo_data, tmp_path) -> Callable[[int], subprocess.CompletedProcess[str]]:
    def start(world_size: int) -> subprocess.CompletedProcess[str]:
        trial = make_trial(
            kind="distributed",
            world_size=world_size,
            model=str(tiny_model),
            data=str(demo_data),
            max_seq_len=128,
            micro_batch_size=8,
            warmup_steps=3,
            measured_steps=20,
        )
        (tmp_path / "trial.json").write_text(trial.to_text())
        argv = (sys.executable, "-m", "bench", "run", "--trial", str(tmp_path / "trial.json"), "--out", str(tmp_path))
        done = subprocess.run(argv, env=environment(), capture_output=True, text=True, timeout=TRIAL_SEC, check=False)
        print(done.stdout, done.stderr)
        return done

    return start


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_on_separate_gpus_train_one_model(run, gpus, tmp_path, world_size):
    if world_size > gpus:
        pytest.skip(f"{world_size} ranks need as many GPUs; this machine has {gpus}")
    assert run(world_size).returncode == 0
    result = TrialResult.read(tmp_path / "result.json")
    assert (result.status, result.reason) == (TrialStatus.SUCCEEDED, None)
    assert (result.fingerprint["device"], result.fingerprint["backend"]) == ("cuda", "nccl")
    assert result.metrics is not None
    assert result.metrics.peak_vram_bytes is not None
    assert result.metrics.peak_vram_bytes > 0
    values = {m.name: m.value for m in result.measurements}
    assert values["global_samples_per_sec"] == pytest.approx(world_size * result.metrics.samples_per_sec)
