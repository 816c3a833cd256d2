"""Examples on the disk, below the digest of what they were made of: tokenizing takes minutes, reading seconds.

A folder per digest: `examples.bin` (uint32 token ids of all examples, then one byte a token for the targets) and
`index.json`, sealed and written last, which holds the sha256 of the former. A folder that is damaged, or was not
finished, is made anew.
"""

import contextlib
import os
import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.records.durable import sha256_of
from bench.records.sealed import ResultError, read_sealed, write_sealed
from bench.records.training_data import FileFacts, Finding, Shown
from bench.train.dataset import Dataset
from bench.train.examples import Example

EXAMPLES_FILE, INDEX_FILE = "examples.bin", "index.json"


@dataclass(frozen=True, kw_only=True)
class Index:
    """What `examples.bin` holds: training examples first, then those held out. One entry an example in `lengths`,
    `files` (a place in `paths`), `lines` and `copies`."""

    key: str
    byte_order: str
    examples_sha256: str
    training: int
    paths: list[str]
    lengths: list[int]
    files: list[int]
    lines: list[int]
    copies: list[int]
    facts: list[FileFacts]
    findings: list[Finding]
    left_out: int
    shown: list[Shown]


def load(folder: Path, key: str) -> Dataset | None:
    """The examples kept below this key; None where there are none that can be trusted."""
    place = folder / key
    try:
        index = read_sealed(Index, place / INDEX_FILE, "examples")
        if (index.key, index.byte_order) != (key, sys.byteorder) or sha256_of(
            place / EXAMPLES_FILE
        ) != index.examples_sha256:
            return None
        content = (place / EXAMPLES_FILE).read_bytes()
    except (ResultError, OSError):
        return None
    tokens = sum(index.lengths)
    ids = array("I")
    if len(content) != tokens * (ids.itemsize + 1):
        return None
    ids.frombytes(content[: tokens * ids.itemsize])
    targets = content[tokens * ids.itemsize :]
    edges = [0]
    for length in index.lengths:
        edges.append(edges[-1] + length)
    examples = [
        Example(file=index.paths[file], line=line, copy=copy, ids=ids[first:last], targets=targets[first:last])
        for (first, last), file, line, copy in zip(pairwise(edges), index.files, index.lines, index.copies, strict=True)
    ]
    return Dataset(
        files=index.facts,
        training=examples[: index.training],
        validation=examples[index.training :],
        findings=index.findings,
        left_out=index.left_out,
        shown=index.shown,
    )


def keep(folder: Path, key: str, dataset: Dataset) -> None:
    """Write the examples below their key. Raises OSError; a folder that is there already stays unless it is broken."""
    place = folder / key
    place.mkdir(parents=True, exist_ok=True)
    every: Sequence[Example] = [*dataset.training, *dataset.validation]
    handle, temporary = tempfile.mkstemp(dir=place, prefix=f".{EXAMPLES_FILE}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            for example in every:
                file.write(example.ids.tobytes())
            for example in every:
                file.write(example.targets)
            file.flush()
            os.fsync(file.fileno())
        digest = sha256_of(Path(temporary))
        os.replace(temporary, place / EXAMPLES_FILE)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    paths = sorted({example.file for example in every})
    index = Index(
        key=key,
        byte_order=sys.byteorder,
        examples_sha256=digest,
        training=len(dataset.training),
        paths=paths,
        lengths=[len(example.ids) for example in every],
        files=[paths.index(example.file) for example in every],
        lines=[example.line for example in every],
        copies=[example.copy for example in every],
        facts=list(dataset.files),
        findings=dataset.findings,
        left_out=dataset.left_out,
        shown=dataset.shown,
    )
    write_sealed(place / INDEX_FILE, "examples", index)
