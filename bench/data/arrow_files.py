"""Rows of Parquet files and the text of zstd files, through pyarrow.

pyarrow decodes a page of Parquet at once: the sizes that the file states are checked before, the bytes that come out
are counted.
"""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
from pyarrow import parquet

from bench.data import row_limits
from bench.data.formats import DECIDING_KEYS
from bench.data.inputs import InputError
from bench.data.row_limits import ColumnNames, Row, UnpackedBytes, row_too_long

TO_JSON = json.JSONEncoder(ensure_ascii=False).encode


def open_zstd(stream: io.BufferedReader) -> Any:
    """Open the text of a zstd file; its `readinto` raises OSError without a number for damaged data."""
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, "r"), "zstd")


class _TableRows:
    """Conversion of a table's rows to JSON text.

    `read_names` are the columns that decide something; the others are not read, and null.
    """

    def __init__(self, path: Path, header: list[str], names: ColumnNames) -> None:
        renamed = names.check_header(f"{path}: columns", header)
        self._path = path
        decides = [name in row_limits.KNOWN_COLUMNS or name in DECIDING_KEYS for name in renamed]
        pairs = list(zip(header, renamed, decides, strict=True))
        self.read_names = [name for name, _, is_read in pairs if is_read]
        self._keys = [(ours, f"{json.dumps(ours)}:") for _, ours, is_read in pairs if is_read]
        self._unread = [f"{json.dumps(ours)}:null" for _, ours, is_read in pairs if not is_read]

    def convert(self, number: int, row: Any) -> Row:
        """Return a batch of one row as JSON text, or why it cannot be used."""
        location = f"{self._path}: row {number}"
        if row.nbytes > row_limits.MAX_ROW_BYTES:
            return row_too_long(location)
        texts = []
        for (name, key), column in zip(self._keys, row.columns, strict=True):
            try:
                texts.append(key + TO_JSON(_without_nulls(column.to_pylist()[0])))
            except (TypeError, ValueError) as error:  # bytes, dates, text that is not UTF-8
                return InputError(f"{location}: {name}: a value is not JSON: {error}")
        return f"{{{','.join((*texts, *self._unread))}}}".encode()


def _without_nulls(value: Any) -> Any:
    """Return a value without keys that are null: a struct has the keys of all rows' objects, a JSON Schema's too."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def parquet_rows(path: Path, file: BinaryIO, names: ColumnNames, unpacked: UnpackedBytes) -> Iterator[tuple[int, Row]]:
    """Yield the rows as JSON text, read one by one: a short value in the file may stand in all of them."""
    number = group_number = 0
    try:
        file.seek(0)
        source = parquet.ParquetFile(file, buffer_size=row_limits.CHUNK_BYTES)
        rows = _TableRows(path, source.schema_arrow.names, names)
        metadata = source.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        row_bytes = row_limits.PACKED_ROW_BYTES * max(0, metadata.num_rows)
        unpacked.check(row_bytes + sum(max(0, group.total_byte_size) for group in groups))
        for index, group in enumerate(groups, start=1):
            if group.total_byte_size > row_limits.MAX_ROW_BYTES * max(1, group.num_rows):
                raise row_too_long(f"{path}: row group {index}: the mean row")
        for group_number in range(1, len(groups) + 1):
            batches = source.iter_batches(
                batch_size=1, row_groups=[group_number - 1], columns=rows.read_names, use_threads=False
            )
            for row in batches:
                unpacked.add(row.nbytes)
                number += 1
                yield number, rows.convert(number, row)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        position = f"row {number}" + (f" (row group {group_number})" if group_number else "")
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path}: after {position}: not Parquet: {reason}", remedy="write the file again") from error
