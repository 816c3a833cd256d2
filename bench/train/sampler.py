"""Examples to packed rows and steps: a function of only the examples, the seed and the epoch.

The plan does not depend on the number of workers. A step is one global batch of `micro_batches` rows; with n workers,
worker r takes the rows r, r + n, r + 2 n, ... So 1, 2 and 4 workers see the same global batches, and a run that resumes
from a checkpoint needs only the number of its step.

A row holds whole examples end to end, up to `row_tokens` tokens, that do not attend to each other. Rows are filled by
best fit: each example, in the epoch's order, goes into the fullest open row with enough space, or else into a new one.
`OPEN_ROWS` are open at a time; the fullest is closed when another is needed. An epoch's last rows are closed unfilled,
so that every example trains once per epoch.

The order is that of sha256(seed, epoch, digest of the example), so a line added to the data moves no other.
"""

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OPEN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """Plan of a training's steps. `lengths` (in tokens) and `digests` list the examples in the same order."""

    lengths: Sequence[int]
    digests: Sequence[bytes]
    seed: int
    row_tokens: int
    micro_batches: int

    def rows(self, epoch: int) -> list[tuple[int, ...]]:
        """Pack the epoch's rows, each a tuple of indices into `lengths`."""
        order = self.order(epoch)
        return pack_rows([self.lengths[index] for index in order], order, self.row_tokens)

    def order(self, epoch: int) -> list[int]:
        """Order the indices of all examples, as rows are filled."""
        prefix = hashlib.sha256(f"{self.seed}/{epoch}/".encode())

        def key(index: int) -> bytes:
            hasher = prefix.copy()
            hasher.update(self.digests[index])
            return hasher.digest()

        return sorted(range(len(self.digests)), key=lambda index: (key(index), index))

    def steps(self, epochs: float) -> int:
        """Count the optimizer steps in this many epochs; part of an epoch counts by its rows, rounded up."""
        return math.ceil(sum(map(len, self._epoch_rows(epochs))) / self.micro_batches)

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


def pack_rows(lengths: Sequence[int], indices: Sequence[int], row_tokens: int) -> list[tuple[int, ...]]:
    """Pack rows by best fit, in the order in which they are opened. `lengths` belong to `indices`, in their order."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (free tokens, row) of the open rows, the fullest first
    for length, index in zip(lengths, indices, strict=True):
        if not 0 < length <= row_tokens:
            raise ValueError(f"an example of {length} tokens does not fit a row of {row_tokens}")
        fit = bisect_left(free, (length, 0))
        if fit < len(free):
            room, row = free.pop(fit)
        else:
            if len(free) == OPEN_ROWS:
                free.pop(0)
            room, row = row_tokens, len(rows)
            rows.append([])
        rows[row].append(index)
        if room > length:
            insort(free, (room - length, row))
    return [tuple(row) for row in rows]


def is_held_out(digest: bytes, share: float) -> bool:
    """Decide by its digest whether a conversation is held out, so that added lines move no others."""
    return share > 0 and int.from_bytes(hashlib.sha256(b"validation/" + digest).digest()[:8], "big") < share * 2**64


def repetitions(digest: bytes, weight: float) -> int:
    """Return the repetitions per epoch of a conversation in a file of this weight.

    The weight is rounded up or down by the conversation's digest, so that a file's conversations reach it on average.
    """
    whole, rest = divmod(weight, 1.0)
    if not rest:
        return int(whole)
    part = int.from_bytes(hashlib.sha256(b"weight/" + digest).digest()[:8], "big") / 2**64
    return int(whole) + (part < rest)
