"""Types of data files, by content and then by suffix: Parquet, JSONL, a JSON array, CSV, and gzip and zstd of
the last three.

Each gives the rows of a file one after another. At most `MAX_ROW_BYTES` of a row are held in memory, and a compressed
file may not grow without bound (`bench.data.row_limits`).
"""

import codecs
import csv
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

from bench.data import row_limits
from bench.data.formats import DECIDING_KEYS, shorten
from bench.data.inputs import InputError
from bench.data.row_limits import ColumnNames, Row, UnpackedBytes, row_too_long
from bench.records import schema
from bench.records.atomic_files import open_regular
from bench.records.units import format_mib

MAX_FILES = 10_000  # files that may match a pattern
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
ZSTD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")  # a frame, or one to skip before it
UNREAD = {  # at the beginning of a file, or of its unpacked text
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    GZIP: "gzip",
    PARQUET: "Parquet",
}
ARROW = (b"ARROW1", b"\xff\xff\xff\xff")  # a file, or a stream as datasets saves it
OF_DATASETS = "name a file, a pattern like FOLDER/*.parquet, or write a data set with its to_parquet"
PACKED_SUFFIXES = (".gz", ".zst")
OTHER_SEPARATORS = ";\t|"
JSON_COLUMNS = ("messages", "conversations")  # CSV has only text, so these are parsed
DECODER = json.JSONDecoder(object_pairs_hook=schema.object_from_pairs)
PLAIN_DECODER = json.JSONDecoder()
BLANKS = re.compile(r"[ \t\r\n]*")


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


