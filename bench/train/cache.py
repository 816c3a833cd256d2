"""Examples on the disk, below the digest of what they were made of: tokenizing takes minutes, reading seconds.

A folder per digest: `examples.bin` (of each example four uint32: its length, its file's place in `paths`, its line, its
copy; then the uint32 token ids of all examples, then one byte a token for the targets) and `index.json`, sealed and
written last, which holds the sha256 of the former. A folder that is damaged, or was not finished, is made anew.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.records.atomic_files import replacing, sha256_of
from bench.records.checksummed import ResultError, read_sealed, write_sealed
from bench.records.training_data import ConversationPreview, DataFinding, FileFacts
from bench.train.dataset import Dataset
from bench.train.masking import Example

EXAMPLES_FILE, INDEX_FILE = "examples.bin", "index.json"
COLUMNS = 4  # facts of an example


@dataclass(frozen=True, kw_only=True)
class Index:
    """What `examples.bin` holds: training examples first, then those held out. Small, however many there are."""

    key: str
    byte_order: str
    examples_sha256: str
    training: int
    validation: int
    tokens: int
    paths: list[str]
    facts: list[FileFacts]
    findings: list[DataFinding]
    left_out: int
    shown: list[ConversationPreview]


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
    numbers = array("I")
    facts, ids = COLUMNS * (index.training + index.validation), index.tokens
    if len(content) != (facts + ids) * numbers.itemsize + ids:
        return None
    numbers.frombytes(content[: (facts + ids) * numbers.itemsize])
    targets = content[(facts + ids) * numbers.itemsize :]
    examples, first = list[Example](), 0
    for length, file, line, copy in zip(*(numbers[column:facts:COLUMNS] for column in range(COLUMNS)), strict=True):
        last = first + length
        of_ids = numbers[facts + first : facts + last]
        examples.append(Example(file=index.paths[file], line=line, copy=copy, ids=of_ids, targets=targets[first:last]))
        first = last
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
    paths = {path: number for number, path in enumerate(dict.fromkeys(example.file for example in every))}
    facts = array("I")
    for example in every:
        facts.extend((len(example.ids), paths[example.file], example.line, example.copy))
    # The digest is of what is written here: another machine may put its own file under the name at the same moment.
    digest = hashlib.sha256()
    pieces: list[Any] = [facts, *(example.ids for example in every), *(example.targets for example in every)]
    with replacing(place / EXAMPLES_FILE) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
    index = Index(
        key=key,
        byte_order=sys.byteorder,
        examples_sha256=digest.hexdigest(),
        training=len(dataset.training),
        validation=len(dataset.validation),
        tokens=sum(facts[::COLUMNS]),
        paths=list(paths),
        facts=list(dataset.files),
        findings=dataset.findings,
        left_out=dataset.left_out,
        shown=dataset.shown,
    )
    write_sealed(place / INDEX_FILE, "examples", index)
