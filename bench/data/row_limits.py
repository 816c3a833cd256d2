"""Limits of the rows of a data file, and the names of its columns."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from bench.data.formats import FORMATS, detect_kind
from bench.data.inputs import InputError
from bench.records.units import format_mib

MAX_ROW_BYTES = 16 << 20
MAX_COLUMNS = 256
# Limit of an unpacked file: the larger of 100 times its stored size (text shrinks to a third or a tenth) and 256 MiB.
MAX_GROWTH, ALWAYS_UNPACKED_BYTES = 100, 256 << 20
PACKED_ROW_BYTES = 256  # counted for each row of an unpacked file: a tiny one takes as long as others
MAX_TURNS = 4096  # in a row, over all its answers: each is rendered with all turns before it
CHUNK_BYTES = 1 << 16
KNOWN_COLUMNS = frozenset(key for data_format in FORMATS.values() for key in data_format.known)

# The JSON text of a row, its object, or why it cannot be used.
Row: TypeAlias = bytes | dict[str, Any] | InputError


class UnpackedBytes:
    """Count of a file's unpacked bytes, which may not grow without bound."""

    def __init__(self, path: Path, stored_bytes: int) -> None:
        self._path, self._count = path, 0
        self._maximum = max(ALWAYS_UNPACKED_BYTES, MAX_GROWTH * stored_bytes)

    def check(self, count: int) -> None:
        """Raise InputError if the file would unpack to `count` bytes more than allowed."""
        if self._count + count > self._maximum:
            raise InputError(
                f"{self._path}: unpacks to more than {format_mib(self._maximum)}, {MAX_GROWTH} times its size",
                remedy="write it as plain JSONL",
            )

    def add(self, count: int) -> None:
        """Count unpacked bytes. Raises InputError like `check`."""
        self.check(count)
        self._count += count


def row_too_long(location: str) -> InputError:
    return InputError(f"{location}: longer than {format_mib(MAX_ROW_BYTES)}", remedy="split or remove it")


class ColumnNames:
    """The user's names of columns, `train.columns`: our name to the file's, or to None for one that is not read.

    `unused` are those that no row had yet.
    """

    def __init__(self, columns: Mapping[str, str | None]) -> None:
        for name in columns:
            if name not in KNOWN_COLUMNS:
                raise InputError(
                    f"train.columns: {name}: not a column that is read",
                    remedy=f"map one of {', '.join(sorted(KNOWN_COLUMNS))}",
                )
        self._ours = {theirs: ours for ours, theirs in columns.items() if theirs is not None}
        self.unused = set(self._ours)
        dropped = [ours for ours, theirs in columns.items() if theirs is None and ours not in self._ours]
        self._ours |= {ours: f"{ours} (left out)" for ours in dropped}

    def rename(self, location: str, names: Sequence[str]) -> list[str]:
        """Return a row's names with ours in place of the file's. Raises InputError for two columns of one name."""
        if not self._ours:
            return list(names)
        self.unused.difference_update(names)
        renamed = [self._ours.get(name, name) for name in names]
        for name, ours in zip(names, renamed, strict=True):
            if name != ours and renamed.count(ours) > 1:
                raise InputError(
                    f"{location}: {ours}: the file has this column as well as {name}, which train.columns maps to it",
                    remedy="rename one of them",
                )
        return renamed

    def check_header(self, location: str, names: Sequence[str]) -> list[str]:
        """Return the renamed columns of a table. Raises InputError for columns that cannot be read."""
        if len(names) > MAX_COLUMNS:
            raise InputError(f"{location}: expected at most {MAX_COLUMNS} columns, found {len(names)}")
        if len(set(names)) < len(names):
            raise InputError(f"{location}: a column occurs twice in the header", remedy="remove one of them")
        renamed = self.rename(location, names)
        self.check_used(location, names)
        detect_kind(location, dict.fromkeys(renamed))
        return renamed

    def check_used(self, location: str, names: Sequence[str] = ()) -> None:
        """Raise InputError for a column of `train.columns` that no row had."""
        if self.unused:
            existing = f"; it has {', '.join(repr(name)[1:-1][:40] for name in names[:8])}" if names else ""
            raise InputError(
                f"{location}: train.columns: no column {min(self.unused)[:40]}{existing}", remedy="correct the setting"
            )
