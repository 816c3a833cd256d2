"""Types of data files, by content and then by suffix: JSONL, a JSON array, CSV, and gzip of them.

Each gives the rows of a file one after another. At most `MAX_ROW_BYTES` of a row are held in memory, and a compressed
file may not grow without bound. Only the standard library.
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
from typing import Any, TypeAlias

from bench.data.formats import LINE_REFUSED, detect_kind
from bench.data.inputs import InputError
from bench.records import schema
from bench.records.atomic_files import open_regular

MAX_ROW_BYTES = 16 << 20
MAX_COLUMNS = 256
# Limit of an unpacked file: the larger of 100 times its stored size (text shrinks to a third or a tenth) and 256 MiB.
MAX_GROWTH, ALWAYS_UNPACKED_BYTES = 100, 256 << 20
CHUNK_BYTES = 1 << 16
GZIP = b"\x1f\x8b"
UNREAD = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"PAR1": "Parquet"}
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
                for number, row in self._rows(_buffered(file, self._add_stored)):
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

    def _rows(self, stream: io.BufferedReader) -> Iterator[tuple[int, Row]]:
        if stream.peek().startswith(GZIP):
            stream = _buffered(gzip.GzipFile(fileobj=stream), self._add_unpacked)
        first_bytes = stream.peek()
        for magic, name in {**UNREAD, GZIP: "gzip of gzip"}.items():
            if first_bytes.startswith(magic):
                raise InputError(f"{self.path}: {name} is not read here", remedy="unpack it, or compress it with gzip")
        if first_bytes.lstrip().startswith(b"["):  # no line of JSONL and no header of CSV begins so
            self.unit = "row"
            return _array_rows(self.path, stream)
        is_csv = self.path.name.lower().removesuffix(".gz").endswith(".csv")
        return _csv_rows(self.path, stream) if is_csv else _lines(self.path, stream)

    def _add_stored(self, piece: memoryview) -> None:
        self._digest.update(piece)
        self.bytes += len(piece)

    def _add_unpacked(self, piece: memoryview) -> None:
        self._unpacked_bytes += len(piece)
        if self._unpacked_bytes > self._max_unpacked_bytes:
            raise InputError(
                f"{self.path}: unpacks to more than {self._max_unpacked_bytes >> 20} MiB, {MAX_GROWTH} times its size",
                remedy="unpack it and name that file",
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
    return InputError(f"{location}: longer than {MAX_ROW_BYTES >> 20} MiB", remedy="split or remove it")


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
                    f"{location}: not JSON, or longer than {MAX_ROW_BYTES >> 20} MiB", remedy="correct or split it"
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
