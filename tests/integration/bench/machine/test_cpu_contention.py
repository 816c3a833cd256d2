"""CPU contention of a trial that shares its only core with two other processes."""

import contextlib
import os
import subprocess
import sys

import pytest

from bench.machine.cpu_contention import LEVELS_PERCENT, contention_flag, read_waits
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.paths import ROOT

TRIAL = """
import os, sys, time
from pathlib import Path
from bench.commands import run
from bench.harness.record import Request
from bench.records import Trial

trial, out, core = sys.argv[1:]

def measure(record, _inputs, _stops):
    os.sched_setaffinity(0, {int(core)})
    with record.timed("measure"):
        until = time.process_time() + 0.3  # CPU seconds, whatever the wall time
        while time.process_time() < until:
            pass

run._measure = measure
sys.exit(run.run(Trial.read(Path(trial)), Request(out=Path(out))))
"""
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("started", flush=True)
while True:
    pass
"""


def test_a_trial_that_shares_its_only_core_is_flagged(tmp_path, make_trial, model_folder, data_file):
    if not read_waits(os.getpid(), excluded_pid=0).waited_ns:
        pytest.skip("this system does not count how long threads wait for a CPU")
    (tmp_path / "t.json").write_text(make_trial(model=str(model_folder), data=str(data_file)).to_text())
    core = str(min(os.sched_getaffinity(0)))
    with contextlib.ExitStack() as others:
        for _ in range(2):
            other = others.enter_context(
                subprocess.Popen((sys.executable, "-c", SPIN, core), stdout=subprocess.PIPE, text=True)
            )
            others.callback(other.kill)  # before the wait
            assert other.stdout.readline() == "started\n"
        argv = (sys.executable, "-c", TRIAL, str(tmp_path / "t.json"), str(tmp_path / "out"), core)
        subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, timeout=120, check=True)
    result = TrialResult.read(tmp_path / "out" / "result.json")
    assert result.status is TrialStatus.SUCCEEDED
    (wait,) = (measurement for measurement in result.measurements if measurement.name == "cpu_wait_percent")
    assert wait.context == {"window": "measure"}
    assert LEVELS_PERCENT[0] < wait.value <= 100.0
    assert result.flags == [contention_flag(wait.value)]
    assert any("cpu wait" in line for line in result.log_tail)
