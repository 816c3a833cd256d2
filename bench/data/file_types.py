"""Types of data files, by content and then by suffix: Parquet, JSONL, a JSON array, CSV, and gzip and zstd of
the last three.

Each gives the rows of a file one after another. At most `MAX_ROW_BYTES` of a row are held in memory, but the whole text
of a JSON array. A file may not grow without bound when it is unpacked.
"""

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow
from pyarrow import parquet

from bench.data.formats import DECIDING_KEYS, FORMATS, detect_format, shorten
from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import hash_file, open_regular
from bench.records.units import format_mib

MAX_FILES = 10_000  # files that may match a pattern
MAX_ROW_BYTES = 16 << 20
MAX_ARRAY_BYTES = 1 << 30
# Limit of an unpacked file: the larger of 100 times its stored size (text shrinks to a third or a tenth) and 256 MiB.
MAX_GROWTH, ALWAYS_UNPACKED_BYTES = 100, 256 << 20
CHUNK_BYTES = 1 << 16
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to skip before it
UNREAD = {  # at the beginning of a file, or of its unpacked text
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    GZIP: "gzip",
    PARQUET: "Parquet",
    b"ARROW1": "Arrow",
    b"\xff\xff\xff\xff": "Arrow",  # a stream, as datasets saves it
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
READ = "write JSONL, CSV or a JSON array in UTF-8, which gzip or zstd may compress, or a data set with its to_parquet"
CSV_NAME = re.compile(r".*\.csv(\.gz|\.zst)?", re.IGNORECASE)
OTHER_SEPARATORS = ";\t|"
JSON_COLUMNS = ("messages", "conversations")  # CSV has only text, so these are parsed
DECODER = json.JSONDecoder(object_pairs_hook=schema.object_from_pairs)
PLAIN_DECODER = json.JSONDecoder()
KNOWN_COLUMNS = frozenset(key for data_format in FORMATS for key in data_format.known)

# A row with our names of its columns, or why it cannot be used.
Row: TypeAlias = dict[str, Any] | InputError


def expand(path: str) -> list[Path]:
    """Return the files that a path names: itself, or those that match a pattern in its last part, in order.

    Raises InputError for a pattern without a file.
    """
    if not any(mark in path for mark in "*?[") or os.path.lexists(path):
        return [Path(path)]
    pattern = Path(path)
    files = sorted(file for file in pattern.parent.glob(pattern.name) if not file.name.startswith("."))
    if not 0 < len(files) <= MAX_FILES:
        raise InputError(
            f"{path}: {len(files):,} files match, expected 1 to {MAX_FILES:,}",
            remedy="only the last part of a path may have *, ? or [ ]",
        )
    return files


class ColumnNames:
    """The user's names of columns, `train.columns`: our name to the file's, or to None for one that is not read."""

    def __init__(self, columns: Mapping[str, str | None]) -> None:
        for name in columns:
            if name not in KNOWN_COLUMNS:
                raise InputError(
                    f"train.columns: {name}: not a column that is read",
                    remedy=f"map one of {', '.join(sorted(KNOWN_COLUMNS))}",
                )
        self._ours = {theirs: ours for ours, theirs in columns.items() if theirs is not None}
        self._unused = set(self._ours)
        dropped = [ours for ours, theirs in columns.items() if theirs is None and ours not in self._ours]
        self._ours |= {ours: f"{ours} (left out)" for ours in dropped}

    def rename(self, location: str, names: Sequence[str]) -> list[str]:
        """Return a row's names with ours in place of the file's. Raises InputError for two columns of one name."""
        self._unused.difference_update(names)
        renamed = [self._ours.get(name, name) for name in names]
        if len(set(renamed)) < len(renamed):
            twice = next(ours for ours in renamed if renamed.count(ours) > 1)
            raise InputError(
                f"{location}: {twice[:40]}: two columns have this name, or get it by train.columns",
                remedy="rename or remove one of them",
            )
        return renamed

    def rename_header(self, location: str, names: Sequence[str]) -> list[str]:
        """Return the renamed columns of a table. Raises InputError for columns that cannot be read."""
        renamed = self.rename(location, names)
        detect_format(location, dict.fromkeys(renamed))
        return renamed

    def check_used(self, path: str) -> None:
        """Raise InputError for a column of `train.columns` that no row had."""
        if self._unused:
            raise InputError(f"{path}: train.columns: no column {min(self._unused)[:40]}", remedy="correct the setting")


class DataRows:
    """Rows of a data file, each with its number; iterating raises InputError for a file that cannot be read on.

    `unit` says what the number counts, "line" or "row". `sha256` is that of the file as it is stored.
    """

    def __init__(self, path: Path, names: ColumnNames) -> None:
        self.path, self.unit, self.sha256 = path, "line", ""
        self._names = names

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        number = 0
        try:
            if self.path.is_dir():
                raise InputError(f"{self.path}: is a folder", remedy=f"name a pattern like FOLDER/*.parquet, or {READ}")
            with open_regular(self.path) as file:
                before = os.fstat(file.fileno())
                self.sha256 = hash_file(file)
                file.seek(0)
                for number, row in self._rows(file, max(ALWAYS_UNPACKED_BYTES, MAX_GROWTH * before.st_size)):
                    yield number, row
            after = self.path.stat()
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise InputError(f"{self.path}: changed while it was read", remedy="try again once it is written")
        except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the decoders' have no number
                raise _unreadable(self.path, error) from error
            reason = " ".join(str(error).split())[:160]
            raise InputError(
                f"{self.path}: after {self.unit} {number}: damaged, or ends early: {reason}",
                remedy="write or copy the file again",
            ) from error

    def _rows(self, file: io.BufferedReader, maximum: int) -> Iterator[tuple[int, Row]]:
        stream = file
        if stream.peek().startswith(PARQUET):
            self.unit = "row"
            return _parquet_rows(self.path, file, self._names, maximum)
        packed = "gzip" if stream.peek().startswith(GZIP) else "zstd" if ZSTD.match(stream.peek()) else ""
        if packed:
            stream = io.BufferedReader(pyarrow.CompressedInputStream(stream, packed), CHUNK_BYTES)
        if stream.peek().startswith(codecs.BOM_UTF8):  # spreadsheets and other programs of Windows write it
            stream.read(len(codecs.BOM_UTF8))
        first_bytes = stream.peek()
        for magic, name in UNREAD.items():
            if first_bytes.startswith(magic):
                shown = f"{packed} of {name}" if packed else name
                raise InputError(f"{self.path}: {shown} is not read here", remedy=READ)
        if first_bytes.lstrip().startswith(b"["):  # no line of JSONL and no header of CSV begins so
            self.unit = "row"
            documents = _array_values(self.path, stream, min(maximum, MAX_ARRAY_BYTES))
            return _object_rows(f"{self.path}: row", documents, self._names)
        lines = _lines(self.path, stream, maximum)
        if CSV_NAME.fullmatch(self.path.name):
            return _csv_rows(self.path, lines, self._names)
        return _object_rows(f"{self.path}: line", (line for line in lines if line[1].strip()), self._names)


def sha256_of(path: Path) -> str:
    """Hash a data file as `DataRows` does, without its rows. Raises InputError."""
    try:
        with open_regular(path) as file:
            return hash_file(file)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror}", remedy="name a regular file with conversations")


