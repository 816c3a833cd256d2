"""Types of data files, by content and then by suffix: Parquet, JSONL, a JSON array, CSV, and gzip of these three.

Each gives the rows of a file one after another. At most `MAX_ROW_BYTES` of a row are held in memory, and a compressed
file may not grow without bound. Only the standard library, and pyarrow once a Parquet file is read.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from bench.data.formats import FORMATS, LINE_REFUSED, detect_kind
from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import open_regular
from bench.records.units import format_mib

MAX_ROW_BYTES = 16 << 20
MAX_COLUMNS = 256
# Limit of an unpacked file: the larger of 100 times its stored size (text shrinks to a third or a tenth) and 256 MiB.
MAX_GROWTH, ALWAYS_UNPACKED_BYTES = 100, 256 << 20
CHUNK_BYTES = 1 << 16
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
UNREAD = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"BZh": "bzip2"}
JSON_COLUMNS = ("messages", "conversations")  # CSV has only text, so these are parsed
DECODER = json.JSONDecoder(object_pairs_hook=schema.object_from_pairs)
PLAIN_DECODER = json.JSONDecoder()
BLANKS = re.compile(r"[ \t\r\n]*")

# The JSON text of a row, its object, or why it cannot be used.
Row: TypeAlias = bytes | dict[str, Any] | InputError


class DataRows:
    """Rows of a data file, each with its number; iterating raises InputError for a file that cannot be read on.

    `unit` says what the number counts, "line" or "row". `sha256` and `bytes` are those of the file as it is stored,
    and complete after the last row.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.unit, self.bytes = path, "line", 0
        self._digest = hashlib.sha256()
        self._unpacked_bytes = self._max_unpacked_bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, Row]]:
        number = 0
        try:
            with open_regular(self.path) as file:
                self._max_unpacked_bytes = max(ALWAYS_UNPACKED_BYTES, MAX_GROWTH * os.fstat(file.fileno()).st_size)
                stream = _buffered(file, self._add_stored)
                rows = self._parquet_rows(stream, file) if stream.peek().startswith(PARQUET) else self._rows(stream)
                for number, row in rows:
                    yield number, row
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(
                f"{self.path}: after {self.unit} {number}: the gzip data ends early or is damaged: {error}",
                remedy="copy the file again, or compress it again",
            ) from error
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be read: {error.strerror}", remedy="name a regular file with conversations"
            ) from error

    def _parquet_rows(self, stream: io.BufferedReader, file: BinaryIO) -> Iterator[tuple[int, Row]]:
        self.unit, before = "row", os.fstat(file.fileno())
        while stream.read(1 << 20):  # for the digest: its end is read first
            pass
        yield from _parquet_rows(self.path, file, self._add_unpacked_bytes)
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise InputError(f"{self.path}: changed while it was read", remedy="try again once it is written")

    def _rows(self, stream: io.BufferedReader) -> Iterator[tuple[int, Row]]:
        if stream.peek().startswith(GZIP):
            stream = _buffered(gzip.GzipFile(fileobj=stream), self._add_unpacked)
        first_bytes = stream.peek()
        for magic, name in {**UNREAD, GZIP: "gzip of gzip", PARQUET: "gzip of Parquet"}.items():
            if first_bytes.startswith(magic):
                raise InputError(f"{self.path}: {name} is not read here", remedy="unpack it, or compress it with gzip")
        if first_bytes.lstrip().startswith(b"["):  # no line of JSONL and no header of CSV begins so
            self.unit = "row"
            return _array_rows(self.path, stream)
        if self.path.suffix.lower() == ".parquet" and first_bytes:
            raise InputError(
                f"{self.path}: is not Parquet", remedy="write the file again, or name it after its content"
            )
        is_csv = self.path.name.lower().removesuffix(".gz").endswith(".csv")
        return _csv_rows(self.path, stream) if is_csv else _lines(self.path, stream)

    def _add_stored(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self.bytes += len(piece)

    def _add_unpacked(self, piece: memoryview) -> None:
        self._add_unpacked_bytes(len(piece))

    def _add_unpacked_bytes(self, count: int) -> None:
        self._unpacked_bytes += count
        if self._unpacked_bytes > self._max_unpacked_bytes:
            raise InputError(
                f"{self.path}: unpacks to more than {format_mib(self._max_unpacked_bytes)}, "
                f"{MAX_GROWTH} times its size",
                remedy="write it as plain JSONL",
            )


def sha256_of(path: Path) -> str:
    """Hash a data file as `DataRows` does, without its rows. Raises InputError."""
    digest = hashlib.sha256()
    try:
        with open_regular(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", remedy="name a regular file with conversations"
        ) from error
    return digest.hexdigest()


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
    return io.BufferedReader(_Observed(file, observe), CHUNK_BYTES)


def _lines(path: Path, stream: io.BufferedReader) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            raise _too_long(f"{path}: line {number}")
        yield number, line


def _too_long(location: str) -> InputError:
    return InputError(f"{location}: longer than {format_mib(MAX_ROW_BYTES)}", remedy="split or remove it")


def parse_json(location: str, text: str) -> Any:
    """Return the value of a JSON text. Raises InputError, also for an object with a key twice."""
    try:
        return DECODER.decode(text)
    except schema.SchemaError as error:
        raise InputError(f"{location}: {error}", remedy="remove one of them") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{location}: not JSON", remedy="write one complete object per line") from error


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
            if end - self._start > MAX_ROW_BYTES:
                raise InputError(
                    f"{location}: not JSON, or longer than {format_mib(MAX_ROW_BYTES)}", remedy="correct or split it"
                )
            self._read_on()

    def _read_on(self) -> None:
        """Read as much again as there is, so that a long row is not parsed once for each chunk."""
        piece = self._stream.read(max(CHUNK_BYTES, len(self._text) - self._start))
        self._text = self._text[self._start :] + self._decoder.decode(piece, final=not piece)
        self._start, self._is_complete = 0, not piece


# CSV ------------------------------------------------------------------------------------------------------------------


def _csv_rows(path: Path, stream: io.BufferedReader) -> Iterator[tuple[int, Row]]:
    """Yield the rows below the header, each with the line on which it begins."""
    csv.field_size_limit(MAX_ROW_BYTES)
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
            columns = fields
            _check_columns(location, columns)
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


def _check_columns(location: str, columns: list[str]) -> None:
    if len(columns) > MAX_COLUMNS:
        raise InputError(f"{location}: expected at most {MAX_COLUMNS} columns, found {len(columns)}")
    if len(set(columns)) < len(columns):
        raise InputError(f"{location}: a column occurs twice in the header", remedy="remove one of them")
    detect_kind(location, dict.fromkeys(columns))


def _csv_value(location: str, key: str, text: str) -> Any:
    """Return the value of a field: turns and the keys that decide what is trained on are JSON, all others text."""
    if key in JSON_COLUMNS:
        return parse_json(f"{location}: {key}", text)
    if key not in LINE_REFUSED:
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
            if self._record_bytes > MAX_ROW_BYTES:
                raise _too_long(f"{self._path}: line {self._first_number}")
            try:
                yield line.decode("utf-8-sig" if self._number == 1 else "utf-8")  # spreadsheets write the mark
            except UnicodeDecodeError as error:
                raise InputError(f"{self._path}: line {self._number}: not UTF-8 text") from error


# Parquet --------------------------------------------------------------------------------------------------------------


def _parquet_rows(path: Path, file: BinaryIO, add_unpacked_bytes: Callable[[int], None]) -> Iterator[tuple[int, Row]]:
    """Yield the rows as JSON text, read one by one: a short value in the file may stand in all of them.

    Columns that decide nothing are not read, and null. The sizes that the file states are checked before any row.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(f"{path}: pyarrow, which reads Parquet, is missing", remedy="pip install pyarrow") from error
    number = 0
    try:
        file.seek(0)
        source = parquet.ParquetFile(file, buffer_size=CHUNK_BYTES)
        columns = source.schema_arrow.names
        _check_columns(f"{path}: columns", columns)
        metadata, known = source.metadata, {key for data_format in FORMATS.values() for key in data_format.known}
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        # Checked and forgotten: the values themselves are counted below.
        add_unpacked_bytes(size := sum(group.total_byte_size for group in groups))
        add_unpacked_bytes(-size)
        unread = {name: None for name in columns if name not in known and name not in LINE_REFUSED}
        wanted = [name for name in columns if name not in unread]
        for row in source.iter_batches(batch_size=1, columns=wanted, use_threads=False):
            number += 1
            add_unpacked_bytes(row.nbytes)
            yield number, _parquet_row(f"{path}: row {number}", row, unread)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path}: after row {number}: not Parquet: {reason}", remedy="write the file again") from error


def _parquet_row(location: str, row: Any, unread: dict[str, None]) -> Row:
    if row.nbytes > MAX_ROW_BYTES:
        return _too_long(location)
    try:
        return json.dumps(row.to_pylist()[0] | unread, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:  # bytes, dates, text that is not UTF-8
        return InputError(f"{location}: a value is not JSON: {error}", remedy="write texts, or lists of turns")
