"""Samples into rows, for benchmarks and trainings. Only the standard library.

`bench.data.collate` makes tensors of rows.

A training's row is a micro-batch of whole examples, up to `row_tokens` tokens, that do not attend to each other. Where
they can be packed, they are end to end, and rows are filled by best fit: each example, in the epoch's order, goes into
the fullest open row with enough space, or else into a new one. `OPEN_ROWS` are open at a time; the fullest is closed
when another is needed. Otherwise each example is padded to the longest of its micro-batch, and those of about equal
length among `WINDOW_EXAMPLES` share one. An epoch's last rows are closed unfilled, so that every example trains once
per epoch.

A step of a training is one global batch of `micro_batches` rows, a function of only the examples, the seed and the
epoch. With n workers, worker r takes the rows r, r + n, r + 2 n, ... So 1, 2 and 4 workers see the same global batches,
and a run that resumes from a checkpoint needs only the number of its step. The order is that of sha256(seed, epoch,
digest of the example), so a line added to the data moves no other.
"""

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from bench.architectures import Separation

OPEN_ROWS = 64
PACKED = Separation()
WINDOW_EXAMPLES = 4096
LAUNCH_TOKENS = 1024.0  # with this many positions, half of a step's time does not depend on them


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a batch before padding.

    `lengths` are those of its whole samples, in order; empty for a padded row of a benchmark, which has one. `targets`
    has a byte for each id, 1 for a target of a training; None: every id.
    """

    ids: list[int]
    lengths: tuple[int, ...] = ()
    targets: bytes | None = None

    @property
    def samples(self) -> int:
        return len(self.lengths) or 1


def pack_whole_samples(
    samples: Iterable[list[int]], longest: int, positions: int, needed: int, separation: Separation = PACKED
) -> list[Row]:
    """Pack samples, each cut at `longest` as in the layout pad, into up to `needed` rows, as a training does.

    The last row of the data is dropped unless it is the only one.
    """
    cut: list[list[int]] = []
    missing = (needed + 2) * positions
    for sample in samples:
        cut += [sample[:longest]] if sample else []
        missing -= len(sample[:longest])
        if missing < 0:
            break
    first, *rest = fill_rows([*map(len, cut)], range(len(cut)), positions, separation)
    rows = [[cut[index] for index in row] for row in (first, *rest[:-1])][:needed]
    return [Row(ids=[*chain.from_iterable(row)], lengths=tuple(map(len, row))) for row in rows]


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Plan of a training's steps. `lengths` (in tokens) and `digests` list the examples in the same order."""

    lengths: Sequence[int]
    digests: Sequence[bytes]
    seed: int
    row_tokens: int
    micro_batches: int
    separation: Separation

    def rows(self, epoch: int) -> list[tuple[int, ...]]:
        """Pack the epoch's rows, each a tuple of indices into `lengths`."""
        order = self.order(epoch)
        return fill_rows([self.lengths[index] for index in order], order, self.row_tokens, self.separation)

    def order(self, epoch: int) -> list[int]:
        """Order the indices of all examples, as rows are filled."""
        prefix = hashlib.sha256(f"{self.seed}/{epoch}/".encode())

        def key(index: int) -> bytes:
            hasher = prefix.copy()
            hasher.update(self.digests[index])
            return hasher.digest()

        return sorted(range(len(self.digests)), key=key)  # equal examples stay in their order

    def survey(self, epochs: float, maximum: int | None = None) -> tuple[int, int]:
        """Return the number of steps, up to `maximum`, and the most examples of a row in the epochs that they need.

        Part of an epoch counts by its rows, rounded up.
        """
        count = most = 0
        for rows in self._epoch_rows(epochs):
            count, most = count + len(rows), max((most, *map(len, rows)))
            if maximum is not None and count >= maximum * self.micro_batches:
                return maximum, most
        return math.ceil(count / self.micro_batches), most

    def batches(self, epochs: float) -> Iterator[list[tuple[int, ...]]]:
        """Yield the rows of each step's global batch. The last one may have fewer than `micro_batches`."""
        pending: list[tuple[int, ...]] = []
        for rows in self._epoch_rows(epochs):
            pending += rows
            while len(pending) >= self.micro_batches:
                yield pending[: self.micro_batches]
                del pending[: self.micro_batches]
        if pending:
            yield pending

    def _epoch_rows(self, epochs: float) -> Iterator[list[tuple[int, ...]]]:
        whole, rest = divmod(epochs, 1.0)
        for epoch in range(int(whole)):
            yield self.rows(epoch)
        if rest:
            rows = self.rows(int(whole))
            yield rows[: math.ceil(len(rows) * rest)]


def fill_rows(
    lengths: Sequence[int], indices: Sequence[int], row_tokens: int, separation: Separation
) -> list[tuple[int, ...]]:
    """Divide `indices` into rows, in the order of the first example of each. `lengths` belong to `indices`."""
    for length in lengths:
        if not 0 < length <= row_tokens:
            raise ValueError(f"an example of {length} tokens does not fit a row of {row_tokens}")
    groups: dict[Hashable, list[int]] = {}  # numbers in `indices`
    for number, length in enumerate(lengths):
        groups.setdefault(separation.group(length), []).append(number)
    fill = _pack if separation.is_packed else _group_by_length
    rows = [row for numbers in groups.values() for row in fill(lengths, numbers, row_tokens)]
    return [tuple(indices[number] for number in row) for row in sorted(rows)]


def count_positions(rows: Iterable[Sequence[int]], row_tokens: int, separation: Separation) -> int:
    """Count the positions of rows, padding included; they are given as the lengths of their examples."""
    return sum(row_tokens if separation.is_packed else len(lengths) * max(lengths) for lengths in rows)


def slowdown(lengths: Sequence[int], rows: Sequence[Sequence[int]], row_tokens: int, separation: Separation) -> float:
    """Predict the time of an epoch's rows over that of packed ones: by positions, and LAUNCH_TOKENS for each row."""
    packed = len(fill_rows(lengths, range(len(lengths)), row_tokens, PACKED)) * (row_tokens + LAUNCH_TOKENS)
    return (count_positions(rows, row_tokens, separation) + len(rows) * LAUNCH_TOKENS) / packed


def _group_by_length(lengths: Sequence[int], numbers: Sequence[int], row_tokens: int) -> Iterator[list[int]]:
    """Group examples of about equal length: as many as fit if each is padded to the longest."""
    for start in range(0, len(numbers), WINDOW_EXAMPLES):
        window = sorted(numbers[start : start + WINDOW_EXAMPLES], key=lambda number: lengths[number], reverse=True)
        while window:
            count = row_tokens // lengths[window[0]]
            yield sorted(window[:count])
            del window[:count]


def _pack(lengths: Sequence[int], numbers: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Pack examples by best fit."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, row) of the open rows, the fullest first
    for number in numbers:
        length = lengths[number]
        fit = bisect_left(free, (length, 0))
        if fit < len(free):
            room, row = free.pop(fit)
        else:
            if len(free) == OPEN_ROWS:
                free.pop(0)
            room, row = row_tokens, len(rows)
            rows.append([])
        rows[row].append(number)
        if room > length:
            insort(free, (room - length, row))
    return rows


def is_held_out(digest: bytes, share: float) -> bool:
    """Decide by its digest whether a conversation is held out, so that added lines move no others."""
    return share > 0 and int.from_bytes(hashlib.sha256(b"validation/" + digest).digest()[:8], "big") < share * 2**64