def _too_long(location: str) -> InputError:
    return InputError(f"{location}: longer than {format_mib(MAX_ROW_BYTES)}", remedy="split or remove it")


def _too_large(path: Path, maximum: int) -> InputError:
    return InputError(
        f"{path}: unpacks to more than {format_mib(maximum)}", remedy="write it as plain JSONL, a row in each line"
    )


def _lines(path: Path, stream: io.BufferedReader, maximum: int) -> Iterator[tuple[int, bytes]]:
    number = size = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number, size = number + 1, size + len(line)
        if size > maximum:
            raise _too_large(path, maximum)
        yield number, line


def parse_json(location: str, text: str | bytes, remedy: str = "write one complete object per line") -> Any:
    """Return the value of a JSON text. Raises InputError, also for an object with a key twice."""
    try:
        return DECODER.decode(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise InputError(f"{location}: not UTF-8 text") from error
    except schema.SchemaError as error:
        raise InputError(f"{location}: {error}", remedy="remove one of them") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not JSON", remedy=remedy) from error


def _array_values(path: Path, stream: io.BufferedReader, maximum: int) -> Iterator[tuple[int, Any]]:
    """Yield the values of an array, which is held in memory."""
    text = b"".join(line for _, line in _lines(path, stream, maximum))
    try:
        values = DECODER.decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON array: {error}", remedy="write one JSON array of objects") from error
    yield from enumerate(values, start=1)


def _object_rows(unit: str, documents: Iterable[tuple[int, Any]], names: ColumnNames) -> Iterator[tuple[int, Row]]:
    """Yield the rows of objects, parsed ones or their texts."""
    for number, document in documents:
        location = f"{unit} {number}"
        if isinstance(document, bytes) and len(document) > MAX_ROW_BYTES:
            raise _too_long(location)
        try:
            row = parse_json(location, document) if isinstance(document, bytes) else document
            if not isinstance(row, dict):
                raise InputError(f"{location}: expected a JSON object, found {schema.type_name(row)}")
            yield number, dict(zip(names.rename(location, list(row)), row.values(), strict=True))
        except InputError as error:
            yield number, error


def _csv_rows(path: Path, lines: Iterator[tuple[int, bytes]], names: ColumnNames) -> Iterator[tuple[int, Row]]:
    """Yield the rows below the header, each with the line on which it begins."""
    csv.field_size_limit(MAX_ROW_BYTES)
    records = csv.reader((line.decode() for _, line in lines), strict=True)
    columns: list[str] = []
    while True:
        number = records.line_num + 1
        location = f"{path}: line {number}"
        try:
            fields = next(records, None)
        except csv.Error as error:
            raise InputError(
                f"{location}: not CSV: {error}", remedy="quote texts with commas or line breaks"
            ) from error
        if fields is None:
            return
        if not fields:
            continue
        if not columns:
            if len(fields) == 1 and any(separator in fields[0] for separator in OTHER_SEPARATORS):
                raise InputError(
                    f"{location}: expected columns separated by commas, found {shorten(fields[0])}",
                    remedy="write the file with commas, or as JSONL or Parquet",
                )
            columns = names.rename_header(location, fields)
        elif len(fields) != len(columns):
            yield (
                number,
                InputError(f"{location}: expected {len(columns)} fields as in the header, found {len(fields)}"),
            )
        else:
            try:
                yield number, {key: _csv_value(location, key, text) for key, text in zip(columns, fields, strict=True)}
            except InputError as error:
                yield number, error


def _csv_value(location: str, key: str, text: str) -> Any:
    """Return the value of a field: turns and the keys that decide what is trained on are JSON, all others text."""
    if key in JSON_COLUMNS:
        return parse_json(f"{location}: {key}", text)
    if key not in DECIDING_KEYS:
        return text
    try:
        return PLAIN_DECODER.decode(text.lower()) if text.strip() else None  # pandas writes True and False
    except (ValueError, RecursionError):
        return text


def _parquet_rows(path: Path, file: BinaryIO, names: ColumnNames, maximum: int) -> Iterator[tuple[int, Row]]:
    """Yield the rows, read one by one: a short value in the file may stand in all of them.

    pyarrow decodes a page at once: the sizes that the file states are checked before, what comes out is counted.
    """
    source = parquet.ParquetFile(file, buffer_size=CHUNK_BYTES)
    header, size = source.schema_arrow.names, 0
    pairs = list(zip(header, names.rename_header(f"{path}: columns", header), strict=True))
    read = {name: ours for name, ours in pairs if ours in KNOWN_COLUMNS or ours in DECIDING_KEYS}
    unread = dict.fromkeys(ours for name, ours in pairs if name not in read)
    groups = (source.metadata.row_group(index) for index in range(source.num_row_groups))
    if sum(max(0, group.total_byte_size) for group in groups) > maximum:
        raise _too_large(path, maximum)
    batches = source.iter_batches(batch_size=1, columns=list(read), use_threads=False)
    for number, batch in enumerate(batches, start=1):
        size += batch.nbytes
        if size > maximum:
            raise _too_large(path, maximum)
        location = f"{path}: row {number}"
        if batch.nbytes > MAX_ROW_BYTES:
            raise _too_long(location)
        try:
            (values,) = batch.to_pylist()
            row: Row = {ours: _without_nulls(values[name]) for name, ours in read.items()} | unread
        except UnicodeDecodeError:
            row = InputError(f"{location}: not UTF-8 text")
        yield number, row


def _without_nulls(value: Any) -> Any:
    """Return a value without keys that are null: a struct has the keys of all rows' objects, a JSON Schema's too."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
