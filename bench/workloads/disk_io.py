"""Read rates of the model folder, from the disk and from the page cache.

A read measures the disk only if the page cache was empty. Any user may ask Linux to drop a file's cached pages
(posix_fadvise DONTNEED); reads that do not wait for a disk (preadv2 RWF_NOWAIT) check that the pages are gone. If that
cannot be checked, a read does not count as cold.

Standard library only. Not covered: caches below the kernel's, in a disk or in a file server.
"""

import errno
import mmap
import os
import time
from pathlib import Path

from bench.harness.record import Record
from bench.harness.termination import StopSignals
from bench.machine import page_cache
from bench.records.bootstrap import summarize

BLOCK_BYTES = 8 << 20
PROBES = 16


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files, largest first."""
    files = [path for path in folder.iterdir() if path.suffix == ".safetensors" and path.is_file()]
    return sorted(files, key=lambda path: (-path.stat().st_size, path.name))


def drop_from_cache(files: list[Path]) -> bool:
    """Ask the kernel to drop the files' pages; True only if they are verifiably gone. Raises OSError."""
    if not hasattr(os, "posix_fadvise"):
        return False
    page_cache.drop(files)
    is_cold = all(_is_cold(path) for path in files)
    page_cache.drop(files)  # the check itself may have read pages
    return is_cold


def add_reads(record: Record, folder: Path, max_bytes: int, stops: StopSignals) -> None:
    """Add disk_read_gb_per_sec twice: cold if the cache can be dropped, then warm. Raises OSError."""
    files = weight_files(folder)
    is_cold = drop_from_cache(files)
    for cold in (True, False):
        if cold and not is_cold:
            note = "the page cache could not be dropped here, or not verifiably"
            record.add("disk_read_gb_per_sec", None, note=note, cold=True)
            _read(files, max_bytes, stops)  # fill the cache for the warm read
            continue
        rates, count = _read(files, max_bytes, stops)
        record.add("disk_read_gb_per_sec", summarize(rates), cold=cold, bytes=count)


def _read(files: list[Path], max_bytes: int, stops: StopSignals) -> tuple[list[float], int]:
    """Return GB/s of each piece, in order, and the bytes read; a piece is a 16th of the total, but at least 1 MiB."""
    planned = min(max_bytes, sum(path.stat().st_size for path in files))
    piece = max(1 << 20, planned // 16)
    block = memoryview(bytearray(min(BLOCK_BYTES, piece)))
    rates: list[float] = []
    done = in_piece = 0
    start = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while done < planned and (count := file.readinto(block)):
                done += count
                in_piece += count
                if in_piece >= piece or done >= planned:
                    rates.append(in_piece / (time.perf_counter() - start) / 1e9)
                    stops.check()
                    in_piece, start = 0, time.perf_counter()
    return rates, done


def _is_cold(path: Path) -> bool:
    """Return True if no probed byte is in the page cache; False if one is, or if that is unknown.

    Does not use mincore like `bench.machine.page_cache`: that needs write permission, and a pod's model folder may be
    read-only.
    """
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return False
    size = path.stat().st_size
    step = max(mmap.PAGESIZE, size // PROBES)
    with path.open("rb") as file:
        # From the end to the start: a read of an uncached page may still load the pages after it.
        for offset in range(max(0, size - mmap.PAGESIZE), -1, -step):
            try:
                os.preadv(file.fileno(), [bytearray(1)], offset, os.RWF_NOWAIT)
            except OSError as error:
                if error.errno != errno.EAGAIN:
                    return False
            else:
                return False
    return True
