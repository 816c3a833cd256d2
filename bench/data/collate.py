"""Text to batches: the tokenizer's chat template, then rows in the trial's layout, in an order set by the seed.

- `pad`, the published loop: one sample per row, cut at max_seq_len and padded to it; padding carries no loss.
- `varlen`: the samples of `pad`, whole, in one row of micro_batch_size x max_seq_len positions per micro-batch.
  Positions restart with each sample, attention stays within it, and its first token is not a target, so loss and
  gradients are those of separate samples.

Conversations are read, rendered and tokenized as a fine-tuning's, with the same options (`bench.data.masking`), but
every token is a label, prompts included, as in the published measurements.

Before the first step, as many rows are tokenized as the steps need; shorter data is repeated in the same order.
"""

import random
import signal
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, islice, pairwise
from pathlib import Path
from typing import Any

from bench.data.inputs import Conversation, InputError
from bench.data.masking import ExampleBuilder
from bench.data.model_folder import read_separation
from bench.data.packing import Row, pack_whole_samples
from bench.records import Trial
from bench.torch_stack import Stack

IGNORE_INDEX = -100  # label that PyTorch's cross-entropy skips


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch: int64 tensors of shape (micro_batch_size, length), and its counts.

    `tokens` counts every position, `useful_tokens` all but padding. The layout `varlen` has one row, `position_ids`
    instead of a mask, and `edges`: int32 boundaries of its samples, from 0 to the row's length (cu_seqlens).
    """

    input_ids: Any
    labels: Any
    samples: int
    tokens: int
    useful_tokens: int
    attention_mask: Any = None
    position_ids: Any = None
    edges: Any = None

    def spans(self) -> Iterator[tuple[int, int]]:
        """Iterate over the first and last position of each sample, padding included, all rows end to end."""
        length = self.input_ids.shape[1]
        return pairwise(range(0, self.tokens + 1, length) if self.edges is None else self.edges.tolist())


def padding_token(tokenizer: Any) -> int:
    """Return the id that fills a row: the padding token, else the end of the sequence."""
    return int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)


def make_rows(trial: Trial, conversations: Sequence[Conversation], tokenizer: Any) -> list[Row]:
    """Make the distinct rows that the trial's steps need, at most one pass over the data. Raises InputError."""
    needed, samples = rows_needed(trial), _samples(trial, conversations, tokenizer)
    if trial.layout == "pad":
        return [Row(ids=ids[: trial.max_seq_len]) for ids in islice(samples, needed)]
    separation = read_separation(Path(trial.model))
    if not separation.is_packed:
        raise InputError(
            f"{trial.model}: transformers' model does not separate samples in one row", remedy="use the layout pad"
        )
    return pack_whole_samples(
        samples, trial.max_seq_len, trial.micro_batch_size * trial.max_seq_len, needed, separation
    )


def make_prompts(trial: Trial, conversations: Sequence[Conversation], tokenizer: Any, count: int) -> list[list[int]]:
    """Make `count` prompts of `max_seq_len` tokens, cut from the samples end to end. Raises InputError."""
    tokens, length = chain.from_iterable(cycle(_samples(trial, conversations, tokenizer))), trial.max_seq_len
    return [list(islice(tokens, length)) for _ in range(count)]


def _samples(trial: Trial, conversations: Sequence[Conversation], tokenizer: Any) -> Iterator[list[int]]:
    """Yield the token ids of the conversations in an order set by the seed. Raises InputError."""
    order = list(range(len(conversations)))
    random.Random(trial.seed).shuffle(order)  # noqa: S311 - a reproducible order, not a secret
    builder = ExampleBuilder(tokenizer, trial.reading, max_seq_len=None)
    return (example.ids.tolist() for example in builder.build(conversations[index] for index in order))


def rows_needed(trial: Trial) -> int:
    """Count the rows in all steps of a trial, warm-up included."""
    per_step = rows_per_batch(trial) * trial.gradient_accumulation_steps
    return (trial.warmup_steps + trial.measured_steps) * per_step


def rows_per_batch(trial: Trial) -> int:
    """Count the rows in a micro-batch: one in the layout varlen."""
    return 1 if trial.layout == "varlen" else trial.micro_batch_size


