"""Health of GPUs with a fake of NVIDIA's library: faults, and a trial whose GPU shows an error.

The sampler is a real process.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.commands import run
from bench.data.inputs import Inputs
from bench.harness.record import Record, Request
from bench.harness.termination import StopSignals
from bench.machine import nvml
from bench.machine.gpu_health import HealthMonitor
from bench.records.result import TrialResult
from bench.records.status import ReasonCode, TrialStatus
from tests.support.cases import Case, load_cases
from tests.support.fakes import pynvml
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
    assert monitor.read() == case["expected"]


@pytest.mark.usefixtures("restored_signals")
def test_a_trial_whose_gpu_shows_an_error_is_stopped_and_lost_with_that_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_trial, model_folder: Path, data_file: Path
) -> None:
    def measure(record: Record, _: Inputs, stops: StopSignals) -> None:
        with record.timed("measure"):
            (tmp_path / "part.json").write_text(json.dumps({"xids": [31, 79]}))
            (tmp_path / "part.json").rename(tmp_path / "switch.json")
            while True:
                time.sleep(0.01)
                stops.check()

    monitor_of(monkeypatch, {"used": 0})  # else preflight waits for memory that an ended trial frees late
    monkeypatch.setattr(run, "_measure", measure)
    monkeypatch.setenv("PYTHONPATH", str(FAKES))  # for the sampler
    monkeypatch.setenv("FAKE_NVML", "[{}]")
    monkeypatch.setenv("FAKE_NVML_SWITCH", str(tmp_path / "switch.json"))
    trial = make_trial(model=str(model_folder), data=str(data_file), deadline_sec=120.0)
    out = tmp_path / "out"
    assert run.run(trial, Request(out=out)) == 1
    result = TrialResult.read(out / "result.json")
    assert (result.status, result.reason_code) == (TrialStatus.LOST, ReasonCode.GPU_FAULT)
    assert (result.reason or "").startswith("GPU 0 (GPU-aaaa): XID 79 ")
