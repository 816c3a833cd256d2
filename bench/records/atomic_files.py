"""Atomic writes, files that end, the sha256 of files."""

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PIECE_BYTES = 1 << 16


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path` as `replacing` does. Raises OSError."""
    with replacing(path) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """A file to be written that then becomes `path`: readers see the old one, the new one or none, also after a crash.

    A temporary file beside it (mode 0600 until it is whole, then `mode`), fsync, rename, fsync of the folder. Raises
    OSError.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # mkstemp's 0600 would hide a result on a shared volume from its own operator
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def regular_size(path: Path, *, follow: bool) -> int:
    """The size in bytes of a regular file; with `follow`, of one that `path` links to. Raises OSError otherwise."""
    found = path.stat(follow_symlinks=follow)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))
    return found.st_size


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read it. Raises OSError, also for a pipe or a device: reading those may never end."""
    return os.fdopen(_opened(path, follow=True), "rb")


def _opened(path: Path, *, follow: bool) -> int:
    """Without `follow`, a link is refused too: where somebody else wrote it, it may lead anywhere."""
    regular_size(path, follow=follow)  # before it is opened: opening a device can already do something
    # Without O_NONBLOCK a pipe, put there meanwhile, waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "it is no file any more", str(path))


def read_regular(path: Path, *, most_bytes: int, follow: bool = True) -> bytes:
    """A file's content. Raises OSError as `open_regular`, and for more than `most_bytes`."""
    pieces, room = [], most_bytes + 1
    handle = _opened(path, follow=follow)
    try:
        while room and (piece := os.read(handle, min(room, PIECE_BYTES))):  # at once, each would get room for the most
            pieces.append(piece)
            room -= len(piece)
    finally:
        os.close(handle)
    if not room:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return b"".join(pieces)


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
