"""Report on a training's data: counts, lengths, findings, and example texts with their targets."""

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
from bench.train.sampler import pack_rows

BINS = 24


def load_examples(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], cache_dir: Path | None
) -> tuple[Dataset, bool]:
    """Load the examples from the cache or make them; return (examples, was_cached).

    `tokenizer` is called only to make them, as it takes a second. Raises InputError, also if they cannot be cached.
    """
    model_sha256 = check_model(model).sha256
    paths = [*spec.files, spec.validation_file] if spec.validation_file is not None else spec.files
    if cache_dir is not None:
        key = dataset.cache_key(spec, [readers.sha256_of(Path(path)) for path in paths], model_sha256)
        if (cached := cache.load(cache_dir, key)) is not None:
            return cached, True
    files, held_out = dataset.read(spec)
    examples = dataset.build(spec, files, held_out, tokenizer())
    if cache_dir is not None:
        all_files = [*files, held_out] if held_out is not None else files
        key = dataset.cache_key(spec, [file.sha256 for file in all_files], model_sha256)
        try:
            cache.save(cache_dir, key, examples)
        except OSError as error:
            raise InputError(
                f"{cache_dir}: examples cannot be cached: {error.strerror}; free some space there"
            ) from error
    return examples, False


def build_report(
    spec: TrainingData, model: Path, tokenizer: Callable[[], Any], *, row_tokens: int, cache_dir: Path | None
) -> DataReport:
    """Load the examples and build the report. Raises InputError."""
    start = time.monotonic()
    examples, was_cached = load_examples(spec, model, tokenizer, cache_dir)
    return report_examples(spec, examples, row_tokens=row_tokens, was_cached=was_cached, start=start)


def report_examples(
    spec: TrainingData, examples: Dataset, *, row_tokens: int, was_cached: bool, start: float
) -> DataReport:
    """Build the report on examples whose loading began at `start` (time.monotonic), with some of their texts."""
    seconds = time.monotonic() - start
    data_report = summarize(spec, examples, row_tokens=row_tokens, was_cached=was_cached, seconds=seconds)
    return replace(data_report, shown=examples.shown)


def summarize(
    spec: TrainingData, examples: Dataset, *, row_tokens: int, was_cached: bool, seconds: float
) -> DataReport:
    """Build the report's numbers, without the example texts."""
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
        rows=len(pack_rows(lengths, range(len(lengths)), row_tokens)),
        lengths=counts,
        length_edges=edges,
        left_out=examples.left_out,
        findings=examples.findings,
        shown=[],
        was_cached=was_cached,
        seconds=seconds,
    )
