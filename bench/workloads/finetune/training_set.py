"""The training set of a fine-tuning: examples, the global batch of each step, and rows as tensors."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

from bench.architectures import Separation
from bench.data import dataset
from bench.data.collate import Batch, PaddedCollate, Unpacked, padding_token
from bench.data.dataset import Dataset
from bench.data.inputs import DataFacts, InputError, InputRejected, Inputs
from bench.data.masking import Example
from bench.data.model_folder import read_separation
from bench.data.packing import Row, SamplingPlan, count_positions, fill_rows
from bench.data.tokenizer import load_trial_tokenizer
from bench.data.trial_inputs import check_trial_model
from bench.records import Trial, schema
from bench.records.atomic_files import read_regular, write_atomic
from bench.records.training import DerivedSettings, Training

INPUTS_FILE, MAX_INPUTS_BYTES = "inputs.json", 1 << 20
END_EXAMPLES = 1000
RowIndices = tuple[int, ...]  # the indices of a row's examples


def training_of(trial: Trial) -> Training:
    """Return the training settings of a fine-tuning trial."""
    if trial.training is None:
        raise ValueError(f"{trial.name}: not a fine-tuning")
    return trial.training


def check_inputs(trial: Trial) -> Inputs:
    """Check the model folder and every line of the data files. Raises InputError."""
    training, model = training_of(trial), check_trial_model(trial)
    files, held_out = dataset.read(training.data)
    all_files = [*files, *([held_out] if held_out is not None else [])]
    check_digests(training.input_digests, {trial.model: model.sha256, **{file.path: file.sha256 for file in all_files}})
    digest = hashlib.sha256("".join(file.sha256 for file in all_files).encode()).hexdigest()
    samples = sum(file.lines for file in files)
    return model, DataFacts(sha256=digest, samples=samples, skipped=0), []


def check_digests(planned: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raise InputRejected for a model or data file whose sha256 is not the planned one."""
    for path, digest in current.items():
        if planned.get(path, digest) != digest:
            raise InputRejected(
                f"{path}: changed since the training was planned (sha256 {planned[path][:12]}, now {digest[:12]})",
                remedy="restore it, or start a new training",
            )


