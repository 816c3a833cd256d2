"""Telemetry and preflight with a fake of NVIDIA's library; tests/gpu uses the real one."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.commands import cli
from bench.data.inputs import InputError
from bench.machine import nvml, preflight, sampler, telemetry
from tests.support.faults import raising, wait_for
from tests.support.paths import ROOT

FAKES = ROOT / "tests" / "support" / "fakes"
GIB = 1 << 30


@pytest.fixture
def library(monkeypatch):
    """Replace the real library with a fresh fake; `library.add(...)` adds a GPU."""
    spec = importlib.util.spec_from_file_location("pynvml", FAKES / "pynvml.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.add = lambda **changes: module.GPUS.append({**module.USUAL, **changes})
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


def test_the_fake_has_only_names_of_the_real_library_and_slowdowns_its_bits():
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    names = {node.name for node in ast.parse((FAKES / "pynvml.py").read_text()).body if hasattr(node, "name")}
    assert {name for name in names if name.startswith(("nvml", "NVML"))} <= set(dir(real))
    assert all(getattr(real, name) == value for name, value in (("NVML_CLOCK_SM", 1), ("nvmlMemory_v2", 0x02000028)))
    bits = {
        "hw_slowdown": real.nvmlClocksThrottleReasonHwSlowdown,
        "sw_thermal_slowdown": real.nvmlClocksThrottleReasonSwThermalSlowdown,
        "hw_thermal_slowdown": real.nvmlClocksThrottleReasonHwThermalSlowdown,
        "hw_power_brake": real.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "sw_power_cap": real.nvmlClocksThrottleReasonSwPowerCap,
        "idle": real.nvmlClocksThrottleReasonGpuIdle,
    }
    assert {nvml.CLOCK_LIMITS[bit]: bit for bit in bits.values()} == bits


def test_a_reading_has_the_units_in_its_names_and_none_for_what_the_driver_lacks(library):
    library.add()
    library.add(
        unsupported=[
            *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetMemoryInfo_v2"),
            *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses"),
        ]
    )
    gpu, older = nvml.visible_gpus()
    reading, lacking = gpu.read(), older.read()
    assert (reading.power_watts, reading.sm_clock_mhz) == (412.5, 1980)
    assert (reading.memory_used_bytes, reading.clock_limits) == (20 * GIB, ("sw_power_cap",))
    assert gpu.settings()["power_limit_watts"] == 700.0
    assert (gpu.usable_memory_bytes, older.usable_memory_bytes) == (139 * GIB, 140 * GIB)  # without the driver's
    assert (lacking.utilization_percent, lacking.power_watts, older.processes()) == (None, None, None)
    assert (lacking.memory_used_bytes, lacking.clock_limits) == (21 * GIB, ("sw_power_cap",))  # by the older functions


def test_there_is_a_row_for_each_gpu_and_one_without_library_or_driver(library, monkeypatch):
    def rows() -> list[dict[str, object]]:
        return sampler.Sampler(root=os.getpid(), gpus=nvml.visible_gpus(), started=time.monotonic()).rows()

    library.add()
    library.add(use=[10, 1])
    both = rows()
    assert [(row["gpu"], row["gpu_utilization_percent"]) for row in both] == [(0, 90), (1, 10)]
    assert both[0].keys() == set(sampler.COLUMNS)
    monkeypatch.setattr(library, "nvmlInit", raising(library.NVMLError("no driver")))
    (host_only,) = rows()
    assert host_only["process_rss_bytes"] > 1 << 20
    assert "gpu" not in host_only
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert len(rows()) == 1
    assert nvml.current_sample()["gpus"] == []


@pytest.mark.parametrize(
    ("visible_devices", "indices"),
    [(None, [0, 1]), ("", []), ("-1", []), ("1,0", [1, 0]), ("1", [1]), ("GPU-bb", [1]), ("0,7,1", [0]), ("GPU-", [])],
)
def test_the_gpus_are_those_that_cuda_will_see(library, visible_devices, indices):
    library.add(uuid="GPU-aaaa")
    library.add(uuid="GPU-bbbb")
    assert [gpu.index for gpu in nvml.select_gpus(nvml.all_gpus(), visible_devices)] == indices


@pytest.mark.parametrize(
    ("sees_host_pids", "on_gpu", "expected"),
    [
        (True, [], "none"),
        (True, [(7, 5), (101, GIB), (8, None)], "7:5 8:0"),
        (False, [(100, GIB), (8, 6)], "8:6"),  # our pid is among them, so both use the same numbering
        (False, [(4711, GIB)], "unknown"),  # in a container: possibly our process under another pid
    ],
)
def test_other_processes_are_named_or_unknown_never_guessed(library, monkeypatch, sees_host_pids, on_gpu, expected):
    library.add(processes=on_gpu)
    monkeypatch.setattr(sampler, "sees_host_pids", lambda: sees_host_pids)
    (gpu,) = nvml.visible_gpus()
    assert sampler.other_processes(gpu, frozenset((100, 101))) == expected


def row(phase="measure", at=0.0, **values):
    return dict.fromkeys(sampler.COLUMNS, "") | {"phase": phase, "elapsed_sec": str(at)} | values


def test_means_cover_the_measured_window_or_without_one_all_rows():
    rows = [row("load", gpu_utilization_percent="0")] * 50
    rows += [row(gpu_utilization_percent=str(80 + number % 20)) for number in range(100)]
    rows += [row("", gpu_utilization_percent="0")] * 50
    (measurement,), _ = telemetry.summarize_rows(rows)
    assert (measurement.name, measurement.value) == ("gpu_utilization_percent", 89.5)
    assert measurement.context == {"window": "measure"}
    assert measurement.interval is not None
    assert measurement.interval.n == 20
    assert measurement.interval.low <= 89.5 <= measurement.interval.high
    idle = telemetry.mean_interval([300.0] * 180 + [0.0] * 20)
    assert idle.low < 270.0 < idle.high
    (measurement,), _ = telemetry.summarize_rows([row("load", process_cpu_percent="50"), row("load")])
    assert (measurement.value, measurement.interval, measurement.context) == (50.0, None, {"window": "trial"})
    assert telemetry.summarize_rows([]) == ([], [])


def test_heat_and_other_processes_are_flags_and_a_power_cap_is_a_number():
    rows = [row(gpu_clock_limits="sw_power_cap")] * 34 + [row(gpu_clock_limits="none")] * 64
    rows += [row(gpu_clock_limits="sw_power_cap hw_slowdown hw_thermal_slowdown")] * 2
    measurements, flags = telemetry.summarize_rows([*rows, row("warmup", gpu_clock_limits="sw_thermal_slowdown")])
    assert flags == [
        "throttled: hw_slowdown in 2 % of samples",
        "throttled: hw_thermal_slowdown in 2 % of samples",
    ]
    assert [(measurement.name, measurement.value) for measurement in measurements] == [
        ("gpu_power_capped_percent", 36.0)
    ]
    rows = [row(gpu_other_processes=listing) for listing in ("none", "unknown", f"7:{GIB}", f"7:{2 * GIB} 8:0", "")]
    assert telemetry.summarize_rows(rows)[1] == [
        "another process (pid 7, 2,048 MiB) was on the GPU",
        "another process (pid 8, unknown memory) was on the GPU",
    ]


def test_a_row_cut_short_is_left_out(tmp_path):
    whole = ",".join(row(at=1.0).values())
    (tmp_path / "t.csv").write_text(f"{','.join(sampler.COLUMNS)}\n{whole}\n{whole[:-1]}")
    assert telemetry.read_rows(tmp_path / "t.csv") == [row(at=1.0)]
    assert telemetry.read_rows(tmp_path / "missing.csv") == []


def rows_in(path, phase, count):
    wait_for(lambda: sum(line["phase"] == phase for line in telemetry.read_rows(path)) >= count, f"{count} of {phase}")


@pytest.fixture
def _slow_sampler(monkeypatch):
    """Wait for a slow sampler."""
    monkeypatch.setattr(telemetry, "STOP_TIMEOUT_SEC", 60.0)


@pytest.mark.usefixtures("_slow_sampler")
def test_rows_of_a_trial_have_phases_and_are_summarized(tmp_path, make_record, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.setenv("FAKE_NVML", json.dumps([{"processes": [[4711, GIB]]}]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    record = make_record()
    with telemetry.record_telemetry(record):
        with record.timed("warmup"):
            rows_in(tmp_path / "telemetry.csv", "warmup", 2)
        with record.timed("measure"):
            rows_in(tmp_path / "telemetry.csv", "measure", 3)
        ended = "a row after the last phase"
        wait_for(lambda: telemetry.read_rows(tmp_path / "telemetry.csv")[-1]["phase"] == "", ended)
    measurements = {item.name: item for item in record.observed}
    assert set(telemetry.SUMMARY_COLUMNS) <= set(measurements)
    assert measurements["gpu_power_watts"].value == 412.5
    assert measurements["gpu_power_watts"].context == {"window": "measure"}
    assert record.flags == ["another process (pid 4711, 1,024 MiB) was on the GPU"]
    assert record.steps_done == 0  # telemetry adds no steps


PARENT = """
import sys, time
from pathlib import Path
from bench.harness.record import Clock, Record, Request
from bench.machine import telemetry
from bench.records import Trial
out = Path(sys.argv[1])
trial = Trial(name="t", reason="r", suite="s", profile="tiny", model="m", data="d")
record = Record(Request(out=out), trial, Clock())
with telemetry.record_telemetry(record), record.timed("measure"):
    time.sleep(60)
