"""Files on a host: safe paths, durable writes, JSON; names, partial files and digests of a transfer."""

from __future__ import annotations

import hashlib
import json
import os

from remote.agent.shared.wire import RequestRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

    AnyPath = str | os.PathLike[str]

CHUNK_BYTES = 1 << 20
MAX_NAME_BYTES = 255  # limit of ext4, xfs, tmpfs and NFS


def join_inside(root: str, name: str) -> str:
    """Join `root` and `name`. Raises RequestRefused for a name that would leave `root`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise RequestRefused(f"{name!r} is not a path inside the folder")
    try:
        os.fsencode(name)
    except UnicodeEncodeError as error:
        raise RequestRefused(f"{name!r} is not a path of this system") from error
    return os.path.join(root, *parts)


def write_atomic(path: AnyPath, content: bytes) -> None:
    """Write `content` to `path` atomically and durably."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync_folder(folder or ".")


def sync_folder(folder: AnyPath) -> None:
    """Make the names in a folder durable (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: AnyPath) -> Any:
    """Parse a JSON file; None if it is absent or not JSON."""
    try:
        return json.loads(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def read_bytes(path: AnyPath) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def hash_file(path: AnyPath) -> tuple[int, str]:
    """Return size in bytes and sha256 of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        for piece in read_chunks(file):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def read_chunks(file: BinaryIO, size: int | None = None) -> Iterator[memoryview]:
    """Yield the next `size` bytes of an unbuffered file (None: to its end). A chunk is valid until the next one."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    while size is None or size > 0:
        got = file.readinto(buffer if size is None else buffer[: min(CHUNK_BYTES, size)])  # type: ignore[attr-defined]
        if not got:
            return
        yield buffer[:got]
        size = None if size is None else size - got


def partial_path(path: AnyPath, tag: str = "") -> str:
    """Return the path of the partial file of `path`. A `tag` distinguishes versions."""
    folder, name = os.path.split(path)
    end = f".{tag}.part" if tag else ".part"
    if len(os.fsencode(name)) + len(end) + 1 > MAX_NAME_BYTES:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(folder, f".{name}{end}")


def install_part(part: str, path: AnyPath, wanted: tuple[int, str]) -> bool:
    """Rename `part` to `path` if it has the wanted bytes; return True if `path` has them now."""
    try:
        if hash_file(part) != wanted:
            os.unlink(part)
            return False
        os.replace(part, path)
    except FileNotFoundError:
        # Two senders of the same bytes share the partial file; the other one finished first.
        return os.path.isfile(path) and hash_file(path) == wanted
    sync_folder(os.path.dirname(path))
    return True


def list_names(root: AnyPath) -> Iterator[str]:
    """Yield the files below `root` that a transfer moves, in a stable order; none if the folder does not exist."""

    def unreadable(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error  # its files would be skipped silently

    for folder, folders, names in os.walk(root, onerror=unreadable):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if is_movable(path):
                yield os.path.relpath(path, root)


def is_movable(path: AnyPath) -> bool:
    """Return True if a transfer moves this file: regular, not a link, not a partial file."""
    return not os.fspath(path).endswith(".part") and os.path.isfile(path) and not os.path.islink(path)
