"""The order depends only on the data, the seed and the epoch, not on the workers."""

import hashlib
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.data import packing
from bench.data.packing import SamplingPlan

lengths_of = st.lists(st.integers(1, 100), min_size=1, max_size=120)


def digests(count: int) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in range(count)]


def plan(lengths: list[int], **changes: int) -> SamplingPlan:
    fields = {"seed": 1, "row_tokens": 128, "micro_batches": 8} | changes
    return SamplingPlan(lengths=lengths, digests=digests(len(lengths)), **fields)


@given(lengths_of, st.integers(0, 5))
def test_every_example_trains_once_per_epoch_and_no_row_overflows(lengths: list[int], epoch: int) -> None:
    rows = plan(lengths).rows(epoch)
    assert Counter(index for row in rows for index in row) == Counter(range(len(lengths)))
    assert all(0 < sum(lengths[index] for index in row) <= 128 for row in rows)


@given(lengths_of, st.floats(0.01, 3.0))
def test_there_are_as_many_batches_as_steps(lengths: list[int], epochs: float) -> None:
    batches = list(plan(lengths).batches(epochs))
    assert len(batches) == plan(lengths).steps(epochs)
    assert all(len(batch) == 8 for batch in batches[:-1])


def test_orders_differ_by_epoch_and_seed_are_reproducible_and_an_added_line_moves_no_other() -> None:
    lengths = [10] * 50
    orders = [plan(lengths, seed=seed).order(epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert plan(lengths).order(1) == plan(lengths).order(1)
    before, after = plan([10] * 50).order(0), plan([10] * 51).order(0)
    assert [index for index in after if index != 50] == before


def test_resuming_needs_only_the_number_of_the_step() -> None:
    lengths = [length % 90 + 5 for length in range(300)]
    whole = list(plan(lengths).batches(3))
    assert list(islice(plan(lengths).batches(3), 17, None)) == whole[17:]


def test_rows_are_nearly_full_and_an_example_longer_than_a_row_is_an_error() -> None:
    lengths = [length * 37 % 400 + 20 for length in range(5000)]
    rows = plan(lengths, row_tokens=4096).rows(0)
    assert sum(lengths) / (len(rows) * 4096) > 0.97
    with pytest.raises(ValueError, match=r"129 .* 128"):
        plan([129]).rows(0)


def test_the_held_out_share_and_the_weights_are_met() -> None:
    many = digests(20_000)
    assert sum(packing.is_held_out(digest, 0.1) for digest in many) == pytest.approx(2000, rel=0.1)
    assert not any(packing.is_held_out(digest, 0.0) for digest in many)
    assert sum(packing.repetitions(digest, 2.3) for digest in many) == pytest.approx(46_000, rel=0.02)
    assert {packing.repetitions(digest, 2.3) for digest in many} == {2, 3}
