"""Lock that allows one `inv bench` at a time in a project. It names its holder and ends with the holder's process."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from remote.hosts.local import current_user
from tasks.errors import ConfirmationRequired, results_write_errors

LOCK_FILE = ".lock"


@contextlib.contextmanager
def acquire_lock(results_folder: Path, command: str) -> Iterator[None]:
    """Hold the project's lock during `command`. Raises ConfirmationRequired, naming the holder, if it is taken."""
    with results_write_errors(results_folder):
        results_folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(results_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # A flock, not the file's presence: the kernel releases it even when the holder is killed.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 1000, 0).decode(errors="replace").strip() or "another process"
            raise ConfirmationRequired(
                f"{results_folder}: in use by {holder}",
                remedy="wait until it ends, or stop it with Ctrl-C in its terminal",
            ) from error
        with contextlib.suppress(OSError):  # on a full disk the lock holds without its holder's name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"`inv {command}`, process {os.getpid()} of {current_user()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
