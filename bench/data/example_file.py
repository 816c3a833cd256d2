"""Training examples in a file: written one by one, and read one by one as a step needs them.

Only numbers about each example are held in memory, 64 bytes. The file has the token ids of each example (uint32) and
its targets (a byte for each id), and at its end these numbers: first of the examples to train on, then of those held
out, column by column. Copies of a line have the same ids.
"""

import hashlib
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO, overload

from bench.data.masking import Example

DIGEST_BYTES = 32
ID_BYTES = 4


@dataclass(frozen=True)
class _Columns:
    """Numbers about examples: position in the file, count of ids and of targets, data file, line, copy, digest."""

    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    lengths: "array[int]" = field(default_factory=lambda: array("I"))
    targets: "array[int]" = field(default_factory=lambda: array("I"))
    files: "array[int]" = field(default_factory=lambda: array("I"))
    lines: "array[int]" = field(default_factory=lambda: array("Q"))
    copies: "array[int]" = field(default_factory=lambda: array("I"))
    digests: "array[int]" = field(default_factory=lambda: array("B"))

    def arrays(self) -> "list[array[int]]":
        return list(vars(self).values())


class Digests(Sequence[bytes]):
    """Digests of examples, from one array."""

    def __init__(self, content: "array[int]") -> None:
        self.content = content

    def __len__(self) -> int:
        return len(self.content) // DIGEST_BYTES

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """Return one digest, or those of a slice."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        start = range(len(self))[index] * DIGEST_BYTES
        return self.content[start : start + DIGEST_BYTES].tobytes()


class Descriptor:
    """Copy of an open file's descriptor, closed with the last user of this object."""

    def __init__(self, file: BinaryIO) -> None:
        self.number = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.number)

    def sha256(self) -> str:
        """Hash the file. Raises OSError."""
        digest, position = hashlib.sha256(), 0
        while chunk := os.pread(self.number, 1 << 20, position):
            digest.update(chunk)
            position += len(chunk)
        return digest.hexdigest()


class StoredExamples(Sequence[Example]):
    """Examples of an open file, read when they are used. `lengths` and `targets` are their tokens and targets.

    `sources` has the path of each data file, and what its numbers count.
    """

    def __init__(self, file: Descriptor, columns: _Columns, sources: Sequence[tuple[str, str]]) -> None:
        self.file, self._columns, self.sources = file, columns, sources
        self.lengths, self.targets, self.digests = columns.lengths, columns.targets, Digests(columns.digests)

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        """Read one example, or those of a slice. Raises OSError."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        columns, number = self._columns, range(len(self))[index]
        path, unit = self.sources[columns.files[number]]
        size = columns.lengths[number] * ID_BYTES
        content = os.pread(self.file.number, size + columns.lengths[number], columns.offsets[number])
        ids = array("I")
        ids.frombytes(content[:size])
        return Example(
            file=path,
            line=columns.lines[number],
            unit=unit,
            copy=columns.copies[number],
            ids=ids,
            targets=content[size:],
        )

    def select(self, indices: Iterable[int]) -> "StoredExamples":
        """Return some of these examples."""
        part = _Columns()
        for index in indices:
            for name, column in vars(self._columns).items():
                size = DIGEST_BYTES if name == "digests" else 1
                getattr(part, name).extend(column[index * size : (index + 1) * size])
        return StoredExamples(self.file, part, self.sources)


class ExampleWriter:
    """Writer of examples to a file opened for writing and reading."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sources: dict[tuple[str, str], int] = {}
        self._training, self._validation, self._position = _Columns(), _Columns(), 0

    def add(self, example: Example, copies: int | None) -> None:
        """Write an example to train on, so many times in an epoch; None holds it out. Raises OSError."""
        columns = self._validation if copies is None else self._training
        source = self._sources.setdefault((example.file, example.unit), len(self._sources))
        for copy in range(1 if copies is None else copies):
            each = replace(example, copy=copy) if copy else example
            columns.offsets.append(self._position)
            columns.lengths.append(len(each.ids))
            columns.targets.append(each.targets.count(1))
            columns.files.append(source)
            columns.lines.append(each.line)
            columns.copies.append(each.copy)
            columns.digests.frombytes(each.digest)
        self._file.write(example.ids)
        self._file.write(example.targets)
        self._position += len(example.ids) * ID_BYTES + len(example.targets)

    def finish(self) -> tuple[StoredExamples, StoredExamples]:
        """Write the numbers about all examples. Return those to train on and those held out. Raises OSError."""
        for part in (*self._training.arrays(), *self._validation.arrays()):
            self._file.write(part)
        self._file.flush()
        file, sources = Descriptor(self._file), list(self._sources)
        return StoredExamples(file, self._training, sources), StoredExamples(file, self._validation, sources)


def store(examples: Iterable[Example]) -> StoredExamples:
    """Write examples to train on into a temporary file. Raises OSError."""
    with tempfile.TemporaryFile() as file:
        writer = ExampleWriter(file)
        for example in examples:
            writer.add(example, 1)
        return writer.finish()[0]


def open_stored(
    file: BinaryIO, counts: Sequence[int], sources: Sequence[tuple[str, str]]
) -> tuple[StoredExamples, StoredExamples]:
    """Return the examples of a file that ExampleWriter wrote: `counts` to train on and held out.

    Raises ValueError for a file of another length, OSError.
    """
    parts = [_Columns(), _Columns()]
    sizes = {"digests": DIGEST_BYTES}
    total = sum(
        count * column.itemsize * sizes.get(name, 1)
        for part, count in zip(parts, counts, strict=True)
        for name, column in vars(part).items()
    )
    file.seek(-total, os.SEEK_END)
    for part, count in zip(parts, counts, strict=True):
        for name, column in vars(part).items():
            try:
                column.fromfile(file, count * sizes.get(name, 1))
            except EOFError as error:
                raise ValueError("the file ends early") from error
    descriptor = Descriptor(file)
    training, validation = (StoredExamples(descriptor, part, sources) for part in parts)
    return training, validation
