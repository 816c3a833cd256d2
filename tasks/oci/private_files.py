"""Files that nobody else may read, written whole or not at all."""

import datetime
import os
from pathlib import Path

from bench.records.atomic_files import replacing


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` to `path` atomically; at no moment can others read more of it than `mode` says. Raises OSError.

    Where `path` is a link, the file that it leads to is written.
    """
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(real, mode=mode) as file:  # 0600 until it is whole
        file.write(content)


def keep_old(path: Path, *, mode: int = 0o600) -> Path:
    """A copy of the file beside it, with the time in its name. Raises OSError."""
    kept = path.with_name(f"{path.name}.{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}")
    write_private(kept, path.read_bytes(), mode=mode)
    return kept
