"""What jobs and files share: answers in lines, input of a known length, names that stay inside, durable writes."""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path

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


def inside(root: str, name: str) -> Path:
    """`name` below `root`. Raises Refusal for a name that would leave it."""
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
        raise Refusal(f"{name!r} is not a path inside the folder")
    return Path(root, *parts)


def write_atomic(path: Path, content: bytes) -> None:
    """Put `content` at `path`, whole or not at all, also after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the folder's names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """The parsed file; None if it is absent or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def uptime_sec() -> float:
    """Seconds since the host started."""
    return float(Path("/proc/uptime").read_text().split()[0])
