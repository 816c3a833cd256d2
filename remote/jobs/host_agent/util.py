"""What jobs and files share: answers in lines, input of a known length, names that stay inside, durable writes."""

from __future__ import annotations

import json
import os
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REFUSED = 3  # exit code: cannot be done, for the reason on standard error
CUT_SHORT = 4  # exit code: standard input ended early; another try may succeed


class Refusal(Exception):
    """What was asked cannot be done; the caller gets the message."""


class CutShort(Exception):
    """Standard input ended before its announced size."""


def line_of(document: object) -> bytes:
    """The CRC-32 of the JSON text, and the text: a transport that loses or changes part of it is noticed."""
    text = json.dumps(document).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def say(document: object) -> None:
    """Answer with one line."""
    sys.stdout.buffer.write(line_of(document))
    sys.stdout.buffer.flush()


def read_exactly(size: int) -> bytes:
    """The next `size` bytes of standard input. Its end is not waited for: a transport may never close it."""
    content = sys.stdin.buffer.read(size)
    if len(content) != size:
        raise CutShort(f"standard input ended after {len(content)} of {size} bytes")
    return content


def inside(root: str, name: str) -> str:
    """`name` below `root`. Raises Refusal for a name that would leave it."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise Refusal(f"{name!r} is not a path inside the folder")
    return os.path.join(root, *parts)


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Put `content` at `path`, whole or not at all, also after a power cut."""
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


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the folder's names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The parsed file; None if it is absent or not JSON."""
    try:
        return json.loads(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def uptime_sec() -> float:
    """Seconds since the host started."""
    return float(read_bytes("/proc/uptime").split()[0])


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()
