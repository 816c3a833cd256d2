"""The processes that draw figures end with the one that draws the report, even if that is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = """
import os, time
from reports.figures import renderer

renderer.os.cpu_count = lambda: 3
if __name__ == "__main__":
    with renderer.FigurePool() as pool:
        while len(pool._pool._processes) < 2:
            time.sleep(0.01)
        print(*pool._pool._processes, flush=True)
        time.sleep(600)
"""
WAIT_SEC = 60.0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_report_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        (sys.executable, str(program)), stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + WAIT_SEC
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"still running: {running}"
        time.sleep(0.05)
