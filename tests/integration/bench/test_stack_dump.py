"""SIGUSR1 writes the stacks of a running bench into its log, and does not end it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.faults import wait_for
from tests.support.paths import ROOT


def handles(pid: int, number: signal.Signals) -> bool:
    """Check whether a process handles this signal; until then the signal would end it."""
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool(int(fields.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def test_sigusr1_dumps_the_stacks_and_the_program_goes_on() -> None:
    argv = (sys.executable, "-m", "bench", "forecast", "--trial", "-")
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, cwd=ROOT, **pipes) as process:
        wait_for(lambda: handles(process.pid, signal.SIGUSR1))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate("not JSON", timeout=120)
    assert "most recent call first" in err
    assert "bench" in err
    assert process.returncode == 2, "it went on to read the specification"
