"""Training examples in an Arrow file: written one by one, and read one by one as a step needs them.

The file is mapped into memory; about 100 bytes of each example are held.
"""

import mmap
from array import array
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, overload

import pyarrow
from pyarrow import ipc

from bench.data.masking import Example

BATCH_ROWS = 64
SCHEMA = pyarrow.schema(
    [
        *(("ids", "binary"), ("targets", "binary"), ("file", "string"), ("line", "string")),
        *(("length", "uint32"), ("target_count", "uint32"), ("digest", "binary"), ("is_held_out", "bool")),
    ]
)


class StoredExamples(Sequence[Example]):
    """Examples of a file, read when they are used: those in `rows`. `lengths` and `targets` are their numbers of tokens
    and of targets.
    """

    def __init__(self, reader: Any, numbers: Any, rows: Sequence[int]) -> None:
        self._reader, self._numbers, self._rows = reader, numbers, array("Q", rows)
        # From a buffer, because `pyarrow.array` imports pandas where it is installed: 0.3 s for each process.
        taken = pyarrow.UInt64Array.from_buffers(pyarrow.uint64(), len(self), [None, pyarrow.py_buffer(self._rows)])
        part = numbers.take(taken)
        self.lengths, self.targets = (array("I", part[name].to_pylist()) for name in ("length", "target_count"))
        self.digests: list[bytes] = part["digest"].to_pylist()

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """Read one example, or those of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        batch, row = divmod(self._rows[index], BATCH_ROWS)
        (values,) = self._reader.get_batch(batch).slice(row, 1).to_pylist()
        ids = array("I", values["ids"])
        return Example(ids=ids, **{name: values[name] for name in ("targets", "file", "line")})

    def select(self, indices: Iterable[int]) -> "StoredExamples":
        """Return some of these examples."""
        return StoredExamples(self._reader, self._numbers, [self._rows[index] for index in indices])


def map_examples(file: BinaryIO) -> tuple[StoredExamples, StoredExamples]:
    """Map a file; return the examples to train on and those held out. Raises ValueError for another file."""
    reader = ipc.open_file(pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    numbers = reader.read_all().select(["length", "target_count", "digest", "is_held_out"])
    held_out = numbers["is_held_out"].to_pylist()
    training = [row for row, is_held_out in enumerate(held_out) if not is_held_out]
    validation = [row for row, is_held_out in enumerate(held_out) if is_held_out]
    return StoredExamples(reader, numbers, training), StoredExamples(reader, numbers, validation)


class ExampleWriter:
    """Writer of examples to a file opened for writing and reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._writer = file, ipc.new_file(file, SCHEMA)
        self._rows: list[dict[str, Any]] = []

    def add(self, example: Example, *, is_held_out: bool) -> None:
        """Write an example. Raises OSError."""
        numbers = {"length": len(example.ids), "target_count": example.targets.count(1), "digest": example.digest}
        self._rows.append({**vars(example), **numbers, "ids": example.ids.tobytes(), "is_held_out": is_held_out})
        if len(self._rows) == BATCH_ROWS:
            self._write_rows()

    def finish(self) -> tuple[StoredExamples, StoredExamples]:
        """Write the file's end. Return the examples to train on and those held out. Raises OSError."""
        self._write_rows()
        self._writer.close()
        self._file.flush()
        return map_examples(self._file)

    def _write_rows(self) -> None:
        if self._rows:
            self._writer.write_batch(pyarrow.RecordBatch.from_pylist(self._rows, SCHEMA))
            self._rows.clear()