def make_batches(
    stack: Stack, trial: Trial, rows: list[Row], tokenizer: Any, *, pin_memory: bool
) -> Generator[Batch, None, None]:
    """Yield all micro-batches of the trial in order, from a DataLoader with `data_workers` processes."""
    collate: Any = PaddedCollate(trial.max_seq_len, padding_token(tokenizer))
    if trial.layout == "varlen":
        positions, short = trial.micro_batch_size * trial.max_seq_len, read_separation(Path(trial.model)).short
        collate = Unpacked(trial.max_seq_len, positions, padding_token(tokenizer), short=short)
    loader = stack.torch.utils.data.DataLoader(
        [rows[index % len(rows)] for index in range(rows_needed(trial))],
        batch_size=rows_per_batch(trial),
        num_workers=trial.data_workers,
        collate_fn=collate,
        worker_init_fn=_reset_signals,
        pin_memory=pin_memory,
    )
    for tensors, (samples, tokens, useful_tokens) in loader:
        yield Batch(**tensors, samples=samples, tokens=tokens, useful_tokens=useful_tokens)


class PaddedCollate:
    """Collate function for padded rows: (tensors by name, (samples, tokens, useful tokens)). Runs in the loader.

    With `to_longest` they are padded to the longest of them, otherwise to `max_seq_len`.
    """

    def __init__(self, max_seq_len: int, padding: int, *, to_longest: bool = False) -> None:
        self.max_seq_len, self.padding, self.to_longest = max_seq_len, padding, to_longest

    def __call__(self, rows: list[Row]) -> tuple[dict[str, Any], tuple[int, int, int]]:
        import torch

        lengths = [len(row.ids) for row in rows]
        length = max(lengths) if self.to_longest else self.max_seq_len
        tensors = _ids_and_labels(rows, length, self.padding)
        mask = (torch.arange(length) < torch.tensor(lengths)[:, None]).to(torch.int64)
        counts = sum(row.samples for row in rows), mask.numel(), sum(lengths)
        return tensors | {"attention_mask": mask}, counts


def _ids_and_labels(rows: list[Row], length: int, padding: int) -> dict[str, Any]:
    """Return the rows' ids, padded, and their labels: of targets only."""
    import torch

    input_ids = torch.full((len(rows), length), padding, dtype=torch.int64)
    labels = torch.full_like(input_ids, IGNORE_INDEX)
    for row, ids, targets in zip(rows, input_ids, labels, strict=True):
        useful = len(row.ids)
        ids[:useful] = torch.tensor(row.ids, dtype=torch.int64)
        targets[:useful] = ids[:useful]
        if row.targets is not None:
            targets[:useful].masked_fill_(torch.tensor(list(row.targets)) == 0, IGNORE_INDEX)
    return {"input_ids": input_ids, "labels": labels}


class Unpacked:
    """Collate function for one row of whole samples; the rest of the row becomes samples of padding.

    `edges` is the least number of edges: empty samples at the end fill them. Kernels are compiled for it. Samples of
    padding have at most `short` tokens, so that they never decide which factors LongRoPE uses.
    """

    def __init__(self, longest: int, positions: int, padding: int, edges: int = 0, short: int | None = None) -> None:
        self.longest = longest if short is None else min(longest, short)
        self.positions, self.padding, self.edges = positions, padding, edges

    def __call__(self, rows: list[Row]) -> tuple[dict[str, Any], tuple[int, int, int]]:
        import torch

        (row,) = rows
        useful = len(row.ids)
        fills = [self.longest] * ((self.positions - useful) // self.longest)
        rest = self.positions - useful - sum(fills)
        lengths = torch.tensor([*row.lengths, *fills, *([rest] if rest else [])], dtype=torch.int64)
        edges = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        tensors = _ids_and_labels(rows, self.positions, self.padding)
        tensors["labels"][0, edges[:-1]] = (
            IGNORE_INDEX  # else a sample's last token would have to predict the next one's first
        )
        positions = torch.arange(self.positions) - edges[:-1].repeat_interleave(lengths)
        edges = torch.nn.functional.pad(edges, (0, max(0, self.edges - len(edges))), value=self.positions)
        return tensors | {"position_ids": positions[None], "edges": edges.to(torch.int32)}, (
            row.samples,
            self.positions,
            useful,
        )


def _reset_signals(_worker: int) -> None:
    # Ctrl-C signals the whole process group; the main process handles it and ends its loaders by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
