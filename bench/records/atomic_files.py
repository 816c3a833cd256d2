"""Atomic writes, reads of regular files, and sha256 of files."""

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 16
# Faults of the storage: transient, or another machine may not have them. ESTALE is a network file system's.
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)


def write_atomic(path: Path, content: bytes) -> None:
    """Write `content` to `path` with `open_atomic`. Raises OSError."""
    with open_atomic(path) as file:
        file.write(content)


@contextlib.contextmanager
def open_atomic(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a file for writing and reading that replaces `path` at the end of the block. Raises OSError.

    Readers see the old file, the new file or none, even after a crash: a temporary file in the same folder (mode 0600
    until complete, then `mode`), fsync, rename, fsync of the folder.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # mkstemp's 0600 would hide a result on a shared volume from its operator
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:  # a write or fsync names no file
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def regular_file_size(path: Path, *, follow: bool) -> int:
    """Return the bytes of a regular file, with `follow` also through a symbolic link. Raises OSError otherwise."""
    status = path.stat(follow_symlinks=follow)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return status.st_size


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError, also for a pipe or a device: reading those may never end."""
    return os.fdopen(_open_regular_descriptor(path, follow=True), "rb")


def _open_regular_descriptor(path: Path, *, follow: bool) -> int:
    """Open a regular file. Without `follow` a link is an error: another user may have pointed it anywhere."""
    regular_file_size(path, follow=follow)  # checked before opening: opening a device can have effects
    # Without O_NONBLOCK a pipe created meanwhile would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no longer a regular file", str(path))


def read_regular(path: Path, *, max_bytes: int, follow: bool = True) -> bytes:
    """Read a file. Raises OSError like `open_regular`, and for more than `max_bytes`."""
    chunks, remaining = [], max_bytes + 1
    descriptor = _open_regular_descriptor(path, follow=follow)
    try:
        # One read would allocate `max_bytes` for every file.
        while remaining and (chunk := os.read(descriptor, min(remaining, CHUNK_BYTES))):
            chunks.append(chunk)
            remaining -= len(chunk)
    finally:
        os.close(descriptor)
    if not remaining:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return b"".join(chunks)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hash_file(file)


def hash_file(file: BinaryIO) -> str:
    """Return the sha256 of what follows in an open file, read in chunks. Raises OSError."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()
