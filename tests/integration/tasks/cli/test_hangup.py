"""A closed terminal: `inv` says so on standard error, and what was started elsewhere continues."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[1] == "nohup" else signal.SIG_DFL)
from tasks.cli import program
SECONDS = 0.2 if sys.argv[1] == "nohup" else 20  # a signal just before the sleep is handled after it
program._InvProgram.run_argv = lambda *_: (print("started", flush=True), time.sleep(SECONDS))
sys.exit(program.main(["inv"]))
"""


@pytest.mark.parametrize(("start", "code"), [("terminal", 128 + signal.SIGHUP), ("nohup", 0)])
def test_a_hangup_prints_one_line_unless_it_is_ignored(start: str, code: int, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-c", PROGRAM, start)
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    lines = errors.splitlines()
    assert len(lines) == (1 if start == "terminal" else 0), errors
    assert all("SIGHUP" in line for line in lines)
