"""Health of GPUs with a fake of NVIDIA's library: faults and facts, and a trial whose GPU shows an error.

The trial's process is real, its steps compute nothing.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.machine import nvml
from bench.machine.gpu_health import HealthMonitor, link_flag
from bench.records import suite
from bench.records.result import TrialResult
from bench.records.status import ReasonCode, TrialStatus
from tests.support.cases import Case, load_cases
from tests.support.fakes import pynvml
from tests.support.faults import wait_for
from tests.support.hosts.fake_worker_training import install_fake_training
from tests.support.paths import ROOT

FAKES = ROOT / "tests" / "support" / "fakes"


def monitor_of(monkeypatch: pytest.MonkeyPatch, gpu: dict[str, Any]) -> tuple[HealthMonitor, dict[str, Any]]:
    state = {**pynvml.USUAL, **gpu}
    monkeypatch.setattr(pynvml, "GPUS", [state])
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    return HealthMonitor(nvml.all_gpus()), state


@pytest.mark.parametrize("case", load_cases(__file__, "gpu_faults.yaml"))
def test_a_fault_is_what_the_hardware_reports_and_an_application_cannot_cause(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    monitor, state = monitor_of(monkeypatch, case.get("before", {}))
    state |= case.get("then", {})
    assert monitor.read() == case["expected"]["fault"]
    facts = monitor.facts()
    assert {name: facts[name] for name in case["expected"].get("facts", {})} == case["expected"].get("facts", {})
    assert link_flag(facts) == case["expected"].get("flag")


def test_a_machine_without_a_gpu_has_no_fault_and_no_facts() -> None:
    monitor = HealthMonitor([])
    assert (monitor.read(), monitor.facts()) == (None, {})


@pytest.mark.slow
def test_a_trial_whose_gpu_shows_an_error_is_stopped_and_lost_with_that_cause(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    (trial, *_) = suite("quick", "tiny", str(tiny_model), str(tiny_data))
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    install_fake_training(tmp_path)
    document = json.loads(trial.to_text()) | {"measured_steps": 10_000}
    (tmp_path / "trial.json").write_text(json.dumps(document))
    variables = {
        "PYTHONPATH": os.pathsep.join((str(FAKES), str(tmp_path))),
        "FAKE_NVML": '[{"processes": []}]',
        "FAKE_NVML_SWITCH": str(tmp_path / "switch.json"),
        "OMP_NUM_THREADS": "1",
    }
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    out = tmp_path / "out"
    argv = (sys.executable, "-m", "bench", "run", "--trial", str(tmp_path / "trial.json"), "--out", str(out))
    with subprocess.Popen(argv, cwd=tmp_path, env=environment | variables, stdout=subprocess.PIPE) as process:
        progress = out / "progress.json"
        wait_for(lambda: progress.exists() and json.loads(progress.read_text())["phase"] == "measure", "steps", 120.0)
        (tmp_path / "part.json").write_text(json.dumps({"xids": [31, 79]}))
        (tmp_path / "part.json").rename(tmp_path / "switch.json")
        assert process.wait(120.0) == 1
    result = TrialResult.read(out / "result.json")
    assert (result.status, result.reason_code) == (TrialStatus.LOST, ReasonCode.GPU_FAULT)
    assert (result.reason or "").startswith("GPU 0 (GPU-aaaa): XID 79 ")
    assert result.fingerprint["gpu_xids"] == [31, 79]
    assert len(result.steps.step_time_sec) < 10_000