class DataRows:
    """Rows of a data file, each with its number; iterating raises InputError for a file that cannot be read on.

    `columns` are the user's names of columns. `unit` says what the number counts, "line" or "row". `sha256` and `bytes`
    are those of the file as it is stored, and complete after the last row.
    """

    def __init__(self, path: Path, columns: Mapping[str, str | None] | None = None) -> None:
        self.path, self.unit, self.bytes = path, "line", 0
        self.names = ColumnNames(columns or {})
        self._has_header = self._is_packed = False
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        number = 0
        try:
            if self.path.is_dir():
                raise InputError(f"{self.path}: is a folder", remedy=OF_DATASETS)
            with open_regular(self.path) as file:
                unpacked = UnpackedBytes(self.path, os.fstat(file.fileno()).st_size)
                stream = _buffered(file, self._add_stored)
                self._is_packed = is_parquet = stream.peek().startswith(PARQUET)
                rows = self._parquet_rows(stream, file, unpacked) if is_parquet else self._rows(stream, unpacked)
                for number, row in rows:
                    if self._is_packed and not (isinstance(row, bytes) and row.isspace()):
                        unpacked.add(row_limits.PACKED_ROW_BYTES)
                    yield number, row
            self.names.check_used(str(self.path))
        except (EOFError, zlib.error, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the decoders' have no number
                raise _unreadable(self.path, error) from error
            raise InputError(
                f"{self.path}: after {self.unit} {number}: the compressed data ends early or is damaged: {error}",
                remedy="copy the file again, or compress it again",
            ) from error

    def rename(self, location: str, document: dict[str, Any]) -> dict[str, Any]:
        """Return a row's object with our names of its columns. Raises InputError."""
        if self._has_header:  # renamed with the header
            return document
        return dict(zip(self.names.rename(location, list(document)), document.values(), strict=True))

    def _parquet_rows(
        self, stream: io.BufferedReader, file: BinaryIO, unpacked: UnpackedBytes
    ) -> Iterator[tuple[int, Row]]:
        self.unit, self._has_header, before = "row", True, os.fstat(file.fileno())
        while stream.read(1 << 20):  # for the digest: its end is read first
            pass
        yield from _tables().parquet_rows(self.path, file, self.names, unpacked)
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise InputError(f"{self.path}: changed while it was read", remedy="try again once it is written")

    def _rows(self, stream: io.BufferedReader, unpacked: UnpackedBytes) -> Iterator[tuple[int, Row]]:
        packed = "gzip" if stream.peek().startswith(GZIP) else "zstd" if ZSTD.match(stream.peek()) else ""
        if packed:
            self._is_packed = True
            stream = _buffered(_unpacked(stream, packed), lambda piece: unpacked.add(len(piece)))
        if stream.peek().startswith(codecs.BOM_UTF8):  # spreadsheets and other programs of Windows write it
            stream.read(len(codecs.BOM_UTF8))
        first_bytes = stream.peek()
        for magic, name in UNREAD.items():
            if first_bytes.startswith(magic):
                shown = f"{packed} of {name}" if packed else name
                raise InputError(
                    f"{self.path}: {shown} is not read here", remedy="unpack it, or compress it with gzip or zstd"
                )
        if first_bytes.startswith(ARROW):
            raise InputError(f"{self.path}: Arrow is not read", remedy=OF_DATASETS)
        if first_bytes.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise InputError(f"{self.path}: expected UTF-8 text, found UTF-16", remedy="save the file as UTF-8")
        if first_bytes.lstrip().startswith(b"["):  # no line of JSONL and no header of CSV begins so
            self.unit = "row"
            return _array_rows(self.path, stream)
        if self.path.suffix.lower() == ".parquet" and first_bytes:
            raise InputError(
                f"{self.path}: is not Parquet", remedy="write the file again, or name it after its content"
            )
        name = self.path.name.lower()
        for suffix in PACKED_SUFFIXES:
            name = name.removesuffix(suffix)
        if name.endswith(".csv"):
            self._has_header = True
            return _csv_rows(self.path, stream, self.names)
        return _lines(self.path, stream)

    def _add_stored(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self.bytes += len(piece)


def _tables() -> ModuleType:
    """Import the readers through pyarrow, 0.1 s that plain text does not need."""
    from bench.data import arrow_files

    return arrow_files


def _unpacked(stream: io.BufferedReader, packed: str) -> Any:
    if packed == "gzip":
        return gzip.GzipFile(fileobj=stream)
    return _tables().open_zstd(stream)


def sha256_of(path: Path) -> str:
    """Hash a data file as `DataRows` does, without its rows. Raises InputError."""
    try:
        with open_regular(path) as file:
            return _sha256(file)
    except OSError as error:
        raise _unreadable(path, error) from error


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(row_limits.CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read: {error.strerror}", remedy="name a regular file with conversations")


class _Observed(io.RawIOBase):
    """Stream of another file's bytes that passes each piece to a function."""

    def __init__(self, file: Any, observe: Callable[[memoryview], None]) -> None:
        self._file, self._observe = file, observe

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._file.readinto(buffer)
        self._observe(memoryview(buffer)[:count])
        return count


def _buffered(file: Any, observe: Callable[[memoryview], None]) -> io.BufferedReader:
    return io.BufferedReader(_Observed(file, observe), row_limits.CHUNK_BYTES)


def _lines(path: Path, stream: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(row_limits.MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > row_limits.MAX_ROW_BYTES:
            raise row_too_long(f"{path}: line {number}")
        yield number, line


def parse_json(location: str, text: str, remedy: str = "write one complete object per line") -> Any:
    """Return the value of a JSON text. Raises InputError, also for an object with a key twice."""
    try:
        return DECODER.decode(text)
    except schema.SchemaError as error:
        raise InputError(f"{location}: {error}", remedy="remove one of them") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not JSON", remedy=remedy) from error


# JSON array -----------------------------------------------------------------------------------------------------------


def _array_rows(path: Path, stream: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    text, number, before = _ArrayText(stream), 0, "["
    try:
        while (mark := text.pop_mark()) == before:
            if before == "[" and text.next_mark() == "]":
                mark = text.pop_mark()
                break
            number += 1
            yield number, text.pop_value(f"{path}: row {number}").encode()
            before = ","
        if mark != "]" or text.next_mark():
            expected = "nothing after the array" if mark == "]" else "a comma or the end of the array after it"
            raise InputError(f"{path}: row {number}: expected {expected}", remedy="write one JSON array of objects")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: row {number + 1}: not UTF-8 text") from error


class _ArrayText:
    """Text of a JSON array, of which at most twice the longest row is held."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream, self._decoder = stream, codecs.getincrementaldecoder("utf-8")()
        self._text, self._start, self._is_complete = "", 0, False

    def next_mark(self) -> str:
        """Return the next character that is not blank, or nothing at the end."""
        while True:
            match = BLANKS.match(self._text, self._start)
            self._start = match.end() if match else self._start
            if self._start < len(self._text) or self._is_complete:
                return self._text[self._start : self._start + 1]
            self._read_on()

    def pop_mark(self) -> str:
        """Return and remove what `next_mark` returns."""
        mark = self.next_mark()
        self._start += len(mark)
        return mark

    def pop_value(self, location: str) -> str:
        """Return and remove the text of the next JSON value. Raises InputError."""
        self.next_mark()
        while True:
            try:
                _, end = PLAIN_DECODER.raw_decode(self._text, self._start)
            except (ValueError, RecursionError) as error:
                end = len(self._text)
                if self._is_complete or isinstance(error, RecursionError):
                    raise InputError(f"{location}: not JSON", remedy="write one JSON array of objects") from error
            else:
                if end < len(self._text) or self._is_complete:  # a number may go on
                    value, self._start = self._text[self._start : end], end
                    return value
            if end - self._start > row_limits.MAX_ROW_BYTES:
                raise InputError(
                    f"{location}: not JSON, or longer than {format_mib(row_limits.MAX_ROW_BYTES)}",
                    remedy="correct or split it",
                )
            self._read_on()

    def _read_on(self) -> None:
        """Read as much again as there is, so that a long row is not parsed once for each chunk."""
        piece = self._stream.read(max(row_limits.CHUNK_BYTES, len(self._text) - self._start))
        self._text = self._text[self._start :] + self._decoder.decode(piece, final=not piece)
        self._start, self._is_complete = 0, not piece


# CSV ------------------------------------------------------------------------------------------------------------------


def _csv_rows(path: Path, stream: io.BufferedReader, names: ColumnNames) -> Iterator[tuple[int, Row]]:
    """Yield the rows below the header, each with the line on which it begins."""
    csv.field_size_limit(row_limits.MAX_ROW_BYTES)
    texts = _CsvText(path, stream)
    records = csv.reader(texts, strict=True)
    columns: list[str] = []
    while True:
        number = texts.begin_record()
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
            columns = names.check_header(location, fields)
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


class _CsvText:
    """Lines of a CSV file as text; a record of several lines is bounded as a whole."""

    def __init__(self, path: Path, stream: io.BufferedReader) -> None:
        self._path, self._lines = path, _lines(path, stream)
        self._number = self._first_number = self._record_bytes = 0

    def begin_record(self) -> int:
        """Return the number of the next line, with which a record begins."""
        self._record_bytes, self._first_number = 0, self._number + 1
        return self._first_number

    def __iter__(self) -> Iterator[str]:
        for number, line in self._lines:
            self._number = number
            self._record_bytes += len(line)
            if self._record_bytes > row_limits.MAX_ROW_BYTES:
                raise row_too_long(f"{self._path}: line {self._first_number}")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(f"{self._path}: line {self._number}: not UTF-8 text") from error
