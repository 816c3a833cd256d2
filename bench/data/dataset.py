"""Data files of a training to its training and validation examples, with all findings.

Lines of the validation file, and lines held out by their digest, are never trained on: a training line with the same
turns is removed and counted. The examples depend only on the files, the tokenizer and the settings, so they are cached
under the digest of all three: tokenizing takes minutes, reading seconds.

The cache has a folder per digest: `examples.bin` (four uint32 per example: its length, its file's index in `paths`, its
line, its copy; then the uint32 token ids of all examples; then one byte per token for the targets) and `index.json`,
which is checksummed, written last and contains the sha256 of the former. A damaged or incomplete folder is rebuilt.
"""

import hashlib
import json
import statistics
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from bench.data import file_types, packing, readers
from bench.data.findings import DROPPED_KINDS, SKIPPED, DataFindings
from bench.data.formats import shorten
from bench.data.inputs import Conversation, InputError
from bench.data.masking import Example, ExampleBuilder
from bench.data.model_folder import check_model
from bench.data.readers import BadLines, DataFile
from bench.data.tokenizer import use_all_cores
from bench.records import schema
from bench.records.atomic_files import open_atomic, sha256_of
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.training import (
    ConversationPreview,
    DataFinding,
    DataPart,
    DataReport,
    FileFacts,
    TrainingData,
)  # fmt: skip

IN_VALIDATION = "also occurs in the validation data: not trained on"
DUPLICATE = "repeats another line of the data"
UNREAD_KEY = "key {} is not read"
OTHER_UNREAD_KEYS = "other keys are not read"
MAX_UNREAD_KEYS = 50  # keys with a finding of their own
PREVIEW_COUNT = 3
BINS = 24  # bars in the histogram of lengths of a report
EXAMPLES_FILE, INDEX_FILE = "examples.bin", "index.json"
FACTS_PER_EXAMPLE = 4  # length, file, line, copy
CACHE_VERSION = 3  # part of the cache key; changes when the same data and settings give other examples


@dataclass(frozen=True, kw_only=True)
class Split:
    """Conversations to train on, each with its repetitions per epoch, and held-out conversations."""

    training: list[tuple[Conversation, int]]
    validation: list[Conversation]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Examples in the order of files and lines. `left_out` counts conversations without an example."""

    files: list[FileFacts]
    training: Sequence[Example]
    validation: Sequence[Example]
    findings: list[DataFinding]
    left_out: int
    shown: list[ConversationPreview]


def read(spec: TrainingData) -> tuple[list[DataFile], DataFile | None]:
    """Read the data files, and the validation file if there is one. Raises InputError."""
    files = [readers.read(Path(path), spec.bad_lines) for path in spec.files]
    held_out = None if spec.validation_file is None else readers.read(Path(spec.validation_file), spec.bad_lines)
    return files, held_out


def cache_key(spec: TrainingData, files_sha256: Sequence[str], tokenizer_sha256: str) -> str:
    """Hash everything that the examples depend on; the validation file's sha256 comes last."""
    inputs = [CACHE_VERSION, schema.to_json(spec), list(files_sha256), tokenizer_sha256]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def split(spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, findings: DataFindings) -> Split:
    """Split conversations into training and validation by their digests, so that added lines move no others."""
    validation = list(held_out.conversations) if held_out is not None else []
    training: list[tuple[Conversation, int]] = []
    removed = {conversation.digest for conversation in validation}
    seen: set[bytes] = set()
    for file, weight in zip(files, spec.weights, strict=True):
        for conversation in file.conversations:
            if conversation.digest in removed:
                findings.add(IN_VALIDATION, conversation)
                continue
            if conversation.digest in seen:
                findings.add(DUPLICATE, conversation)
            if held_out is None and packing.is_held_out(conversation.digest, spec.validation_share):
                if conversation.digest not in seen:  # evaluated once, however often it occurs in the data
                    validation.append(conversation)
            elif count := packing.repetitions(conversation.digest, weight):
                training.append((conversation, count))
            seen.add(conversation.digest)
    return Split(training=training, validation=validation)


