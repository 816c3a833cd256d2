"""Lock of a checkpoints' folder: one attempt at a time, on one machine and between machines."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.data.inputs import InputError, InputRejected
from bench.harness.termination import WorkerGone, classify_error
from bench.records.status import TrialStatus
from bench.workloads.finetune import folder_lock
from bench.workloads.finetune.folder_lock import LOCK_FILE, FolderLock


@pytest.fixture
def on_sleep(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Actions during each wait, which moves the clock only."""
    actions: list[Callable[[], object]] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds
        for action in actions:
            action()

    # The module's reference only: other threads call time.sleep too.
    monkeypatch.setattr(folder_lock, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0]))
    return actions


def write_holder(folder: Path, beat: int = 0) -> None:
    holder = {"machine": "another", "host": "node-7", "pid": 12, "attempt": 3, "beat": beat}
    (folder / LOCK_FILE).write_text(json.dumps(holder))


def test_a_second_attempt_on_this_machine_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    first = FolderLock(tmp_path, 2, print)
    with pytest.raises(InputRejected, match=rf"^{tmp_path}: in use by attempt 2, process {os.getpid()} on "):
        FolderLock(tmp_path, 3, print)
    first.close()
    assert (tmp_path / LOCK_FILE).read_bytes() == b""
    FolderLock(tmp_path, 3, print).close()


def test_a_killed_attempt_of_this_machine_holds_nothing(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, 1, print)
    content = (tmp_path / LOCK_FILE).read_bytes()
    lock.close()
    (tmp_path / LOCK_FILE).write_bytes(content)
    logged: list[str] = []
    FolderLock(tmp_path, 2, logged.append).close()
    assert logged == []


def test_an_attempt_that_lives_on_another_machine_is_waited_for_and_refused(tmp_path, on_sleep) -> None:
    write_holder(tmp_path)
    on_sleep.append(lambda: write_holder(tmp_path, 1))
    with pytest.raises(WorkerGone, match=r"in use by attempt 3, process 12 on node-7$") as raised:
        FolderLock(tmp_path, 4, print)
    assert classify_error(raised.value).is_transient


@pytest.mark.usefixtures("on_sleep")
@pytest.mark.parametrize("is_held", [False, True], ids=["", "its lock is kept"])
def test_the_lock_of_a_machine_that_is_gone_is_taken(tmp_path, is_held) -> None:
    held = FolderLock(tmp_path, 3, print) if is_held else None
    write_holder(tmp_path)
    logged: list[str] = []
    lock = FolderLock(tmp_path, 4, logged.append)
    assert "node-7" in logged[0]
    if held is not None:
        held.close()
    assert json.loads((tmp_path / LOCK_FILE).read_bytes())["attempt"] == 4
    lock.close()


@pytest.mark.parametrize("is_locked", [True, None], ids=["locks", "no locks"])
def test_of_two_attempts_that_take_a_lock_one_is_refused(tmp_path, on_sleep, monkeypatch, is_locked) -> None:
    write_holder(tmp_path)
    opened = FolderLock._open
    monkeypatch.setattr(FolderLock, "_open", lambda self: (opened(self)[0], is_locked))
    on_sleep.append(lambda: b"another" in (tmp_path / LOCK_FILE).read_bytes() or write_holder(tmp_path))
    with pytest.raises(WorkerGone, match="node-7"):
        FolderLock(tmp_path, 4, print)


def test_a_lock_that_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=LOCK_FILE):
        FolderLock(tmp_path, 1, print)
    assert not (tmp_path / "elsewhere").exists()


def test_a_fault_of_the_storage_is_no_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left") as raised:
        FolderLock(tmp_path, 1, print)
    assert classify_error(raised.value).status is TrialStatus.LOST
