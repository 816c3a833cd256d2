"""Data files of a training to its training and validation examples, with all findings.

Lines of the validation file, and lines held out by their digest, are never trained on: a training line with the same
turns is removed and counted. Neither lines nor examples are held in memory: every line is checked first, then the files
are read again, and each example is written to a file (`bench.data.example_file`).

The examples depend only on the files, the tokenizer and the settings, so they are cached under the digest of all three:
tokenizing takes minutes, reading seconds. The cache has a folder per digest: `examples.arrow`, and `index.json`, which
is checksummed, written last and contains the sha256 of the former. A damaged or incomplete folder is rebuilt.
"""

import hashlib
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

from bench.architectures import Separation
from bench.data import packing, readers
from bench.data.example_file import ExampleWriter, StoredExamples, map_examples
from bench.data.file_types import expand
from bench.data.findings import DROPPED_KINDS, DataFindings
from bench.data.formats import shorten
from bench.data.inputs import Conversation, InputError
from bench.data.masking import TOKENIZE_BATCH, Example, ExampleBuilder
from bench.data.model_folder import check_model, check_template
from bench.data.readers import BadLines, DataFile
from bench.data.tokenizer import use_all_cores
from bench.records import schema
from bench.records.atomic_files import hash_file, open_atomic, open_regular
from bench.records.checksummed import ResultError, read_checksummed, write_checksummed
from bench.records.training import (
    ConversationPreview,
    DataFinding,
    DataPart,
    DataReport,
    DatasetFacts,
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
EXAMPLES_FILE, INDEX_FILE = "examples.arrow", "index.json"
DIGEST_KEY_BYTES = 16  # the part of a digest that is compared to find equal lines
CACHE_VERSION = 9  # part of the cache key; changes when the cache's files or the examples of the same data change


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Examples in the order of files and lines, and facts about these."""

    training: StoredExamples
    validation: StoredExamples
    facts: DatasetFacts


def read(spec: TrainingData) -> tuple[list[DataFile], DataFile | None]:
    """Check the lines of the data files, and of the validation file if there is one. Raises InputError."""
    for file, count in Counter(file for path in spec.files for file in expand(path)).items():
        if count > 1:
            raise InputError(f"{file}: is in several entries of train.data", remedy="name each file once")
    files = [readers.read(path, spec) for path in spec.files]
    path = spec.validation_file
    return files, None if path is None else readers.read(path, spec)


def cache_key(spec: TrainingData, files_sha256: Sequence[str], tokenizer_sha256: str) -> str:
    """Hash everything that the examples depend on; the validation file's sha256 comes last."""
    inputs = [CACHE_VERSION, schema.to_json(spec), list(files_sha256), tokenizer_sha256]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def split(
    spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, findings: DataFindings
) -> Iterator[tuple[Conversation, bool]]:
    """Yield the conversations, each with whether it is held out.

    Those are chosen by their digests, so that added lines move no others.
    """
    unread_keys, removed = set[str](), set[bytes]()
    for conversation in _count_unread(held_out or (), unread_keys, findings):
        removed.add(conversation.digest[:DIGEST_KEY_BYTES])
        yield conversation, True
    seen: set[bytes] = set()
    for file in files:
        for conversation in _count_unread(file, unread_keys, findings):
            key = conversation.digest[:DIGEST_KEY_BYTES]
            if key in removed:
                findings.add(IN_VALIDATION, conversation)
                continue
            is_repeated = key in seen
            if is_repeated:
                findings.add(DUPLICATE, conversation)
            seen.add(key)
            is_held_out = held_out is None and packing.is_held_out(conversation.digest, spec.validation_share)
            if not (is_held_out and is_repeated):  # evaluated once, however often it occurs in the data
                yield conversation, is_held_out


def build(spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, tokenizer: Any) -> Dataset:
    """Build the examples in a temporary file. Raises the errors of `write_examples`."""
    with tempfile.TemporaryFile() as file:
        return write_examples(spec, files, held_out, tokenizer, file)


def write_examples(
    spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, tokenizer: Any, file: BinaryIO
) -> Dataset:
    """Build the examples and write them to `file`, from which they are read later.

    Raises InputError without any training example, or without a requested validation example; OSError.
    """
    all_files = (*files, held_out) if held_out is not None else files
    bad_lines = BadLines(", ".join(file.path for file in all_files))
    builder = ExampleBuilder(
        tokenizer, spec, max_seq_len=spec.max_seq_len, too_long=spec.too_long, on_bad_line=bad_lines.add
    )
    findings, writer, tokens, left_out = builder.findings, ExampleWriter(file), Counter[str](), 0
    conversations = split(spec, files, held_out, findings)
    with use_all_cores():
        while batch := list(islice(conversations, TOKENIZE_BATCH)):
            is_held_out = {conversation.location: is_held for conversation, is_held in batch}
            without_example = set(is_held_out)
            for example in builder.build(conversation for conversation, _ in batch):
                without_example.discard(example.location)
                writer.add(example, is_held_out=is_held_out[example.location])
                if not is_held_out[example.location]:
                    tokens[example.file] += len(example.ids)
            left_out += len(without_example)
    training, validation = writer.finish()
    bad_lines.check()
    _check_counts(spec, findings, len(training), len(validation))
    facts = DatasetFacts(
        files=[_facts(file, tokens) for file in all_files],
        findings=[
            DataFinding(what=kind, count=count, places=findings.locations[kind])
            for kind, count in sorted(findings.counts.items())
        ],
        left_out=left_out,
        shown=[_preview(example, tokenizer) for example in training[:PREVIEW_COUNT]],
        lost=findings.lost(len(training) + len(validation), sum(training.lengths) + sum(validation.lengths)),
        duplicates=findings.counts[DUPLICATE],
    )
    return Dataset(training=training, validation=validation, facts=facts)


def _check_counts(spec: TrainingData, findings: DataFindings, training: int, validation: int) -> None:
    """Raise InputError without any example to train on, or without one that is to be held out."""
    if not training:
        kinds = (kind for kind in (*DROPPED_KINDS, IN_VALIDATION) if findings.counts[kind])
        first = max(kinds, key=lambda kind: findings.counts[kind], default=None)
        why = f"{findings.locations[first][0]}: {first}" if first else "all lines are held out"
        raise InputError(
            f"{', '.join(spec.files)}: no example is left to train on: {why}",
            remedy="" if first else "add lines, or lower train.validation_fraction",
        )
    if not validation and (spec.validation_share or spec.validation_file is not None):
        raise InputError(
            f"{spec.validation_file or spec.files[0]}: no example is held out for validation",
            remedy="raise train.validation_fraction, or set train.validation_file",
        )


def summarize(
    spec: TrainingData, examples: Dataset, row_tokens: int, separation: Separation, *, was_cached: bool, seconds: float
) -> DataReport:
    """Build the report on a training's data: counts, lengths and findings, without the example texts."""
    lengths = examples.training.lengths
    edges = [spec.max_seq_len * (index + 1) // BINS for index in range(BINS)]
    counts = [0] * BINS
    for length in lengths:
        counts[(length * BINS - 1) // spec.max_seq_len] += 1
    rows = [
        [lengths[index] for index in row]
        for row in packing.fill_rows(lengths, range(len(lengths)), row_tokens, separation)
    ]
    return DataReport(
        **{**vars(examples.facts), "shown": []},
        examples=len(examples.training),
        validation_examples=len(examples.validation),
        tokens=sum(lengths),
        targets=sum(examples.training.targets),
        longest=max(lengths),
        median_length=float(statistics.median(lengths)),
        rows=len(rows),
        is_packed=separation.is_packed,
        positions=packing.count_positions(rows, row_tokens, separation),
        slowdown=packing.slowdown(lengths, rows, row_tokens, separation),
        lengths=counts,
        length_edges=edges,
        was_cached=was_cached,
        seconds=seconds,
    )


def _count_unread(file: Iterable[Conversation], keys: set[str], findings: DataFindings) -> Iterator[Conversation]:
    """Pass a file's conversations on and count the keys of their lines that are not read."""
    for conversation in file:
        for key in conversation.unread_keys:
            is_named = key in keys or len(keys) < MAX_UNREAD_KEYS
            keys |= {key} if is_named else set()
            findings.add(UNREAD_KEY.format(shorten(key)) if is_named else OTHER_UNREAD_KEYS, conversation)
        yield conversation


def _facts(file: DataFile, tokens: Counter[str]) -> FileFacts:
    return FileFacts(
        path=file.path, kind=file.kind, sha256=file.sha256, lines=file.lines,
        tokens=sum(tokens[str(path)] for path in expand(file.path)),
    )  # fmt: skip


def _preview(example: Example, tokenizer: Any) -> ConversationPreview:
    """Decode an example's text, in parts that are targets and parts that are not."""
    return ConversationPreview(
        place=example.location,
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
    """Index of `examples.arrow`: what is known of the examples as a whole."""

    key: str
    examples_sha256: str
    facts: DatasetFacts


def load_examples(
    spec: TrainingData,
    model: Path,
    tokenizer: Callable[[], Any],
    cache_dir: Path | None,
    *,
    files: tuple[list[DataFile], DataFile | None] | None = None,
) -> tuple[Dataset, bool]:
    """Load the examples from the cache or make them; return (examples, was_cached).

    `tokenizer` is called only to make them, as it takes a second. `files` are those of `spec`, if they were read
    already. Raises InputError, also if they cannot be cached.
    """
    model_sha256 = check_model(model).sha256
    if spec.needs_own_template:
        check_template(model)
    paths = [*spec.files, spec.validation_file] if spec.validation_file is not None else spec.files
    if cache_dir is not None:
        key = cache_key(spec, [readers.sha256_of(path) for path in paths], model_sha256)
        if (cached := load_cached(cache_dir, key)) is not None:
            return cached, True
    data_files, held_out = files or read(spec)
    all_files = [*data_files, held_out] if held_out is not None else data_files
    try:
        if cache_dir is None:
            return build(spec, data_files, held_out, tokenizer()), False
        key = cache_key(spec, [file.sha256 for file in all_files], model_sha256)
        return save_cached(cache_dir, key, partial(write_examples, spec, data_files, held_out, tokenizer())), False
    except OSError as error:
        raise InputError(
            f"{cache_dir or 'examples'}: cannot be cached: {error.strerror}",
            remedy="free space there, or make it writable",
        ) from error


def load_cached(folder: Path, key: str) -> Dataset | None:
    """Open the examples cached under this key; None if they are missing or damaged."""
    entry = folder / key
    try:
        index = read_checksummed(Index, entry / INDEX_FILE, "examples")
        with open_regular(entry / EXAMPLES_FILE) as file:  # the open one: that of this name may be replaced meanwhile
            if (index.key, hash_file(file)) != (key, index.examples_sha256):
                return None
            training, validation = map_examples(file)
    except (ResultError, OSError, ValueError):
        return None
    return Dataset(training=training, validation=validation, facts=index.facts)


def save_cached(folder: Path, key: str, build_examples: Callable[[BinaryIO], Dataset]) -> Dataset:
    """Write the examples under their key, replacing an existing entry, and return them. Raises OSError."""
    entry = folder / key
    entry.mkdir(parents=True, exist_ok=True)
    with open_atomic(entry / EXAMPLES_FILE) as file:
        dataset = build_examples(file)
        file.seek(0)  # the open file: another machine may replace the one of this name at the same moment
        digest = hash_file(file)
    index = Index(key=key, examples_sha256=digest, facts=dataset.facts)
    write_checksummed(entry / INDEX_FILE, "examples", index)
    return dataset
