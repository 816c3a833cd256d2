"""What a fine-tuning trains on: examples, the global batch of each step, and rows as tensors."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bench.data.collate import IGNORED, Batch, Unpacked
from bench.data.inputs import DataFacts, InputError, Inputs
from bench.data.packing import Row
from bench.data.trial_inputs import check_model_of
from bench.records import Trial
from bench.records.training import Training
from bench.train import check, dataset
from bench.train.dataset import Dataset
from bench.train.masking import Example
from bench.train.sampler import SamplingPlan, packed

Places = tuple[int, ...]  # of a row's examples


def training_of(trial: Trial) -> Training:
    """How a trial of kind finetune trains."""
    if trial.training is None:
        raise ValueError(f"{trial.name}: not a fine-tuning")
    return trial.training


def check_inputs(trial: Trial) -> Inputs:
    """Check the model folder, every line of the data files, and what depends on both. Raises InputError."""
    training, model = training_of(trial), check_model_of(trial)
    if training.data.max_seq_len != trial.max_seq_len:
        raise InputError(
            f"max_seq_len: {trial.max_seq_len} in the trial, {training.data.max_seq_len} for its data; give both one"
        )
    if training.rows_per_step < trial.world_size:
        raise InputError(
            f"rows_per_step: {training.rows_per_step} rows leave some of {trial.world_size} ranks without any; "
            "take at least a row for each rank, or fewer ranks"
        )
    files, held_out = dataset.read(training.data)
    every = [*files, *([held_out] if held_out is not None else [])]
    digest = hashlib.sha256("".join(file.sha256 for file in every).encode()).hexdigest()
    samples = sum(len(file.conversations) for file in files)
    return model, DataFacts(path=trial.data, sha256=digest, samples=samples, skipped=0), []


@dataclass(frozen=True, kw_only=True)
class TrainingSet:
    """The examples of a fine-tuning and their order. `row_tokens` are the positions of a row, padding included."""

    data: Dataset
    training: Training
    longest: int
    row_tokens: int
    seed: int
    sha256: str

    @classmethod
    def of(cls, trial: Trial, data: Dataset) -> "TrainingSet":
        every = hashlib.sha256()
        for part in (data.training, data.validation):
            every.update(len(part).to_bytes(8, "little"))
            for example in part:
                every.update(example.digest)
        return cls(
            data=data,
            training=training_of(trial),
            longest=trial.max_seq_len,
            row_tokens=trial.max_seq_len * trial.micro_batch_size,
            seed=trial.seed,
            sha256=every.hexdigest(),
        )

    @property
    def plan(self) -> SamplingPlan:
        return SamplingPlan(
            lengths=[len(example.ids) for example in self.data.training],
            digests=[example.digest for example in self.data.training],
            seed=self.seed,
            row_tokens=self.row_tokens,
            micro_batches=self.training.rows_per_step,
        )

    def steps(self) -> int:
        steps = self.plan.steps(self.training.epochs)
        return steps if self.training.max_steps is None else min(steps, self.training.max_steps)

    def batches(self, after: int) -> Iterator[list[Places]]:
        """The global batch of each step, from the one after step `after` on."""
        return islice(self.plan.batches(self.training.epochs), after, self.steps())

    def heaviest(self) -> Places:
        """The first epoch's row that needs the most memory: the one with the longest example."""
        lengths = [len(example.ids) for example in self.data.training]
        return max(self.plan.rows(0), key=lambda row: (max(lengths[place] for place in row), len(row)))

    def held_out(self) -> list[Places]:
        """The rows in which the validation examples are measured."""
        lengths = [len(example.ids) for example in self.data.validation]
        return packed(lengths, range(len(lengths)), self.row_tokens)


class RowRange:
    """Makes a batch of one row from examples."""

    def __init__(self, material: TrainingSet, tokenizer: Any, *, pin_memory: bool = False) -> None:
        padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        self._apart, self._pin = Unpacked(material.longest, material.row_tokens, padding), pin_memory

    def __call__(self, examples: Sequence[Example]) -> Batch:
        """Examples end to end, apart from each other; only their targets have labels."""
        ids = [token for example in examples for token in example.ids]
        row = Row(ids=ids, samples=len(examples), lengths=tuple(len(example.ids) for example in examples))
        tensors, (samples, tokens, useful) = self._apart([row])
        targets = b"".join(example.targets for example in examples)
        labels = tensors["labels"]
        labels[0, :useful][labels.new_tensor(list(targets)) == 0] = IGNORED
        if self._pin:
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        return Batch(**tensors, samples=samples, tokens=tokens, useful_tokens=useful)


def targets_of(examples: Sequence[Example]) -> int:
    return sum(example.targets.count(1) for example in examples)


def load(trial: Trial, tokenizer: Callable[[], Any], keep_in: Path | None) -> tuple[TrainingSet, bool]:
    """The material, and whether its examples were in the cache. Raises InputError."""
    data, was_cached = check.examples_of(training_of(trial).data, Path(trial.model), tokenizer, keep_in)
    return TrainingSet.of(trial, data), was_cached
