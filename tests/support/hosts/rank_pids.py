"""Process ids of trials with several ranks: which are alive, and a function to kill them."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bench.machine.sampler import process_tree


def descendant_pids(root: int) -> list[int]:
    return list(process_tree(root, excluded_pid=root)[1:])


def alive(pids: Iterable[int]) -> list[int]:
    """Return the pids of running processes; a zombie counts as dead."""
    left = []
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                left.append(pid)
    return left


def kill_trials(started: Iterable[subprocess.Popen[str]]) -> None:
    """Kill the trials that still run, including their ranks."""
    for process in started:
        for pid in [*descendant_pids(process.pid), process.pid] if process.poll() is None else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if process.stdout is None or not process.stdout.closed:  # otherwise the test has read it to its end
            process.communicate()
