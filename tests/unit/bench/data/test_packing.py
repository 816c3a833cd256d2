"""Samples into rows: nothing lost, no needless cuts, a reproducible order. Pure, without torch.

The order of a training depends only on the data, the seed and the epoch, not on the workers.
"""

import hashlib
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.architectures.architecture import Separation
from bench.data import packing
from bench.data.packing import SamplingPlan, pack_whole_samples
from tests.support.thorough import examples

few = settings(deadline=None, max_examples=examples(120))
LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)


def samples_of(lengths):
    """Make samples of these lengths; sample n consists of the token n."""
    return [[number] * length for number, length in enumerate(lengths)]


@few
@given(lengths=LENGTHS, longest=st.integers(8, 40), rows=st.integers(1, 4))
def test_a_row_holds_whole_samples_cut_as_padding_cuts_them_and_only_the_last_row_is_dropped(lengths, longest, rows):
    positions = rows * longest
    packed = pack_whole_samples(samples_of(lengths), longest, positions, 1000)
    used = Counter(token for row in packed for token in set(row.ids))
    assert set(used.values()) <= {1}
    assert sum(min(length, longest) for number, length in enumerate(lengths) if number not in used) <= positions
    for row in packed:
        assert sum(row.lengths) == len(row.ids) <= positions
        assert row.samples == len(row.lengths) > 0
        first = 0
        for length in row.lengths:
            (number,) = set(row.ids[first : first + length])
            assert length == min(lengths[number], longest)
            first += length


def test_data_smaller_than_a_row_makes_one_and_no_more_rows_are_made_than_needed():
    assert [row.lengths for row in pack_whole_samples(samples_of([3, 4]), 40, 80, 5)] == [(3, 4)]
    assert len(pack_whole_samples(samples_of([40] * 50), 40, 80, 3)) == 3


# Trainings -----------------------------------------------------------------------------------------------------------

EXAMPLE_LENGTHS = st.lists(st.integers(1, 100), min_size=1, max_size=120)


def digests(count: int) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in range(count)]


def plan(lengths: list[int], **changes: Any) -> SamplingPlan:
    fields = {"seed": 1, "row_tokens": 128, "micro_batches": 8, "separation": Separation()} | changes
    return SamplingPlan(lengths=lengths, digests=digests(len(lengths)), **fields)


@few
@given(EXAMPLE_LENGTHS, st.integers(0, 5), st.booleans(), st.none() | st.integers(1, 100))
def test_every_example_trains_once_per_epoch_and_no_row_overflows(
    lengths: list[int], epoch: int, is_packed: bool, short: int | None
) -> None:
    separation = Separation(is_packed=is_packed, short=short)
    rows = plan(lengths, separation=separation).rows(epoch)
    assert Counter(index for row in rows for index in row) == Counter(range(len(lengths)))
    assert rows == plan(lengths, separation=separation).rows(epoch)
    for row in rows:
        inside = [lengths[index] for index in row]
        assert 0 < (sum(inside) if is_packed else len(inside) * max(inside)) <= 128
        assert short is None or max(inside) <= short or min(inside) > short


def test_rows_that_are_not_packed_hold_examples_of_about_equal_length() -> None:
    lengths = [length * 37 % 400 + 20 for length in range(5000)]
    separation = Separation(is_packed=False)
    rows = plan(lengths, row_tokens=4096, separation=separation).rows(0)
    positions = packing.count_positions([[lengths[index] for index in row] for row in rows], 4096, separation)
    assert sum(lengths) / positions > 0.99
    ranks = {index: number for number, index in enumerate(plan(lengths).order(0))}
    firsts = [min(map(ranks.__getitem__, row)) for row in rows]
    assert firsts == sorted(firsts)


@few
@given(EXAMPLE_LENGTHS, st.floats(0.01, 3.0), st.integers(1, 20))
def test_there_are_as_many_batches_as_steps(lengths: list[int], epochs: float, maximum: int) -> None:
    batches = list(plan(lengths).batches(epochs))
    assert len(batches) == plan(lengths).survey(epochs)[0]
    assert plan(lengths).survey(epochs, maximum)[0] == min(len(batches), maximum)
    assert plan(lengths).survey(1e9, 3)[0] == 3, "packs no more epochs than the steps need"
    assert all(len(batch) == 8 for batch in batches[:-1])
    most = max(len(row) for batch in batches for row in batch)
    assert plan(lengths).survey(math.ceil(epochs)) >= (len(batches), most)
    assert plan(lengths).survey(2.0)[1] == max(len(row) for epoch in (0, 1) for row in plan(lengths).rows(epoch))


def test_orders_differ_by_epoch_and_seed_are_reproducible_and_an_added_line_moves_no_other() -> None:
    lengths = [10] * 50
    orders = [plan(lengths, seed=seed).order(epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert plan(lengths).order(1) == plan(lengths).order(1)
    before, after = plan([10] * 50).order(0), plan([10] * 51).order(0)
    assert [index for index in after if index != 50] == before


def test_rows_are_nearly_full_and_an_example_longer_than_a_row_is_an_error() -> None:
    lengths = [length * 37 % 400 + 20 for length in range(5000)]
    rows = plan(lengths, row_tokens=4096).rows(0)
    assert sum(lengths) / (len(rows) * 4096) > 0.97
    with pytest.raises(ValueError, match=r"129 .* 128"):
        plan([129]).rows(0)
