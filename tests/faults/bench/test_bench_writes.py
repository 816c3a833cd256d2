"""A result whose writer is killed is the one before, or the new one."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.status import TrialStatus
from tests.support.kill_points import killed_at_write, wait_for_exit
from tests.support.tiny_training import in_child

# The functions of os that a write of a result calls.
CALLS = ("open", "write", "fsync", "chmod", "replace")


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
        write = killed_at_write(number, lambda folder=folder: new.write(folder), [(os, name) for name in CALLS])
        wait_for_exit(in_child(write))
        path = folder / "result.json"
        states.append(TrialResult.read(path).reason if path.exists() else None)
    last = states.index("new")
    assert states == [before] * last + ["new"] * (8 - last)
    assert last > 2, "killed before the file has its name"
