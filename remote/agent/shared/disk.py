"""Files on this host: safe paths, durable writes, JSON."""

from __future__ import annotations

import json
import os

from remote.agent.shared.wire import RequestRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def join_inside(root: str, name: str) -> str:
    """Join `root` and `name`. Raises RequestRefused for a name that would leave `root`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise RequestRefused(f"{name!r} is not a path inside the folder")
    return os.path.join(root, *parts)


def write_atomic(path: str | os.PathLike[str], content: bytes) -> None:
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


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable (fsync)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: str | os.PathLike[str]) -> Any:
    """Parse a JSON file; None if it is absent or not JSON."""
    try:
        return json.loads(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def uptime_sec() -> float:
    """Return the seconds since the host started."""
    return float(read_bytes("/proc/uptime").split()[0])


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as file:
        return file.read()
