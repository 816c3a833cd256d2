"""A result whose writer is killed is the one before, or the new one."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.status import TrialStatus

# The functions of os that a write of a result calls.
CALLS = ("open", "write", "fsync", "chmod", "replace")


def write_until_killed(result: TrialResult, folder: Path, number: int) -> None:
    """Write the result in a child process that is killed just before its call `number` of CALLS."""
    left = number

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    pid = os.fork()
    if pid == 0:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        result.write(folder)
        os._exit(0)
    os.waitpid(pid, 0)


@pytest.mark.parametrize("before", [None, "old"])
def test_a_writer_killed_at_any_call_never_leaves_a_partial_result(
    make_trial: Callable[..., Trial], tmp_path: Path, before: str | None
) -> None:
    new = TrialResult(trial_id="t", trial=make_trial(), status=TrialStatus.FAILED, reason="new", log_tail=["x"] * 9999)
    states = []
    for number in range(8):
        (folder := tmp_path / str(number)).mkdir()
        if before is not None:
            replace(new, reason=before).write(folder)
        write_until_killed(new, folder, number)
        path = folder / "result.json"
        states.append(TrialResult.read(path).reason if path.exists() else None)
    last = states.index("new")
    assert states == [before] * last + ["new"] * (8 - last)
    assert last > 2, "killed before the file has its name"