@dataclass(frozen=True, kw_only=True)
class FirstAttempt:
    """The inputs of the first attempt, sha256 by path, and what it derived from its GPU; later attempts use them."""

    digests: dict[str, str]
    fitted: DerivedSettings

    @classmethod
    def read(cls, checkpoints: Path) -> "FirstAttempt | None":
        """Read it from the folder of checkpoints; None without one. Raises InputError."""
        path = checkpoints / INPUTS_FILE
        try:
            return schema.from_json(cls, schema.parse(read_regular(path, max_bytes=MAX_INPUTS_BYTES)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path}: the inputs of the first attempt cannot be read: {error}", remedy="remove the file"
            ) from error

    def write(self, checkpoints: Path) -> None:
        """Write it into the folder of checkpoints. Raises InputError."""
        path = checkpoints / INPUTS_FILE
        try:
            write_atomic(path, json.dumps(schema.to_json(self)).encode())
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}", remedy="free some space there") from error


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The examples of a fine-tuning and their order.

    `row_tokens` is the length of a packed row, including padding, and the most positions of another one.
    """

    data: Dataset
    training: Training
    max_seq_len: int
    row_tokens: int
    seed: int
    sha256: str
    separation: Separation

    @classmethod
    def from_trial(cls, trial: Trial, data: Dataset) -> "TrainingSet":
        digest = hashlib.sha256()
        for part in (data.training, data.validation):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(b"".join(part.digests))
        return cls(
            data=data,
            training=training_of(trial),
            max_seq_len=trial.max_seq_len,
            row_tokens=trial.max_seq_len * trial.micro_batch_size,
            seed=trial.seed,
            sha256=digest.hexdigest(),
            separation=read_separation(Path(trial.model)),
        )

    @property
    def sampling_plan(self) -> SamplingPlan:
        return SamplingPlan(
            lengths=self.data.training.lengths,
            digests=self.data.training.digests,
            seed=self.seed,
            row_tokens=self.row_tokens,
            micro_batches=self.training.rows_per_step,
            separation=self.separation,
        )

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end the first examples' answers; none if every token is a target."""
        if self.training.data.labels != "assistant":
            return []
        first = [*self.data.training[:END_EXAMPLES], *self.data.validation[:END_EXAMPLES]]
        return sorted({example.ids[example.targets.rindex(1)] for example in first})

    @cached_property
    def survey(self) -> tuple[int, int]:
        """The number of steps, and the most examples of a row. Packs every epoch."""
        return self.sampling_plan.survey(self.training.epochs, self.training.max_steps)

    def steps(self) -> int:
        return self.survey[0]

    def most_edges(self) -> int:
        """Return the edges of the row with most samples, padding's included, as a power of two."""
        samples = max(self.survey[1], *map(len, self.validation_rows()), 0)
        shortest_fill = min(self.max_seq_len, self.separation.short or self.max_seq_len)
        return 1 << (samples + self.row_tokens // shortest_fill + 1).bit_length()

    def batches(self, after: int) -> Iterator[list[RowIndices]]:
        """Iterate over the global batches of the steps after step `after`."""
        return islice(self.sampling_plan.batches(self.training.epochs), after, self.steps())

    def positions(self, rows: Sequence[Sequence[Example]]) -> int:
        """Count the positions of rows of examples, padding included."""
        lengths = [[len(example.ids) for example in row] for row in rows]
        return count_positions(lengths, self.row_tokens, self.separation)

    def heaviest_row(self) -> RowIndices:
        """Return the first epoch's row that needs the most memory: the one with the longest example."""
        lengths = self.data.training.lengths
        return max(self.sampling_plan.rows(0), key=lambda row: (max(lengths[index] for index in row), len(row)))

    def validation_rows(self) -> list[RowIndices]:
        """Divide the validation examples into rows."""
        lengths = self.data.validation.lengths
        return fill_rows(lengths, range(len(lengths)), self.row_tokens, self.separation)


class RowCollator:
    """A function that collates a row's examples into a batch. Packed batches have tensors of the same shapes."""

    def __init__(self, training_set: TrainingSet, tokenizer: Any, *, pin_memory: bool = False) -> None:
        self._is_packed, padding = training_set.separation.is_packed, padding_token(tokenizer)
        self._collate: Any = PaddedCollate(training_set.max_seq_len, padding, to_longest=True)
        if self._is_packed:
            longest, edges, short = training_set.max_seq_len, training_set.most_edges(), training_set.separation.short
            self._collate = Unpacked(longest, training_set.row_tokens, padding, edges, short)
        self._pin = pin_memory

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Collate examples, which do not attend to each other; only their targets have labels."""
        groups = [examples] if self._is_packed else [[example] for example in examples]
        tensors, (samples, tokens, useful) = self._collate([_join(group) for group in groups])
        if self._pin:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return Batch(**tensors, samples=samples, tokens=tokens, useful_tokens=useful)


def _join(examples: Sequence[Example]) -> Row:
    return Row(
        ids=[token for example in examples for token in example.ids],
        lengths=tuple(len(example.ids) for example in examples),
        targets=b"".join(example.targets for example in examples),
    )


def count_targets(examples: Sequence[Example]) -> int:
    return sum(example.targets.count(1) for example in examples)


def load(trial: Trial, cache_folder: Path | None) -> TrainingSet:
    """Load the training set, its examples from the cache if they are there. Raises InputError."""
    return load_data(trial, cache_folder)[0]


def load_data(trial: Trial, cache_folder: Path | None, files: Any = None) -> tuple[TrainingSet, bool]:
    """Load the training set like `load`, from `files` if they are read; return whether the cache had its examples."""
    training, tokenizer = training_of(trial), partial(load_trial_tokenizer, trial)
    data, was_cached = dataset.load_examples(training.data, Path(trial.model), tokenizer, cache_folder, files=files)
    # Checked again: the files may have been replaced since `check_inputs` read them.
    check_digests(training.input_digests, {file.path: file.sha256 for file in data.facts.files})
    return TrainingSet.from_trial(trial, data), was_cached
