"""Lock that allows one command at a time in a results folder. It names its holder and ends with the holder's process.

The file's first line names the holder, its second the run that the holder follows. A follower stops its run when
`inv cancel` requests it by a file in the run's folder.
"""

import contextlib
import datetime
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from bench.records.atomic_files import write_atomic
from bench.records.paths import CANCEL_FILE
from remote.hosts.local import current_user
from tasks.errors import ConfirmationRequired, RetryableError, results_write_errors

LOCK_FILE = ".lock"
CANCEL_TIMEOUT_SEC = 300.0  # more than the jobs' grace period and a lost worker's retries
_POLL_SEC = 0.2


class ResultsInUse(ConfirmationRequired):
    """A refusal because another command holds the lock. `follows` is the id of the run that it follows."""

    def __init__(self, results_folder: Path, holder: str, follows: str | None) -> None:
        super().__init__(
            f"{results_folder}: in use by {holder}", remedy="wait until it ends, or stop it with Ctrl-C in its terminal"
        )
        self.holder, self.follows = holder, follows


@contextlib.contextmanager
def acquire_lock(results_folder: Path, command: str, *, follows: str | None = None) -> Iterator[None]:
    """Hold the project's lock during `command`. Raises ResultsInUse, naming the holder, if it is taken.

    `follows` is the run that the command stops when `inv cancel` requests it. Earlier requests are removed.
    """
    with results_write_errors(results_folder):
        results_folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(results_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # A flock, not the file's presence: the kernel releases it even when the holder is killed.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ResultsInUse(results_folder, *_read_holder(handle)) from error
        if follows is not None:
            (results_folder / follows / CANCEL_FILE).unlink(missing_ok=True)
        _write_holder(handle, f"`inv {command}`, process {os.getpid()} of {current_user()}\n{follows or ''}\n")
        yield
    finally:
        os.close(handle)


def followed_run(results_folder: Path) -> str | None:
    """Return the id of the run that a command follows now; None without one."""
    with contextlib.suppress(OSError), (results_folder / LOCK_FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_holder(file.fileno())[1]
    return None


def _read_holder(handle: int) -> tuple[str, str | None]:
    """Return the holder's name, and the run that it follows."""
    name, _, followed = os.pread(handle, 1000, 0).decode(errors="replace").partition("\n")
    return name.strip() or "another process", followed.strip() or None


def rename_followed(results_folder: Path, run_id: str, new_id: str) -> None:
    """Replace the id of a new run, which this process follows, in the lock that it holds."""
    handle = os.open(results_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _write_holder(handle, os.pread(handle, 1000, 0).decode(errors="replace").replace(run_id, new_id))
    finally:
        os.close(handle)


def _write_holder(handle: int, text: str) -> None:
    with contextlib.suppress(OSError):  # on a full disk the lock holds without its holder's name
        os.ftruncate(handle, 0)
        os.pwrite(handle, text.encode(), 0)


def is_cancel_requested(run_folder: Path) -> bool:
    """Check whether `inv cancel`, of the same user, asks the follower of this run to stop it."""
    try:
        request = (run_folder / CANCEL_FILE).lstat()
    except OSError:
        return False
    return stat.S_ISREG(request.st_mode) and request.st_uid == os.geteuid()


@contextlib.contextmanager
def acquire_lock_to_cancel(
    results_folder: Path, run_id: str, *, timeout_sec: float = CANCEL_TIMEOUT_SEC
) -> Iterator[None]:
    """Hold the lock to cancel a run. If a command follows that run, request that it stops the run, and wait for it.

    Raises ResultsInUse if the lock is held by any other command, RetryableError
    if the follower has not ended within the timeout.
    """
    request, deadline, was_followed = results_folder / run_id / CANCEL_FILE, time.monotonic() + timeout_sec, False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(acquire_lock(results_folder, f"cancel (run {run_id})"))
                break
            except ResultsInUse as error:
                if error.follows != run_id:
                    raise
                if time.monotonic() > deadline:
                    raise RetryableError(
                        f"run {run_id}: {error.holder}, has not stopped it within {timeout_sec:.0f} s",
                        remedy=f"end that process, then run `inv cancel --run={run_id}`",
                    ) from error
                if not was_followed:
                    was_followed = True
                    stack.callback(request.unlink, missing_ok=True)
                    print(f"run {run_id}: {error.holder}, follows it and is asked to stop it", flush=True)
                if not is_cancel_requested(request.parent):  # also after a follower that started meanwhile
                    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
                    with results_write_errors(request.parent):
                        write_atomic(request, json.dumps({"requested_at": now, "user": current_user()}).encode())
            time.sleep(_POLL_SEC)
        yield
