"""Cache of examples on the disk, by the digest of their inputs: tokenizing takes minutes, reading seconds.

A folder per digest: `examples.bin` (four uint32 per example: its length, its file's index in `paths`, its line, its
copy; then the uint32 token ids of all examples; then one byte per token for the targets) and `index.json`, which is
checksummed, written last and contains the sha256 of the former. A damaged or incomplete folder is rebuilt.
"""

import hashlib
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.data import dataset as datasets
from bench.data import readers
from bench.data.dataset import Dataset
from bench.data.inputs import InputError
from bench.data.masking import Example
from bench.data.model_folder import check_model
from bench.records.atomic_files import open_atomic, sha256_of
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.training import ConversationPreview, DataFinding, DataReport, FileFacts, TrainingData

EXAMPLES_FILE, INDEX_FILE = "examples.bin", "index.json"
FACTS_PER_EXAMPLE = 4  # length, file, line, copy


@dataclass(frozen=True, kw_only=True)
class Index:
    """Index of `examples.bin`: training examples first, then held-out ones. Small for any number of examples."""

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


def load_examples(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], cache_dir: Path | None
) -> tuple[Dataset, bool]:
    """Load the examples from the cache or make them; return (examples, was_cached).

    `tokenizer` is called only to make them, as it takes a second. Raises InputError, also if they cannot be cached.
    """
    model_sha256 = check_model(model).sha256
    paths = [*spec.files, spec.validation_file] if spec.validation_file is not None else spec.files
    if cache_dir is not None:
        key = datasets.cache_key(spec, [readers.sha256_of(Path(path)) for path in paths], model_sha256)
        if (cached := load(cache_dir, key)) is not None:
            return cached, True
    files, held_out = datasets.read(spec)
    examples = datasets.build(spec, files, held_out, tokenizer())
    if cache_dir is not None:
        all_files = [*files, held_out] if held_out is not None else files
        key = datasets.cache_key(spec, [file.sha256 for file in all_files], model_sha256)
        try:
            save(cache_dir, key, examples)
        except OSError as error:
            raise InputError(
                f"{cache_dir}: examples cannot be cached: {error.strerror}", remedy="free some space there"
            ) from error
    return examples, False


def build_report(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], *, row_tokens: int, cache_dir: Path | None
) -> DataReport:
    """Load the examples and build the report, with some of their texts. Raises InputError."""
    start = time.monotonic()
    examples, was_cached = load_examples(spec, model, tokenizer, cache_dir)
    seconds = time.monotonic() - start
    report = datasets.summarize(spec, examples, row_tokens=row_tokens, was_cached=was_cached, seconds=seconds)
    return replace(report, shown=examples.shown)


def load(folder: Path, key: str) -> Dataset | None:
    """Load the examples cached under this key; None if they are missing or damaged."""
    entry = folder / key
    try:
        index = read_checksummed(Index, entry / INDEX_FILE, "examples")
        if (index.key, index.byte_order) != (key, sys.byteorder) or sha256_of(
            entry / EXAMPLES_FILE
        ) != index.examples_sha256:
            return None
        content = (entry / EXAMPLES_FILE).read_bytes()
    except (ResultError, OSError):
        return None
    numbers = array("I")
    fact_count, id_count = FACTS_PER_EXAMPLE * (index.training + index.validation), index.tokens
    if len(content) != (fact_count + id_count) * numbers.itemsize + id_count:
        return None
    numbers.frombytes(content[: (fact_count + id_count) * numbers.itemsize])
    targets = content[(fact_count + id_count) * numbers.itemsize :]
    columns = (numbers[column:fact_count:FACTS_PER_EXAMPLE] for column in range(FACTS_PER_EXAMPLE))
    examples, first = list[Example](), 0
    for length, file, line, copy in zip(*columns, strict=True):
        last = first + length
        ids = numbers[fact_count + first : fact_count + last]
        examples.append(Example(file=index.paths[file], line=line, copy=copy, ids=ids, targets=targets[first:last]))
        first = last
    return Dataset(
        files=index.facts,
        training=examples[: index.training],
        validation=examples[index.training :],
        findings=index.findings,
        left_out=index.left_out,
        shown=index.shown,
    )


def save(folder: Path, key: str, dataset: Dataset) -> None:
    """Write the examples under their key, replacing an existing entry. Raises OSError."""
    entry = folder / key
    entry.mkdir(parents=True, exist_ok=True)
    examples: Sequence[Example] = [*dataset.training, *dataset.validation]
    paths = {path: number for number, path in enumerate(dict.fromkeys(example.file for example in examples))}
    facts = array("I")
    for example in examples:
        facts.extend((len(example.ids), paths[example.file], example.line, example.copy))
    # Hash the data written here, not the file: another machine may replace the file at the same moment.
    digest = hashlib.sha256()
    pieces: list[Any] = [facts, *(example.ids for example in examples), *(example.targets for example in examples)]
    with open_atomic(entry / EXAMPLES_FILE) as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
    index = Index(
        key=key,
        byte_order=sys.byteorder,
        examples_sha256=digest.hexdigest(),
        training=len(dataset.training),
        validation=len(dataset.validation),
        tokens=sum(facts[::FACTS_PER_EXAMPLE]),
        paths=list(paths),
        facts=list(dataset.files),
        findings=dataset.findings,
        left_out=dataset.left_out,
        shown=dataset.shown,
    )
    write_checksummed(entry / INDEX_FILE, "examples", index)
