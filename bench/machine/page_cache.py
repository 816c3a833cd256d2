"""The system's page cache per file: the resident share of a file, and dropping it. Linux.

Dropping needs only the right to read the file. File systems in memory, and sandboxes with their own cache, accept the
request and keep the pages, so mincore verifies the result.
"""

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

CHUNK_BYTES = 16 << 20
_LOWEST_BIT = bytes(value & 1 for value in range(256))  # the only bit that mincore defines


def drop(files: Iterable[Path]) -> None:
    """Ask the system to drop the files' pages; `resident_share` verifies it. Raises OSError."""
    if not hasattr(os, "posix_fadvise"):
        return  # not Linux
    for path in files:
        with path.open("rb") as file:
            os.fdatasync(file.fileno())  # unwritten pages cannot be dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def resident_share(files: Iterable[Path]) -> float | None:
    """Return the share, 0 to 1, of the files' pages that are in memory; None if unknown.

    mincore is correct only with write permission for the file (Linux 5.2); otherwise every page looks resident.
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
    """Read every byte of the files once and return their number. Raises OSError."""
    buffer = bytearray(CHUNK_BYTES)
    total = 0
    for path in files:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def _page_states(path: Path) -> bytes | None:
    """Return one byte per page, 0 if it is not in memory; None if unknown."""
    size = path.stat().st_size
    if size == 0:
        return b""
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    # Python exposes the address of a private mapping only; no page is touched.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        address = ctypes.c_char.from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None).mincore(
                ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), ctypes.byref(states)
            )
        finally:
            del address  # a mapping cannot be closed while a pointer into it exists
    return None if failed else bytes(states).translate(_LOWEST_BIT)
