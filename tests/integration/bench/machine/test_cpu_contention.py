"""CPU contention of trials that run in a process."""

import contextlib
import os
import subprocess
import sys

import pytest

from bench.machine import cpu_contention
from bench.machine.cpu_contention import CpuContention, read_counters
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.paths import ROOT

TRIAL = """
import os, sys, time
from pathlib import Path
from bench.commands import run
from bench.harness.record import Request

trial, out, core, *flags = sys.argv[1:]

def measure(record, _inputs, _stops):
    record.add("turns_per_sec", 1.0)
    if core:
        os.sched_setaffinity(0, {int(core)})
    with record.timed("measure"):
        until = time.process_time() + 0.3  # CPU seconds, whatever the wall time
        while time.process_time() < until:
            pass

run._measure = measure
sys.exit(run.run(Request(trial_file=Path(trial), out=Path(out), strict=flags == ["strict"])))
"""


@pytest.fixture
def _counted():
    if not read_counters(os.getpid(), excluded_pid=0).waited_ns:
        pytest.skip("this system does not count how long threads wait for a CPU")


SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("started", flush=True)
while True:
    pass
"""


@pytest.fixture
def result_of(tmp_path, make_trial, model_folder, data_file):
    """Return a function that runs a computing trial, on `core` only if given; it returns exit code and result."""

    def act(*flags: str, core: str = "") -> tuple[int, TrialResult]:
        (tmp_path / "t.json").write_text(make_trial(model=str(model_folder), data=str(data_file)).to_text())
        argv = (sys.executable, "-c", TRIAL, str(tmp_path / "t.json"), str(tmp_path / "out"), core, *flags)
        done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120, check=False)
        return done.returncode, TrialResult.read(tmp_path / "out" / "result.json")

    return act


@pytest.mark.usefixtures("_counted")
def test_a_trial_records_its_waits_over_the_measured_window_and_flags_what_they_say(result_of):
    code, result = result_of()
    assert (code, result.status) == (0, TrialStatus.SUCCEEDED)
    measurements = {
        measurement.name: measurement for measurement in result.measurements if measurement.name.startswith("cpu_")
    }
    assert 0.0 <= measurements["cpu_wait_percent"].value <= 100.0
    assert all(waits.context == {"window": "measure"} for waits in measurements.values())
    assert result.flags == CpuContention(**{name: waits.value for name, waits in measurements.items()}).flags
    assert any("cpu wait" in line for line in result.log_tail)


@pytest.mark.usefixtures("_counted")
def test_a_trial_that_shares_its_only_core_is_flagged_and_refused_with_strict(result_of):
    core = str(min(os.sched_getaffinity(0)))
    with contextlib.ExitStack() as others:
        for _ in range(2):
            other = others.enter_context(
                subprocess.Popen((sys.executable, "-c", SPIN, core), stdout=subprocess.PIPE, text=True)
            )
            others.callback(other.kill)  # before the wait
            assert other.stdout.readline() == "started\n"
        code, result = result_of("strict", core=core)
    assert (code, result.status, result.reason) == (1, TrialStatus.FAILED, f"refused by --strict: {result.flags[0]}")
    assert result.flags[0].startswith("CPU contention: ")
    values = {measurement.name: measurement.value for measurement in result.measurements}
    assert values["cpu_wait_percent"] > cpu_contention.LEVELS_PERCENT[0]
    assert values["turns_per_sec"] == 1.0  # the numbers are kept
