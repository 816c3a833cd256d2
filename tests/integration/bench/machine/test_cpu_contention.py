"""What of this subject starts a process."""

import contextlib
import os
import subprocess
import sys

import pytest

from bench.machine import cpu_contention
from bench.machine.cpu_contention import CpuContention, read
from bench.records.result import TrialResult, TrialStatus
from tests.support.paths import ROOT

TRIAL = """
import os, sys, time
from pathlib import Path
from bench.commands import run
from bench.harness.record import Request

trial, out, core, *words = sys.argv[1:]

def measure(record, _inputs, _stops):
    record.add("turns_per_sec", 1.0)
    if core:
        os.sched_setaffinity(0, {int(core)})
    with record.timed("measure"):
        until = time.process_time() + 0.3  # of a CPU, however long it takes to get that much
        while time.process_time() < until:
            pass

run._measure = measure
sys.exit(run.run(Request(trial_file=Path(trial), out=Path(out), strict=words == ["strict"])))
"""


@pytest.fixture
def _counted():
    if not read(os.getpid(), leave_out=0).waited_ns:
        pytest.skip("this system does not count how long threads wait for a CPU")


SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("there", flush=True)
while True:
    pass
"""


@pytest.fixture
def result_of(tmp_path, make_trial, model_folder, data_file):
    """Run a trial that only computes, on `core` alone if given; its exit code and result."""

    def act(*words: str, core: str = "") -> tuple[int, TrialResult]:
        (tmp_path / "t.json").write_text(make_trial(model=str(model_folder), data=str(data_file)).to_text())
        argv = (sys.executable, "-c", TRIAL, str(tmp_path / "t.json"), str(tmp_path / "out"), core, *words)
        done = subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120, check=False)
        return done.returncode, TrialResult.read(tmp_path / "out" / "result.json")

    return act


@pytest.mark.usefixtures("_counted")
def test_a_trial_records_its_waits_over_the_measured_window_and_flags_what_they_say(result_of):
    code, result = result_of()
    assert (code, result.status) == (0, TrialStatus.SUCCEEDED)
    found = {
        measurement.name: measurement for measurement in result.measurements if measurement.name.startswith("cpu_")
    }
    assert 0.0 <= found["cpu_wait_percent"].value <= 100.0
    assert all(one.context == {"window": "measure"} for one in found.values())
    assert result.flags == CpuContention(**{name: one.value for name, one in found.items()}).flags
    assert any("cpu wait" in line for line in result.log_tail)


@pytest.mark.usefixtures("_counted")
def test_a_trial_that_shares_its_only_core_is_flagged_and_refused_with_strict(result_of):
    core = str(min(os.sched_getaffinity(0)))
    with contextlib.ExitStack() as others:
        for _ in range(2):
            other = others.enter_context(
                subprocess.Popen((sys.executable, "-c", SPIN, core), stdout=subprocess.PIPE, text=True)
            )
            others.callback(other.kill)  # before it is waited for
            assert other.stdout.readline() == "there\n"
        code, result = result_of("strict", core=core)
    assert (code, result.status, result.reason) == (1, TrialStatus.FAILED, f"refused by --strict: {result.flags[0]}")
    assert result.flags[0].startswith("CPU contention: the trial waited for a CPU over")
    found = {measurement.name: measurement.value for measurement in result.measurements}
    assert found["cpu_wait_percent"] > cpu_contention.LEVELS_PERCENT[0]
    assert found["turns_per_sec"] == 1.0  # refused, and its numbers are kept
