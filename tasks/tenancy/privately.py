"""Files that nobody else may read, written whole or not at all."""

import contextlib
import datetime
import os
import tempfile
from pathlib import Path


def write_private(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Write `content` to `path` atomically; at no moment can others read more of it than `mode` says. Raises OSError.

    Where `path` is a link, the file that it leads to is written.
    """
    real = Path(os.path.realpath(path))
    real.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.", suffix=".part")  # 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, real)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def keep_old(path: Path, *, mode: int = 0o600) -> Path:
    """A copy of the file beside it, with the time in its name. Raises OSError."""
    kept = path.with_name(f"{path.name}.{datetime.datetime.now().astimezone():%Y%m%d-%H%M%S}")
    write_private(kept, path.read_bytes(), mode=mode)
    return kept