"""


def test_a_killed_trial_leaves_its_telemetry_and_no_sampler(tmp_path):
    parent = subprocess.Popen((sys.executable, "-c", PARENT, str(tmp_path)), cwd=ROOT)
    try:
        rows_in(tmp_path / "telemetry.csv", "measure", 3)
        (child,) = (pid for pid in sampler.process_tree(parent.pid, excluded_pid=0) if pid != parent.pid)
        assert sampler.process_tree(parent.pid, excluded_pid=child) == (parent.pid,)
    finally:
        parent.kill()
        parent.wait()
    line = Path(f"/proc/{child}/cmdline")
    wait_for(lambda: not line.exists() or not line.read_bytes(), "the sampler to end with its trial")
    assert len(telemetry.read_rows(tmp_path / "telemetry.csv")) >= 3


@pytest.mark.usefixtures("_slow_sampler")
def test_a_sampler_that_cannot_write_is_logged_and_does_not_end_the_trial(tmp_path, make_record):
    (tmp_path / "telemetry.csv").mkdir()
    record = make_record()
    with telemetry.record_telemetry(record), record.timed("measure"):
        pass
    assert any("telemetry: stopped early" in line and "Is a directory" in line for line in record.log.tail)
    assert (record.observed, record.flags, list(record.phases)) == ([], [], ["measure"])


def test_no_module_of_the_bench_takes_durations_from_the_wall_clock():
    paths = (ROOT / "bench").rglob("*.py")
    assert [str(path) for path in paths if re.search(r"\btime\.time(_ns)?\b", path.read_text())] == []


def test_a_gpu_trial_without_a_gpu_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(nvml, "visible_gpus", list)
    for has_file, devices, token in ((False, "0", "/dev/nvidia0"), (True, "-1", "CUDA_VISIBLE_DEVICES='-1'")):
        monkeypatch.setattr(nvml, "has_device_file", lambda has_file=has_file: has_file)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
        with pytest.raises(InputError, match=rf"{token}[^\n]*profile tiny[^\n]*$"):
            preflight.require_gpus_for("gpu")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert preflight.require_gpus_for("gpu") == []  # a GPU without the library is a GPU


def test_more_gpus_than_expected_are_a_flag(library, make_trial):
    library.add(used=0)
    library.add(used=0)
    facts, (flag,) = preflight.check_gpus(make_trial(profile="gpu"))
    assert flag.startswith("2 GPUs ")
    assert "CUDA_VISIBLE_DEVICES=0" in flag.partition("; ")[2]
    assert (facts["gpus_visible"], facts["gpu_memory_used_at_start_bytes"]) == (2, 0)
    assert preflight.inspect_gpus(nvml.visible_gpus(), make_trial(profile="gpu", kind="distributed"))[1] == []


def test_a_shared_gpu_is_flagged_with_its_processes_or_as_unknown_use(library, make_trial):
    library.add(processes=[(4711, 3 * GIB)])
    assert preflight.inspect_gpus(nvml.visible_gpus(), make_trial())[1] == [
        "GPU 0 is shared: another process (pid 4711, 3,072 MiB) was on it before"
    ]
    library.GPUS.clear()
    library.add(used=3 * GIB)
    (gpu,) = nvml.visible_gpus()
    _, (flag,) = preflight.inspect_gpus([gpu], make_trial(), settle_sec=0.0)
    assert flag.startswith("GPU 0 is shared: 3,072 MiB ")
    # Memory that an ended trial frees late is not foreign.
    facts, flags = preflight.inspect_gpus([gpu], make_trial(), sleep=lambda _: library.GPUS[0].update(used=0))
    assert (flags, facts["gpu_memory_used_at_start_bytes"]) == ([], 0)


def test_sample_prints_the_current_readings_in_one_line(library, capsys):
    library.add()
    assert cli.main(["sample"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    (gpu,) = json.loads(line)["gpus"]
    assert (gpu["name"], gpu["power_watts"], gpu["clock_limits"]) == ("NVIDIA H200", 412.5, ["sw_power_cap"])
