"""Checksummed records: JSON with a schema version, the version of the software that wrote it, and the
sha256 of its own content, verified on reading.

A truncated, damaged or foreign file raises an error that names it, and never enters a report.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bench.records import schema
from bench.records.atomic_files import read_regular, write_atomic
from bench.records.status import Failure
from bench.records.version import SCHEMA_VERSION, VERSION

S = TypeVar("S", bound="Checksummed")
MAX_BYTES = 32_000_000  # a plan of 10,000 trials takes 10 MB, a result of 100,000 steps 7 MB


class ResultError(Failure, ValueError):
    """Record that cannot be read or verified; the message names the file and the reason."""


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(_CANONICAL.encode(document).encode()).hexdigest()


def write_checksummed(path: Path, kind: str, record: object) -> Path:
    """Write a dataclass atomically to `path`. Raises OSError."""
    document = {"kind": kind, "schema_version": SCHEMA_VERSION, "version": VERSION, **schema.to_json(record)}
    document["sha256"] = _digest(document)
    write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return path


class Checksummed:
    """Base of a record that has its own file `FILE` in a folder, with the kind `KIND`."""

    FILE: ClassVar[str]
    KIND: ClassVar[str]

    def write(self, folder: Path) -> Path:
        """Write the record into `folder`, atomically. Raises OSError, for example if the disk is full."""
        return write_checksummed(folder / self.FILE, self.KIND, self)

    @classmethod
    def read(cls: type[S], path: Path) -> S:
        """Read and verify the record at `path`. Raises ResultError."""
        return read_checksummed(cls, path, cls.KIND)


def refuse_other_version(where: str, *versions: object) -> None:
    """Raise ResultError if one of a document's versions, of its software or schema, has another first number."""
    for version in versions:
        major = str(version).partition(".")[0]
        if major == str(SCHEMA_VERSION):
            continue
        is_known = major.isdecimal() and len(major) < 4
        raise ResultError(
            f"{where}: written by " + (f"qlora-fleet {major}.x" if is_known else "an unknown version"),
            remedy=f"this is {VERSION}, which reads {SCHEMA_VERSION}.x" + (f"; {major}.x reads it" if is_known else ""),
        )


def read_checksummed(cls: type[schema.T], path: Path, kind: str) -> schema.T:
    """Read and verify a record. Raises ResultError."""
    try:
        document = schema.parse(read_regular(path, max_bytes=MAX_BYTES, follow=False))
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    except schema.SchemaError as error:
        raise ResultError(f"{path}: {error}") from error
    except ValueError as error:
        raise ResultError(f"{path}: not complete JSON", remedy="the file is truncated or damaged") from error
    if not isinstance(document, dict) or document.get("kind") != kind:
        raise ResultError(f"{path}: not a {kind} record")
    refuse_other_version(str(path), document.get("schema_version"), document.get("version"))
    try:
        is_whole = document.pop("sha256", None) == _digest(document)
    except (ValueError, RecursionError):  # a lone surrogate or 1e999, which are never written
        is_whole = False
    if not is_whole:
        raise ResultError(f"{path}: its sha256 does not match its content", remedy="the file was changed or damaged")
    del document["kind"], document["schema_version"], document["version"]
    try:
        return schema.from_json(cls, document, str(path))
    except schema.SchemaError as error:
        raise ResultError.from_error(error) from error
