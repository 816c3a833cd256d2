"""All data files of a training to its examples, training and validation apart, with everything that was found.

Lines of the validation file, or lines held out by their digest, are never trained on: a training line with the same
turns is removed and counted. What depends on nothing but the files, the tokenizer and the settings is kept in a cache
below the digest of all three (`bench.train.cache`).
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.data.tokenizer import every_core
from bench.records import schema
from bench.records.training_data import ConversationPreview, DataFinding, DataPart, FileFacts, TrainingData
from bench.train import readers, sampler
from bench.train.masking import LEFT_OUT, DataFindings, Example, Examples
from bench.train.readers import DataFile, RawConversation

REMOVED = "stands in the validation data too: not trained on"
REPEATED = "repeats another line of the data"
SHOWN = 3  # examples
VERSION = 2  # of what the same data and settings become; part of the cache's name


@dataclass(frozen=True, kw_only=True)
class Split:
    """Conversations to train on, each with how often it stands in an epoch, and conversations held out."""

    training: list[tuple[RawConversation, int]]
    validation: list[RawConversation]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Examples in the order of files and lines. `left_out` counts conversations that gave none."""

    files: list[FileFacts]
    training: Sequence[Example]
    validation: Sequence[Example]
    findings: list[DataFinding]
    left_out: int
    shown: list[ConversationPreview]


def read(spec: TrainingData) -> tuple[list[DataFile], DataFile | None]:
    """The data files, and the validation file if there is one. Raises InputError."""
    files = [readers.read(Path(path)) for path in spec.files]
    return files, readers.read(Path(spec.validation_file)) if spec.validation_file is not None else None


def key_of(spec: TrainingData, files_sha256: Sequence[str], tokenizer_sha256: str) -> str:
    """The digest of everything that decides what the examples are; the validation file's sha256 comes last."""
    parts = [VERSION, schema.to_json(spec), list(files_sha256), tokenizer_sha256]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def split(spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, findings: DataFindings) -> Split:
    """Which conversations train and which are held out; decided by digests, so that adding lines moves none."""
    validation = list(held_out.conversations) if held_out is not None else []
    training: list[tuple[RawConversation, int]] = []
    removed = {one.digest for one in validation}
    seen: set[bytes] = set()
    for file, weight in zip(files, spec.weights, strict=True):
        for conversation in file.conversations:
            if conversation.digest in removed:
                findings.note(REMOVED, conversation)
                continue
            if conversation.digest in seen:
                findings.note(REPEATED, conversation)
            if held_out is None and sampler.is_validation(conversation.digest, spec.validation_share):
                if conversation.digest not in seen:  # measured once, however often it stands in the data
                    validation.append(conversation)
            elif times := sampler.times_of(conversation.digest, weight):
                training.append((conversation, times))
            seen.add(conversation.digest)
    return Split(training=training, validation=validation)


def make(spec: TrainingData, files: Sequence[DataFile], held_out: DataFile | None, tokenizer: Any) -> Dataset:
    """Raises InputError where nothing is left to train on, or to validate with where that was asked for."""
    maker = Examples(tokenizer, max_seq_len=spec.max_seq_len, labels=spec.labels, too_long=spec.too_long)
    findings = maker.findings
    parts = split(spec, files, held_out, findings)
    times = {(one.file, one.line): count for one, count in parts.training}
    with every_core():
        training = [
            replace(example, copy=copy) if copy else example
            for example in maker.of(one for one, _ in parts.training)
            for copy in range(times[example.file, example.line])
        ]
        validation = list(maker.of(parts.validation))
    left_out = sum(findings.counts[what] for what in LEFT_OUT)
    if not training:
        first = next(iter(findings.places.items()), None)
        why = f": {first[1][0]}: {first[0]}" if first else "; its lines are held out, or train.weights is too low"
        raise InputError(f"{', '.join(spec.files)}: no example is left to train on{why}")
    if not validation and (spec.validation_share or held_out is not None):
        raise InputError(
            f"{spec.validation_file or spec.files[0]}: no example is held out for validation; "
            "raise train.validation, or name a file of its own"
        )
    every = (*files, held_out) if held_out is not None else files
    return Dataset(
        files=[_facts(file, weight) for file, weight in zip(every, chain(spec.weights, [1.0]), strict=False)],
        training=training,
        validation=validation,
        findings=[
            DataFinding(what=what, count=count, places=findings.places[what])
            for what, count in sorted(findings.counts.items())
        ],
        left_out=left_out,
        shown=[_shown(example, tokenizer) for example in training[:SHOWN]],
    )


def _facts(file: DataFile, weight: float) -> FileFacts:
    return FileFacts(
        path=file.path, kind=file.kind, sha256=file.sha256, bytes=file.bytes, lines=len(file.conversations),
        weight=weight,
    )  # fmt: skip


def _shown(example: Example, tokenizer: Any) -> ConversationPreview:
    """An example's text, in parts that are trained on and parts that are not."""
    return ConversationPreview(
        place=f"{example.file}: line {example.line}",
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
