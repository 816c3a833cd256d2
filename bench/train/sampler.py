"""Which examples train in which step: a function of the examples, the seed and the epoch alone.

Nothing here knows how many workers there are or which of them is asked. A step is one global batch of `micro_batches`
rows; with n workers, worker r takes the rows r, r + n, r + 2 n, ... So 1, 2 and 4 workers see the same global batches,
and a run that goes on from a checkpoint needs the number of its step and nothing else.

A row holds whole examples end to end, up to `row_tokens` tokens, that do not attend to each other. Rows are filled by
best fit: each example, in the epoch's order, goes into the fullest open row that has room for it, and into a new one
where none has. `OPEN_ROWS` are open at a time; the fullest is closed when another is needed. An epoch's last rows are
closed as they are, so that every example trains once an epoch.

The order is that of sha256(seed, epoch, digest of the example), so a line that is added to the data moves no other.
"""

import hashlib
import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OPEN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class SamplingPlan:
    """How examples become steps. `lengths` in tokens and `digests` of the examples, in one order for both."""

    lengths: Sequence[int]
    digests: Sequence[bytes]
    seed: int
    row_tokens: int
    micro_batches: int

    def rows(self, epoch: int) -> list[tuple[int, ...]]:
        """The epoch's rows, each the places of its examples in `lengths`."""
        order = self.order(epoch)
        return packed([self.lengths[place] for place in order], order, self.row_tokens)

    def order(self, epoch: int) -> list[int]:
        """Every example once, in the order in which rows are filled."""
        prefix = hashlib.sha256(f"{self.seed}/{epoch}/".encode())

        def key(place: int) -> bytes:
            whole = prefix.copy()
            whole.update(self.digests[place])
            return whole.digest()

        return sorted(range(len(self.digests)), key=lambda place: (key(place), place))

    def steps(self, epochs: float) -> int:
        """Optimizer steps in this many epochs; part of an epoch counts by its rows, rounded up."""
        return math.ceil(sum(map(len, self._parts(epochs))) / self.micro_batches)

    def batches(self, epochs: float) -> Iterator[list[tuple[int, ...]]]:
        """The global batch of each step: its rows. The last one may have fewer than `micro_batches`."""
        waiting: list[tuple[int, ...]] = []
        for part in self._parts(epochs):
            waiting += part
            while len(waiting) >= self.micro_batches:
                yield waiting[: self.micro_batches]
                del waiting[: self.micro_batches]
        if waiting:
            yield waiting

    def _parts(self, epochs: float) -> Iterator[list[tuple[int, ...]]]:
        whole, rest = divmod(epochs, 1.0)
        for epoch in range(int(whole)):
            yield self.rows(epoch)
        if rest:
            rows = self.rows(int(whole))
            yield rows[: math.ceil(len(rows) * rest)]


def packed(lengths: Sequence[int], places: Sequence[int], row_tokens: int) -> list[tuple[int, ...]]:
    """Rows by best fit, in the order in which they were opened. `lengths` are those of `places`, in their order."""
    rows: list[list[int]] = []
    free: list[tuple[int, int]] = []  # (tokens free, row) of the open rows, the fullest first
    for length, place in zip(lengths, places, strict=True):
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
        rows[row].append(place)
        if room > length:
            insort(free, (room - length, row))
    return [tuple(row) for row in rows]


def is_validation(digest: bytes, share: float) -> bool:
    """Whether a conversation is held out: decided by its own digest, so that adding lines moves none."""
    return share > 0 and int.from_bytes(hashlib.sha256(b"validation/" + digest).digest()[:8], "big") < share * 2**64


def times_of(digest: bytes, weight: float) -> int:
    """How often a conversation of a file of this weight stands in the data: its weight, rounded up or down by its own
    digest so that a file's conversations come to its weight together."""
    whole, rest = divmod(weight, 1.0)
    if not rest:
        return int(whole)
    part = int.from_bytes(hashlib.sha256(b"weight/" + digest).digest()[:8], "big") / 2**64
    return int(whole) + (part < rest)
