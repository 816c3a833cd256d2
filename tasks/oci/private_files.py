"""Atomic writes of files that only their owner may read."""

import datetime
import os
from pathlib import Path

from bench.records.atomic_files import open_atomic


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` atomically; its permissions never exceed `mode`. Follows a symbolic link. Raises OSError."""
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_atomic(target, mode=mode) as file:  # 0600 until it is complete
        file.write(content)


def back_up(path: Path, *, mode: int = 0o600) -> Path:
    """Copy the file to a name with a timestamp, in the same folder. Raises OSError."""
    backup = path.with_name(f"{path.name}.{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}")
    write_private(backup, path.read_bytes(), mode=mode)
    return backup
