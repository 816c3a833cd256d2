"""Temporary folders on this machine. Those of a killed process are removed by the next process."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_LOCK_GRACE_SEC = 60.0  # the process that created it may not have locked it yet


@contextlib.contextmanager
def scratch_folder(prefix: str, parent: str | Path | None = None) -> Iterator[Path]:
    """Create a folder in `parent` (None: the system's temporary folder); remove it at the end.

    The process holds a lock on it. Folders of this prefix and this user without a lock are removed. Raises
    OSError.
    """
    parent = Path(tempfile.gettempdir() if parent is None else parent)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a file system without locks: no process can take it for stale either
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            now = os.fstat(handle).st_mtime  # the file system's clock
            for path in parent.glob(f"{prefix}*"):
                with contextlib.suppress(OSError):
                    _remove_if_stale(path, now)
            yield Path(folder)
        finally:
            os.close(handle)


def _remove_if_stale(path: Path, now: float) -> None:
    info = path.lstat()
    is_new = now - info.st_mtime < _LOCK_GRACE_SEC
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or is_new:
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError while its process lives
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)
