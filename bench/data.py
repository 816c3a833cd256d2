"""Text to batches: the tokenizer's chat template, then padded rows or packed blocks, in an order set by the seed.

`pad` is the published loop: one sample a row, cut at max_seq_len, filled up with padding that carries no loss.
`pack` is plain packing: samples end to end with an end-of-sequence token between them, cut into full blocks.
Attention crosses the samples of a block there, and positions run on: right for measuring what padding costs, not the
last word for training.

Only as much is tokenized as the trial's steps need, before the first step; where the data is shorter than that, it is
gone through again in the same order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bench.inputs import Conversation, InputError
from bench.stack import Stack
from bench.trial import Trial

IGNORED = -100  # the label that PyTorch's cross-entropy leaves out
TOKENIZED_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch before padding. `samples` is 1 when padded; when packed, the parts of samples in it, added up.

    Parts, because a long sample fills several blocks: counting it where it ends would make some steps worth nothing.
    """

    ids: list[int]
    samples: float


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One micro-batch: three int64 tensors of shape (micro_batch_size, max_seq_len), and what it holds.

    `tokens` counts every position, `useful_tokens` leaves the padding out.
    """

    input_ids: Any
    attention_mask: Any
    labels: Any
    samples: float
    tokens: int
    useful_tokens: int


def load_tokenizer(stack: Stack, folder: str) -> Any:
    """The folder's tokenizer.json with its settings; nothing else decides how text is cut."""
    return stack.transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def make_rows(trial: Trial, conversations: list[Conversation], tokenizer: Any) -> list[Row]:
    """The distinct rows that the trial's steps need, at most one pass over the data. Raises InputError."""
    if tokenizer.eos_token_id is None:
        raise InputError(f"{trial.model}: tokenizer_config.json: eos_token: missing; samples could not be ended")
    order = list(range(len(conversations)))
    random.Random(trial.seed).shuffle(order)  # noqa: S311 - an order that can be repeated, not a secret
    ordered = (conversations[index] for index in order)
    needed = rows_needed(trial)
    samples = _tokenized(trial, ordered, tokenizer)
    if trial.layout == "pad":
        return _take((Row(ids=ids[: trial.max_seq_len], samples=1) for ids in samples), needed)
    blocks = _packed(samples, trial.max_seq_len, needed, tokenizer.eos_token_id)
    if len(blocks) < trial.micro_batch_size:
        raise InputError(
            f"{trial.data}: fills {len(blocks)} blocks of {trial.max_seq_len} tokens, fewer than a batch of "
            f"{trial.micro_batch_size} (micro_batch_size); bring more data, or make blocks or batch smaller"
        )
    return blocks


def rows_needed(trial: Trial) -> int:
    """Rows in all steps of a trial, warm-up included."""
    per_step = trial.micro_batch_size * trial.gradient_accumulation_steps
    return (trial.warmup_steps + trial.measured_steps) * per_step


def make_batches(
    stack: Stack, trial: Trial, rows: list[Row], tokenizer: Any, *, pin_memory: bool
) -> Generator[Batch, None, None]:
    """All micro-batches of the trial in order, through a DataLoader with `data_workers` processes."""
    padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    loader = stack.torch.utils.data.DataLoader(
        _Cycle(rows, rows_needed(trial)),
        batch_size=trial.micro_batch_size,
        num_workers=trial.data_workers,
        collate_fn=_Collate(trial.max_seq_len, padding),
        worker_init_fn=_leave_signals_to_the_parent,
        pin_memory=pin_memory,
    )
    for tensors, (samples, tokens, useful_tokens) in loader:
        yield Batch(**tensors, samples=samples, tokens=tokens, useful_tokens=useful_tokens)


class _Cycle:
    """`length` rows, going round `rows` as often as it takes. Picklable, for loader processes that are spawned."""

    def __init__(self, rows: list[Row], length: int) -> None:
        self.rows, self.length = rows, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Row:
        if index >= self.length:
            raise IndexError(index)
        return self.rows[index % len(self.rows)]


class _Collate:
    """Rows to (tensors by name, (samples, tokens, useful tokens)); runs in the loader's processes."""

    def __init__(self, max_seq_len: int, padding: int) -> None:
        self.max_seq_len, self.padding = max_seq_len, padding

    def __call__(self, rows: list[Row]) -> tuple[dict[str, Any], tuple[float, int, int]]:
        import torch

        shape = (len(rows), self.max_seq_len)
        input_ids = torch.full(shape, self.padding, dtype=torch.int64)
        attention_mask = torch.zeros(shape, dtype=torch.int64)
        labels = torch.full(shape, IGNORED, dtype=torch.int64)
        for place, row in enumerate(rows):
            ids = torch.tensor(row.ids, dtype=torch.int64)
            input_ids[place, : len(ids)] = ids
            attention_mask[place, : len(ids)] = 1
            labels[place, : len(ids)] = ids
        counts = sum(row.samples for row in rows), input_ids.numel(), sum(len(row.ids) for row in rows)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}, counts


def _leave_signals_to_the_parent(_worker: int) -> None:
    # Ctrl-C reaches the whole process group; the trial's main process decides, and ends its loaders by SIGTERM.
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _tokenized(trial: Trial, conversations: Iterator[Conversation], tokenizer: Any) -> Iterator[list[int]]:
    while piece := _take(conversations, TOKENIZED_AT_ONCE):
        texts = [_rendered(trial, conversation, tokenizer) for conversation in piece]
        # The template writes the special tokens itself; adding them again would begin every sample twice.
        yield from tokenizer(texts, add_special_tokens=False)["input_ids"]


def _rendered(trial: Trial, conversation: Conversation, tokenizer: Any) -> str:
    from jinja2.exceptions import TemplateError

    try:
        return str(tokenizer.apply_chat_template(conversation.messages, tokenize=False))
    except TemplateError as error:
        raise InputError(
            f"{trial.data}: line {conversation.line}: the model's chat template refuses it: {error}"
        ) from None


def _packed(samples: Iterator[list[int]], block: int, needed: int, end: int) -> list[Row]:
    rows: list[Row] = []
    ids: list[int] = []
    shares: list[float] = []  # for each of `ids`, the part of its sample that it is
    seen: list[list[int]] = []
    source = iter(samples)
    while len(rows) < needed:
        sample = next(source, None)
        if sample is None:
            if rows:
                break  # one pass is done; its last, unfilled block is left out
            source = iter(seen)  # all the data does not fill one block: go round until it does
            continue
        if not rows:
            seen.append(sample)
        whole = sample if sample[-1:] == [end] else [*sample, end]
        ids += whole
        shares += [1 / len(whole)] * len(whole)
        while len(ids) >= block and len(rows) < needed:
            rows.append(Row(ids=ids[:block], samples=math.fsum(shares[:block])))
            ids, shares = ids[block:], shares[block:]
    return rows


def _take(source: Iterator[Any], count: int) -> list[Any]:
    return list(islice(source, count))
