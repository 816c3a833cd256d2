"""Trials of several ranks, from outside: which of their processes run, and how to end them all."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bench.workloads.distributed.torchrun import descendants

SILENCE_SEC = 15  # where many processes share few cores, a rank that imports is silent for seconds


def alive(pids: Iterable[int]) -> list[int]:
    """Those that run; a zombie that its new parent has not collected yet is dead."""
    left = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.append(pid)
    return left


def end(started: Iterable[subprocess.Popen[str]]) -> None:
    """Kill trials that still run, their ranks with them."""
    for process in started:
        for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.stdout is None or not process.stdout.closed:  # else the test has heard it to its end
            process.communicate()
