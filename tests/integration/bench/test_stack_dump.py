"""SIGUSR1 writes the stacks of a running bench into its log, and does not end it."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.faults import wait_for


def handles(pid: int, number: signal.Signals) -> bool:
    """Check whether a process handles this signal; until then the signal would end it."""
    fields = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    return bool(int(fields.get("SigCgt", "0"), 16) >> (number - 1) & 1)


def test_sigusr1_dumps_the_stacks_and_the_program_goes_on(tmp_path: Path) -> None:
    argv = (
        sys.executable,
        "-m",
        "bench",
        "demo",
        "--model",
        str(tmp_path / "model"),
        "--data",
        str(tmp_path / "d.jsonl"),
    )
    with subprocess.Popen(argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        wait_for(lambda: handles(process.pid, signal.SIGUSR1))
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "most recent call first" in err
    assert "bench" in err
