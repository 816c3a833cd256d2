"""Telemetry and preflight on a real GPU, through NVIDIA's real library. Needs nvidia-ml-py and torch.

python -m pytest -c /dev/null --rootdir . --import-mode=importlib -s tests/gpu/test_telemetry.py
"""

import csv
import json
import os
import subprocess
import sys

import pytest

from bench.machine import nvml, preflight
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
from bench.machine import preflight, telemetry
from bench.records import Trial
out, seconds = Path(sys.argv[1]), 8.0
trial = Trial(name="t", reason="r", suite="s", profile="gpu", model="m", data="d")
record = Record(Request(out=out), trial, Clock())
facts, flags = preflight.check_gpus(trial)
record.flags += flags
record.fingerprint.update(facts)
with telemetry.record_telemetry(record):
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
    "measured": {item.name: item.value for item in record.observed},
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


def test_a_real_gpu_has_every_reading():
    gpus = nvml.visible_gpus()
    assert gpus, "the library sees no GPU"
    reading = gpus[0].read()
    print(gpus[0].name, reading, gpus[0].processes())
    unknown = [name for name, value in vars(reading).items() if value is None]
    assert unknown == []
    assert 0 <= reading.utilization_percent <= 100
    assert 0 < reading.memory_used_bytes + 1 <= reading.memory_total_bytes
    assert 10 < reading.power_watts < 2000
    assert 10 < reading.temperature_celsius < 110


def test_a_busy_gpu_is_sampled_for_under_a_hundredth_of_a_core(tmp_path):
    done = subprocess.run(
        (sys.executable, "-c", LOAD, str(tmp_path)),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(report, indent=1))
    measured = report["measured"]
    assert measured["gpu_utilization_percent"] > 80
    assert measured["gpu_memory_used_bytes"] > 4 * GIB
    assert measured["gpu_power_watts"] > 60
    assert measured["gpu_sm_clock_mhz"] > 300
    assert [flag for flag in foreign_flags(report["flags"]) if "GPU" in flag or "throttled" in flag] == []
    with (tmp_path / "telemetry.csv").open(newline="") as file:
        phases = [row["phase"] for row in csv.DictReader(file)]
    assert phases.count("measure") >= 30
    assert {"load", "measure"} <= set(phases)


def foreign_flags(flags: list[str]) -> list[str]:
    """Return flags of processes except this pytest, which uses the GPU after another test here."""
    return [flag for flag in flags if f"pid {os.getpid()}," not in flag]


def test_a_gpu_used_by_another_process_is_flagged():
    with subprocess.Popen((sys.executable, "-c", HOLD), stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "held\n"
            facts, flags = preflight.inspect_gpus(nvml.visible_gpus()[:1], TRIAL, settle_sec=0.5)
            assert any("GPU 0 is shared" in flag for flag in flags), flags
            assert facts["gpu_memory_used_at_start_bytes"] > 3 * GIB
        finally:
            other.kill()
    assert foreign_flags(preflight.inspect_gpus(nvml.visible_gpus()[:1], TRIAL)[1]) == []
