"""What a training would train on, as a report: counts, lengths, findings, and examples whose targets can be seen."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.data.inputs import InputError
from bench.data.model_folder import check_model
from bench.records.training_data import DataReport, TrainingData
from bench.train import cache, dataset, readers
from bench.train.dataset import Dataset
from bench.train.sampler import packed

BINS = 24


def examples_of(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], keep_in: Path | None
) -> tuple[Dataset, bool]:
    """The examples, and whether they were in the cache; else `tokenizer` loads what makes them, which takes a second.
    Raises InputError, also where they cannot be kept.
    """
    of_model = check_model(model).sha256
    paths = [*spec.files, spec.validation_file] if spec.validation_file is not None else spec.files
    if keep_in is not None:  # what was read once is known by its digest
        key = dataset.key_of(spec, [readers.sha256_of(Path(path)) for path in paths], of_model)
        if (kept := cache.load(keep_in, key)) is not None:
            return kept, True
    files, held_out = dataset.read(spec)
    made = dataset.make(spec, files, held_out, tokenizer())
    if keep_in is not None:
        every = [*files, held_out] if held_out is not None else files
        try:
            cache.keep(keep_in, dataset.key_of(spec, [file.sha256 for file in every], of_model), made)
        except OSError as error:
            raise InputError(f"{keep_in}: examples cannot be kept: {error.strerror}; free some room there") from None
    return made, False


def report(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], *, row_tokens: int, keep_in: Path | None
) -> DataReport:
    """Raises as `examples_of`."""
    began = time.monotonic()
    made, was_cached = examples_of(spec, model, tokenizer, keep_in)
    found = described(spec, made, row_tokens=row_tokens, was_cached=was_cached, seconds=time.monotonic() - began)
    return replace(found, shown=made.shown)


def described(spec: TrainingData, made: Dataset, *, row_tokens: int, was_cached: bool, seconds: float) -> DataReport:
    """The numbers of a report, without examples to look at."""
    lengths = [len(example.ids) for example in made.training]
    edges = [spec.max_seq_len * (place + 1) // BINS for place in range(BINS)]
    counts = [0] * BINS
    for length in lengths:
        counts[min(BINS - 1, (length - 1) * BINS // spec.max_seq_len)] += 1
    return DataReport(
        files=made.files,
        examples=len(made.training),
        validation_examples=len(made.validation),
        tokens=sum(lengths),
        targets=sum(example.targets.count(1) for example in made.training),
        longest=max(lengths),
        median_length=float(statistics.median(lengths)),
        rows=len(packed(lengths, range(len(lengths)), row_tokens)),
        lengths=counts,
        length_edges=edges,
        left_out=made.left_out,
        findings=made.findings,
        shown=[],
        was_cached=was_cached,
        seconds=seconds,
    )
