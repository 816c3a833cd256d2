"""Temporary folders on this machine that a killed process does not leave for ever: the next one removes them."""

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_YOUNG_SEC = 60.0  # its maker may not have locked it yet


@contextlib.contextmanager
def scratch_folder(prefix: str, place: str | Path | None = None) -> Iterator[Path]:
    """A new folder in `place` (None: the system's own), removed at the end.

    Its maker holds a lock on it. Folders of this prefix and this user whose makers are dead are removed first. Raises
    OSError.
    """
    where = Path(tempfile.gettempdir() if place is None else place)
    _remove_left(where, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=where) as made:
        handle = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # a share without locks: then nobody can take it for left, either
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(made)
        finally:
            os.close(handle)


def _remove_left(where: Path, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for path in where.iterdir():
            if path.name.startswith(prefix):
                with contextlib.suppress(OSError):
                    _remove_if_left(path)


def _remove_if_left(path: Path) -> None:
    seen = path.lstat()
    is_young = time.time() - seen.st_mtime < _YOUNG_SEC
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or is_young:
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # OSError while its maker lives
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(handle)
