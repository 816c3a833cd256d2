"""Lock that allows one command at a time in a results folder; it names its holder and ends with that process."""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

from remote.hosts.local import current_user
from tasks.errors import ConfirmationRequired, results_write_errors

LOCK_FILE = ".lock"
_FOLLOWER = re.compile(r"`inv (?:bench|train)\b.* \(run (\S+)\)`")


@contextlib.contextmanager
def acquire_lock(results_folder: Path, command: str) -> Iterator[None]:
    """Hold the project's lock during `command`, which names its run: `bench (run ID)`.

    Raises ConfirmationRequired, naming the holder, if it is taken.
    """
    with results_write_errors(results_folder):
        results_folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(results_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # A flock, not the file's presence: the kernel releases it even when the holder is killed.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfirmationRequired(
                f"{results_folder}: in use by {_read_holder(handle)}",
                remedy="wait until it ends, or stop it with Ctrl-C in its terminal or `kill` and its number",
            ) from error
        with contextlib.suppress(OSError):  # on a full disk the lock holds without its holder's name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"`inv {command}`, process {os.getpid()} of {current_user()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def followed_run(results_folder: Path) -> str | None:
    """Return the id of the run that a command follows now; None without one."""
    with contextlib.suppress(OSError), (results_folder / LOCK_FILE).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            follower = _FOLLOWER.match(_read_holder(file.fileno()))
            return follower and follower[1]
    return None


def _read_holder(handle: int) -> str:
    return os.pread(handle, 1000, 0).decode(errors="replace").strip() or "another process"
