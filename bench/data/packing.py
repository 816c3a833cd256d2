"""Samples into rows: cut into full blocks, whole in one long row, or ordered by length. Only the standard library.

A sample is a list of token ids; `bench.data.collate` makes tensors of rows.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

LOOKAHEAD_SAMPLES = 256  # candidates to fill a row with: rows of 4096 tokens become over 99 % full
WINDOW_BATCHES = 50  # micro-batches sorted by length together, as in transformers' group_by_length


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch before padding. `samples` is 1 when padded, the sum of its fractions of samples when packed.

    Fractions, because a long sample fills several blocks: counted only where it ends, some steps would count no sample.
    `lengths` are those of the whole samples in a row of the layout varlen, in order; else empty.
    """

    ids: list[int]
    samples: float
    lengths: tuple[int, ...] = ()


def pack_blocks(samples: Iterable[list[int]], block: int, needed: int, end_token: int) -> list[Row]:
    """Pack samples end to end, with `end_token` between them, and cut them into full blocks of `block` tokens."""
    rows: list[Row] = []
    ids: list[int] = []
    shares: list[float] = []  # for each of `ids`, its fraction of its sample
    seen: list[list[int]] = []
    source = iter(samples)
    while len(rows) < needed:
        sample = next(source, None)
        if sample is None:
            if rows:
                break  # one pass is complete; its last, unfilled block is dropped
            source = iter(seen)  # the data does not fill one block: repeat it until it does
            continue
        if not rows:
            seen.append(sample)
        ended = sample if sample[-1:] == [end_token] else [*sample, end_token]
        ids += ended
        shares += [1 / len(ended)] * len(ended)
        while len(ids) >= block and len(rows) < needed:
            rows.append(Row(ids=ids[:block], samples=math.fsum(shares[:block])))
            ids, shares = ids[block:], shares[block:]
    return rows


def pack_whole_samples(samples: Iterable[list[int]], longest: int, positions: int, needed: int) -> list[Row]:
    """Pack whole samples into rows of up to `positions` tokens, each cut at `longest` as in the layout pad.

    A sample that does not fit waits for the next row, which begins with the sample that waited longest. The last row of
    the data is dropped unless it is the only one.
    """
    if longest > positions:
        raise ValueError(f"a sample of {longest} tokens does not fit a row of {positions}")
    rows: list[Row] = []
    waiting: list[list[int]] = []
    source = (sample[:longest] for sample in samples if sample)
    while len(rows) < needed:
        waiting += islice(source, LOOKAHEAD_SAMPLES - len(waiting))
        if not waiting:
            break
        exhausted = len(waiting) < LOOKAHEAD_SAMPLES
        ids: list[int] = []
        lengths: list[int] = []
        remaining: list[list[int]] = []
        for sample in waiting:
            if len(ids) + len(sample) <= positions:
                ids += sample
                lengths.append(len(sample))
            else:
                remaining.append(sample)
        if exhausted and not remaining and rows:
            break
        rows.append(Row(ids=ids, samples=len(lengths), lengths=tuple(lengths)))
        waiting = remaining
    return rows


def bucket_by_length(rows: list[Row], batch: int, seed: int) -> list[Row]:
    """Order rows so that every `batch` of them have about equal length; the seed orders the batches."""
    rng = random.Random(seed)  # noqa: S311 - a reproducible order, not a secret
    ordered: list[Row] = []
    for start in range(0, len(rows), batch * WINDOW_BATCHES):
        window = sorted(rows[start : start + batch * WINDOW_BATCHES], key=lambda row: len(row.ids), reverse=True)
        batches = [window[first : first + batch] for first in range(0, len(window), batch)]
        # The longest first: if memory runs out, it does so in the first step and not in the hundredth.
        longest, rest = batches[:1], batches[1:]
        rng.shuffle(rest)
        full = [group for group in rest if len(group) == batch]
        partial = [group for group in rest if len(group) < batch]
        for group in (*longest, *full, *partial):
            ordered += group
    return ordered
