"""One `inv bench` at a time in one project: a lock that names its holder and is released when its process ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from remote.hosts.local import me
from tasks.errors import ConfirmationRequired, writing

LOCK_FILE = ".lock"


@contextlib.contextmanager
def acquire_lock(results_folder: Path, doing: str) -> Iterator[None]:
    """Hold the project's lock while `doing` something. Raises Refused, naming the holder, when it is taken."""
    with writing(results_folder):
        results_folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(results_folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            # A flock, not the file's presence: the system releases it even when its holder is killed.
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1000, 0).decode(errors="replace").strip() or "another process"
            raise ConfirmationRequired(
                f"{results_folder}: in use by {holder}; wait for it, or stop it with Ctrl-C there"
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the lock holds, without its holder's name
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"`inv {doing}`, process {os.getpid()} of {me()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
