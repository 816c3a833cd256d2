"""Samples into rows: cut into full blocks, whole in one long row, or ordered by length. Standard library alone.

A sample is a list of token ids; `bench.data.collate` makes tensors of rows.
"""

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

LOOK_AHEAD = 256  # samples to choose one from that still fits: rows of 4096 are over 99 % full
WINDOW_BATCHES = 50  # micro-batches that are sorted by length together, as in transformers' group_by_length


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch before padding. `samples` is 1 when padded, the sum of its parts of samples when packed.

    Parts, because a long sample fills several blocks: counted where it ends, some steps would count none. `lengths` are
    those of the whole samples in a row of the layout varlen, in order; else empty.
    """

    ids: list[int]
    samples: float
    lengths: tuple[int, ...] = ()


def blocks(samples: Iterable[list[int]], block: int, needed: int, end: int) -> list[Row]:
    """Full blocks of `block` tokens, samples end to end with the token `end` between, cut where a block ends."""
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
            source = iter(seen)  # all the data does not fill one block: repeat it until it does
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


def apart(samples: Iterable[list[int]], longest: int, positions: int, needed: int) -> list[Row]:
    """Rows of up to `positions` tokens that hold whole samples, each cut at `longest` as in the layout pad.

    A sample that does not fit waits for the next row; the next row begins with the one that waited longest. The last
    row of the data is dropped unless it is the only one.
    """
    if longest > positions:
        raise ValueError(f"a sample of {longest} tokens does not fit a row of {positions}")
    rows: list[Row] = []
    waiting: list[list[int]] = []
    source = (sample[:longest] for sample in samples if sample)
    while len(rows) < needed:
        waiting += islice(source, LOOK_AHEAD - len(waiting))
        if not waiting:
            break
        exhausted = len(waiting) < LOOK_AHEAD
        ids: list[int] = []
        lengths: list[int] = []
        left: list[list[int]] = []
        for sample in waiting:
            if len(ids) + len(sample) <= positions:
                ids += sample
                lengths.append(len(sample))
            else:
                left.append(sample)
        if exhausted and not left and rows:
            break
        rows.append(Row(ids=ids, samples=len(lengths), lengths=tuple(lengths)))
        waiting = left
    return rows


def bucketed(rows: list[Row], batch: int, seed: int) -> list[Row]:
    """Rows in an order in which every `batch` of them have about equal length; the seed orders the batches."""
    chooser = random.Random(seed)  # noqa: S311 - an order that can be repeated, not a secret
    ordered: list[Row] = []
    for start in range(0, len(rows), batch * WINDOW_BATCHES):
        window = sorted(rows[start : start + batch * WINDOW_BATCHES], key=lambda row: len(row.ids), reverse=True)
        batches = [window[first : first + batch] for first in range(0, len(window), batch)]
        # The longest first: if memory runs out, it does so in the first step and not in the hundredth.
        first, rest = batches[:1], batches[1:]
        chooser.shuffle(rest)
        short = [each for each in rest if len(each) < batch]
        for each in (*first, *(full for full in rest if len(full) == batch), *short):
            ordered += each
    return ordered
