"""SHA256SUMS: the sha256 of each file of a folder, in the format of `sha256sum --check`."""

import re
from collections.abc import Mapping
from pathlib import Path

from bench.records.atomic_files import read_regular, sha256_of
from bench.records.paths import SUMS_FILE

MAX_SUMS_BYTES = 64 << 20


def read_sums(folder: Path) -> dict[str, str]:
    """Return the digests by name. Raises OSError, and ValueError for another content."""
    sums = {}
    lines = read_regular(folder / SUMS_FILE, max_bytes=MAX_SUMS_BYTES).decode().splitlines()
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](?:\./)?(.+)", line)
        if not match:
            raise ValueError(f"line {number}: expected a sha256, two spaces and a file name")
        sums[match[2]] = match[1]
    return sums


def find_changed(folder: Path, digests: Mapping[str, str]) -> str | None:
    """Return the first name whose file is missing or has another digest; None if all are unchanged. Raises OSError."""
    paths = {name: folder / name for name in digests}
    return next((name for name, path in paths.items() if not path.is_file() or sha256_of(path) != digests[name]), None)


def folder_fault(folder: Path) -> str | None:
    """Return why the folder does not have exactly the files of its SHA256SUMS; None if it has."""
    try:
        digests = read_sums(folder)
        paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        names = {str(path) for path in paths if not path.name.startswith(".")} - {SUMS_FILE}
        outside = next((name for name in digests if Path(name).is_absolute() or ".." in Path(name).parts), None)
        changed = outside if outside is not None else find_changed(folder, digests)
    except (OSError, ValueError):
        return f"{folder / SUMS_FILE}: cannot be read"
    if changed is not None:
        return f"{folder / changed}: does not match {SUMS_FILE}"
    unlisted = min(names - digests.keys(), default=None)
    return None if unlisted is None else f"{folder / unlisted}: not in {SUMS_FILE}"
