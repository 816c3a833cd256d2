"""The system's page cache per file: the share in memory, and dropping it. Linux.

Both need only the right to read the file. File systems in memory, and sandboxes with their own cache, accept a drop and
keep the pages, so the share verifies it.
"""

import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

CHUNK_BYTES = 16 << 20
PROBES = 16  # for each file


def drop(files: Sequence[Path]) -> float | None:
    """Ask the system to drop the files' pages, and return the share that stayed. Raises OSError."""
    if not hasattr(os, "posix_fadvise"):
        return None  # not Linux
    for path in files:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())  # unwritten pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    share = resident_share(files)
    for path in files:  # the check itself may have loaded pages
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return share


def resident_share(files: Iterable[Path]) -> float | None:
    """Return the share, 0 to 1, of the probed pages that are in memory; None if unknown.

    A read with RWF_NOWAIT fails instead of waiting for a disk.
    """
    if not hasattr(os, "RWF_NOWAIT"):
        return None
    resident = probed = 0
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            # From the end to the start: a read of an uncached page may still load the pages after it.
            for offset in range(size - 1, -1, -max(mmap.PAGESIZE, size // PROBES)):
                probed += 1
                try:
                    os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
                except BlockingIOError:
                    continue
                except OSError:  # a file system without such reads
                    return None
                resident += 1
    return resident / probed if probed else None


def read_all(files: Iterable[Path]) -> int:
    """Read every byte of the files once and return their number. Raises OSError."""
    buffer = bytearray(CHUNK_BYTES)
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total
