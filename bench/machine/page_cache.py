"""The system's page cache, file by file: which part of a file it holds, and dropping it. Linux.

Dropping needs no right beyond reading the file. File systems in memory, and sandboxes with a cache of their own, accept
the request and keep the pages, so whether it worked is asked of mincore.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

PIECE_BYTES = 16 << 20
_LOWEST_BIT = bytes(value & 1 for value in range(256))  # the only one that mincore defines


def drop(files: Iterable[Path]) -> None:
    """Ask the system to drop the files' pages; `resident_share` tells whether it did. Raises OSError."""
    if not hasattr(os, "posix_fadvise"):
        return  # not Linux: nothing to ask
    for path in files:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())  # pages not yet written to the disk cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(files: Iterable[Path]) -> float | None:
    """The share, 0 to 1, of the files' pages that are in memory; None where unknown.

    mincore is right only for those who may write the file (Linux 5.2); to others every page looks resident.
    """
    resident = pages = 0
    for path in files:
        if not os.access(path, os.W_OK):
            return None
        states = _page_states(path)
        if states is None:
            return None
        resident += len(states) - states.count(0)
        pages += len(states)
    return resident / pages if pages else None


def read_all(files: Iterable[Path]) -> int:
    """Read every byte of the files once; the number of bytes. Raises OSError."""
    buffer = bytearray(PIECE_BYTES)
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _page_states(path: Path) -> bytes | None:
    """One byte a page, 0 where it is not in memory; None where unknown."""
    size = path.stat().st_size
    if size == 0:
        return b""
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # Python gives the address of a private copy only; none of its pages is touched.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        address = ctypes.c_char.from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), ctypes.byref(states)
            )
        finally:
            del address  # a mapping with a pointer into it cannot be closed
    return None if failed else bytes(states).translate(_LOWEST_BIT)
