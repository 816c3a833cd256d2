"""Telemetry and isolation on a real GPU, through NVIDIA's real library. Needs nvidia-ml-py beside torch.

python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_telemetry.py
"""

import csv
import json
import os
import subprocess
import sys
import time

import pytest

from bench.harness.record import Clock, Record, Request
from bench.machine import isolation, nvml, telemetry
from bench.records import Trial
from tests.support.gpu import on_gpu
from tests.support.paths import ROOT

GIB = 1 << 30
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), on_gpu]
TRIAL = Trial(name="t", reason="a test", suite="test", profile="gpu", model="none", data="none")
LOAD = """
import sys, time
from pathlib import Path
import torch
from bench.harness.record import Clock, Record, Request
from bench.machine import isolation, telemetry
from bench.records import Trial
out, seconds = Path(sys.argv[1]), 8.0
trial = Trial(name="t", reason="r", suite="s", profile="gpu", model="m", data="d")
record = Record(Request(trial_file=out, out=out), trial, Clock())
found = isolation.look_around(trial, strict=False)
record.flags += found.flags
record.fingerprint.update(found.facts)
with telemetry.beside(record):
    with record.timed("load"):
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        held = torch.empty(4 << 30, device="cuda", dtype=torch.uint8)
        torch.cuda.synchronize()
        time.sleep(1.0)
    with record.timed("measure"):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
import json
print(json.dumps({
    "measured": {one.name: one.value for one in record.observed},
    "flags": record.flags, "fingerprint": record.fingerprint,
}))
"""
HOLD = """
import time, torch
held = torch.ones(3 << 30, device="cuda", dtype=torch.uint8)
print("held", flush=True)
time.sleep(120)
"""


@pytest.fixture(autouse=True)
def _needs_the_library():
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")


def test_every_reading_of_a_real_gpu_is_there():
    gpus = nvml.gpus_here()
    assert gpus, "the library sees no GPU"
    reading = gpus[0].read()
    print(gpus[0].name, gpus[0].facts(), reading, gpus[0].processes())
    unknown = [name for name, value in vars(reading).items() if value is None]
    assert unknown == []
    assert 0 <= reading.utilization_percent <= 100
    assert 0 < reading.memory_used_bytes + 1 <= reading.memory_total_bytes
    assert 10 < reading.power_watts < 2000
    assert 10 < reading.temperature_celsius < 110


def test_a_busy_gpu_is_seen_busy_over_the_measured_window_for_less_than_a_hundredth_of_a_core(tmp_path):
    done = subprocess.run(
        (sys.executable, "-c", LOAD, str(tmp_path)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(said, indent=1))
    measured = said["measured"]
    assert measured["gpu_utilization_percent"] > 80
    assert measured["gpu_memory_used_bytes"] > 4 * GIB
    assert measured["gpu_power_watts"] > 60
    assert measured["gpu_sm_clock_mhz"] > 300
    assert said["fingerprint"]["telemetry_cost_percent"] < 1.0
    assert [flag for flag in of_others(said["flags"]) if "GPU" in flag or "throttled" in flag] == []
    with (tmp_path / "telemetry.csv").open(newline="") as file:
        phases = [row["phase"] for row in csv.DictReader(file)]
    assert phases.count("measure") >= 30
    assert {"load", "measure"} <= set(phases)


def of_others(flags: list[str]) -> list[str]:
    """Flags of a process other than this pytest's own, which holds the GPU once another test here has used it."""
    return [flag for flag in flags if f"pid {os.getpid()}," not in flag]


def test_a_gpu_that_someone_else_holds_is_flagged_and_refused_with_strict():
    with subprocess.Popen((sys.executable, "-c", HOLD), stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            found = isolation.examine(nvml.gpus_here()[:1], TRIAL, settle_sec=0.5)
            print(found)
            assert any("GPU 0 is shared" in flag for flag in found.flags)
            assert found.facts["gpu_memory_used_at_start_bytes"] > 3 * GIB
            with pytest.raises(isolation.InputError, match="refused by --strict"):
                isolation.look_around(TRIAL, strict=True)
        finally:
            other.kill()
    found = isolation.examine(nvml.gpus_here()[:1], TRIAL)
    assert of_others(found.flags) == []


def test_a_process_that_comes_during_a_trial_is_flagged_or_unknown_never_denied(tmp_path):
    record = Record(Request(trial_file=tmp_path, out=tmp_path), TRIAL, Clock())
    with telemetry.beside(record), record.timed("measure"):
        time.sleep(1.0)
        # A daemon of its own: two forks away, so that it is not of the trial's process tree.
        away = f"import os,sys\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\n{HOLD}"
        with subprocess.Popen((sys.executable, "-c", away), stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            pid = int(other.stdout.readline())
            assert other.stdout.readline() == "held\n"
            time.sleep(2.5)
            os.kill(pid, 9)
    with (tmp_path / "telemetry.csv").open(newline="") as file:
        said = [row["gpu_other_processes"] for row in csv.DictReader(file)]
    print(sorted(set(said)), record.flags)
    assert set(said) != {"none"}
