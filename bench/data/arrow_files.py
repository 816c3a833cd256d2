"""Tables: rows of Parquet files and of folders saved by `datasets`, and the text of zstd files, all through pyarrow.

pyarrow decodes a page of Parquet at once: the sizes that the file states are checked before, the bytes that come out
are counted. Arrow's files are mapped into memory, so that only what a row needs is read; a batch that would be unpacked
is refused.
"""

import io
import json
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow
from pyarrow import ipc, parquet

from bench.data import row_limits
from bench.data.formats import DECIDING_KEYS
from bench.data.inputs import InputError
from bench.data.row_limits import ColumnNames, Row, UnpackedBytes, row_too_long
from bench.records import schema
from bench.records.atomic_files import read_regular

STATE_FILE, SPLITS_FILE = "state.json", "dataset_dict.json"  # the second if there are several splits
MAX_STATE_BYTES = 1 << 20
TO_JSON = json.JSONEncoder(ensure_ascii=False).encode


@contextmanager
def _arrow_errors(path: Path, position: Callable[[], str], kind: str) -> Iterator[None]:
    """Turn an error of pyarrow into an InputError that names the position in the file."""
    try:
        yield
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{path}: after {position()}: not {kind}: {reason}", remedy="write the file again") from error


def open_zstd(stream: io.BufferedReader) -> Any:
    """Open the text of a zstd file; its `readinto` raises OSError without a number for damaged data."""
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, "r"), "zstd")


class _TableRows:
    """Conversion of a table's rows to JSON text, with the number of the last one.

    `read_names` are the columns that decide something; the others are not read, and null.
    """

    def __init__(self, path: Path, header: list[str], names: ColumnNames, number: int = 0) -> None:
        renamed = names.check_header(f"{path}: columns", header)
        self._path, self.number = path, number
        decides = [name in row_limits.KNOWN_COLUMNS or name in DECIDING_KEYS for name in renamed]
        pairs = list(zip(header, renamed, decides, strict=True))
        self.read_names = [name for name, _, is_read in pairs if is_read]
        self._keys = [(ours, f"{json.dumps(ours)}:") for _, ours, is_read in pairs if is_read]
        self._unread = [f"{json.dumps(ours)}:null" for _, ours, is_read in pairs if not is_read]

    def next_row(self, row: Any) -> Row:
        """Return a batch of one row as JSON text, or why it cannot be used."""
        self.number += 1
        location = f"{self._path}: row {self.number}"
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
    rows, group_number = None, 0

    def position() -> str:
        return f"row {rows.number if rows else 0}" + (f" (row group {group_number})" if group_number else "")

    with _arrow_errors(path, position, "Parquet"):
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
                text = rows.next_row(row)
                yield rows.number, text


# A folder saved by `datasets` -----------------------------------------------------------------------------------------


def folder_files(folder: Path) -> list[Path]:
    """Return the Arrow files of a folder that `datasets` saved, in order. Raises InputError for any other folder."""
    if not (folder / STATE_FILE).is_file():
        raise _other_folder(folder)
    state = _read_json(folder / STATE_FILE)
    listed = state.get("_data_files") if isinstance(state, dict) else None
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in listed or ()]
    remedy = "save the data set again, with save_to_disk"
    if not isinstance(listed, list) or not names or state.get("_indices_data_files"):
        expected = "a list of files in _data_files, without a list of rows in _indices_data_files"
        raise InputError(f"{folder / STATE_FILE}: expected {expected}", remedy=remedy)
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or (folder / name).is_symlink():
            raise InputError(
                f"{folder / STATE_FILE}: _data_files: expected names of files in the folder, found {str(name)[:80]!r}",
                remedy=remedy,
            )
    return [folder / str(name) for name in names]


def _other_folder(folder: Path) -> InputError:
    """Return the error of a folder that is not one data set."""
    if not (folder / SPLITS_FILE).is_file():
        remedy = "name a file, a pattern like FOLDER/*.parquet, or a folder made by save_to_disk"
        return InputError(f"{folder}: is a folder without {STATE_FILE}", remedy=remedy)
    document = _read_json(folder / SPLITS_FILE)
    splits = document.get("splits") if isinstance(document, dict) else None
    shown = [str(name)[:40] for name in splits[:8]] if isinstance(splits, list) else []
    return InputError(
        f"{folder}: has several splits: {', '.join(shown)}", remedy=f"name one: {folder / (shown or ['train'])[0]}"
    )


def _read_json(path: Path) -> Any:
    try:
        return schema.parse(read_regular(path, max_bytes=MAX_STATE_BYTES))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}", remedy="save the data set again") from error


def stream_rows(
    folder: Path, path: Path, names: ColumnNames, unpacked: UnpackedBytes, number: int
) -> Iterator[tuple[int, Row]]:
    """Yield the rows of one Arrow stream of a folder; they follow on row `number` of the folder."""
    rows = None
    with _arrow_errors(path, lambda: f"row {rows.number if rows else number}", "an Arrow stream"):
        messages = ipc.MessageReader.open_stream(pyarrow.memory_map(str(path)))
        arrow_schema = ipc.read_schema(messages.read_next_message())
        rows = _TableRows(folder, arrow_schema.names, names, number)
        for message in messages:
            is_batch = message.type == "record batch"
            if not is_batch or is_compressed(message.metadata.to_pybytes()):
                actual = "a compressed one" if is_batch else f"a {message.type}"
                raise InputError(
                    f"{path}: after row {rows.number}: expected an uncompressed batch of rows, found {actual}",
                    remedy="save the data set with save_to_disk, which writes such batches",
                )
            batch = ipc.read_record_batch(message, arrow_schema)
            batch.validate(full=True)  # offsets beyond the values would be read as they are
            for index in range(batch.num_rows):
                text = rows.next_row(batch.slice(index, 1).select(rows.read_names))
                unpacked.add(row_limits.PACKED_ROW_BYTES + (len(text) if isinstance(text, bytes) else 0))
                yield rows.number, text


def is_compressed(metadata: bytes) -> bool:
    """Return whether a record batch's buffers are compressed, from its flatbuffer; True for a damaged one.

    The fields are those of Arrow's Message.fbs: the third of a Message is its header, the fourth of a RecordBatch its
    compression.
    """
    try:
        header = _field(metadata, struct.unpack_from("<I", metadata)[0], 2)
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        return header == 0 or _field(metadata, batch, 3) != 0
    except struct.error:
        return True


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return the position of a flatbuffer table's field, 0 if it is missing."""
    (to_vtable,) = struct.unpack_from("<i", buffer, table)
    (vtable_bytes,) = struct.unpack_from("<H", buffer, table - to_vtable)
    if 4 + 2 * number >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, table - to_vtable + 4 + 2 * number)
    return table + offset if offset else 0