def build(spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, tokenizer: Any) -> Dataset:
    """Build the examples. Raises InputError without any training example, or without a requested validation example."""
    all_files = (*files, held_out) if held_out is not None else files
    bad_lines = _merge_bad_lines(spec, all_files)
    lines = sum(len(file.conversations) for file in all_files) + bad_lines.count
    builder = ExampleBuilder(
        tokenizer,
        max_seq_len=spec.max_seq_len,
        labels=spec.labels,
        too_long=spec.too_long,
        special_tokens=spec.special_tokens,
        on_bad_line=lambda error: bad_lines.add(error, lines=lines),
    )
    findings = builder.findings
    _add_unread_keys(all_files, findings)
    conversations = split(spec, files, held_out, findings)
    units = {file.path: file.conversations[0].unit for file in files}
    repetitions = {(conversation.file, conversation.line): count for conversation, count in conversations.training}
    with use_all_cores():
        training = [
            replace(example, copy=copy) if copy else example
            for example in builder.build(conversation for conversation, _ in conversations.training)
            for copy in range(repetitions[example.file, example.line])
        ]
        validation = list(builder.build(conversations.validation))
    bad_lines.check(lines)
    findings.add_skipped(SKIPPED, bad_lines)
    left_out = sum(findings.counts[kind] for kind in DROPPED_KINDS)
    if not training:
        kinds = (kind for kind in (*DROPPED_KINDS, IN_VALIDATION) if findings.counts[kind])
        first = max(kinds, key=lambda kind: findings.counts[kind], default=None)
        why = (
            f": {findings.locations[first][0]}: {first}"
            if first
            else ": all lines are held out; raise train.data_weights"
        )
        raise InputError(f"{', '.join(spec.files)}: no example is left to train on{why}")
    if not validation and (spec.validation_share or held_out is not None):
        raise InputError(
            f"{spec.validation_file or spec.files[0]}: no example is held out for validation",
            remedy="raise train.validation_fraction, or set train.validation_file",
        )
    return Dataset(
        files=[_facts(file, weight) for file, weight in zip(all_files, chain(spec.weights, [1.0]), strict=False)],
        training=training,
        validation=validation,
        findings=[
            DataFinding(what=kind, count=count, places=findings.locations[kind])
            for kind, count in sorted(findings.counts.items())
        ],
        left_out=left_out,
        shown=[_preview(example, units[example.file], tokenizer) for example in training[:PREVIEW_COUNT]],
    )


def summarize(
    spec: TrainingData, examples: Dataset, *, row_tokens: int, was_cached: bool, seconds: float
) -> DataReport:
    """Build the report on a training's data: counts, lengths and findings, without the example texts."""
    lengths = [len(example.ids) for example in examples.training]
    edges = [spec.max_seq_len * (index + 1) // BINS for index in range(BINS)]
    counts = [0] * BINS
    for length in lengths:
        counts[min(BINS - 1, (length - 1) * BINS // spec.max_seq_len)] += 1
    return DataReport(
        files=examples.files,
        examples=len(examples.training),
        validation_examples=len(examples.validation),
        tokens=sum(lengths),
        targets=sum(example.targets.count(1) for example in examples.training),
        longest=max(lengths),
        median_length=float(statistics.median(lengths)),
        rows=len(packing.pack_rows(lengths, range(len(lengths)), row_tokens)),
        lengths=counts,
        length_edges=edges,
        left_out=examples.left_out,
        findings=examples.findings,
        shown=[],
        was_cached=was_cached,
        seconds=seconds,
    )


def _merge_bad_lines(spec: TrainingData, files: Sequence[DataFile]) -> BadLines:
    """Return the skipped lines of all files, to which those that the template rejects are added."""
    merged = BadLines(source=", ".join(file.path for file in files), policy=spec.bad_lines)
    for file in files:
        merged.count += file.bad_lines.count
        merged.errors += file.bad_lines.errors
    return merged


def _add_unread_keys(files: Sequence[DataFile], findings: DataFindings) -> None:
    keys: set[str] = set()
    for conversation in chain.from_iterable(file.conversations for file in files):
        for key in conversation.unread_keys:
            if key in keys or len(keys) < MAX_UNREAD_KEYS:
                keys.add(key)
                findings.add(UNREAD_KEY.format(shorten(key)), conversation)
            else:
                findings.add(OTHER_UNREAD_KEYS, conversation)


def _facts(file: DataFile, weight: float) -> FileFacts:
    return FileFacts(
        path=file.path, kind=file.kind, sha256=file.sha256, bytes=file.bytes, lines=len(file.conversations),
        weight=weight,
    )  # fmt: skip


def _preview(example: Example, unit: str, tokenizer: Any) -> ConversationPreview:
    """Decode an example's text, in parts that are targets and parts that are not."""
    return ConversationPreview(
        place=f"{example.file}: {unit} {example.line}",
        tokens=len(example.ids),
        targets=example.targets.count(1),
        parts=list(_parts(example, tokenizer)),
    )


def _parts(example: Example, tokenizer: Any) -> Iterator[DataPart]:
    start = 0
    for is_target, group in groupby(example.targets):
        end = start + len(list(group))
        ids = example.ids[start:end].tolist()
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        yield DataPart(text=text, is_target=bool(is_target))
        start = end


# Cache ----------------------------------------------------------------------------------------------------------------


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
        key = cache_key(spec, [file_types.sha256_of(Path(path)) for path in paths], model_sha256)
        if (cached := load_cached(cache_dir, key)) is not None:
            return cached, True
    files, held_out = read(spec)
    examples = build(spec, files, held_out, tokenizer())
    if cache_dir is not None:
        all_files = [*files, held_out] if held_out is not None else files
        key = cache_key(spec, [file.sha256 for file in all_files], model_sha256)
        try:
            save_cached(cache_dir, key, examples)
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
    report = summarize(spec, examples, row_tokens=row_tokens, was_cached=was_cached, seconds=seconds)
    return replace(report, shown=examples.shown)


def load_cached(folder: Path, key: str) -> Dataset | None:
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


def save_cached(folder: Path, key: str, dataset: Dataset) -> None:
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
