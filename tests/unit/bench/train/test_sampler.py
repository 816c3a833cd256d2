"""The order is the data's, the seed's and the epoch's, and no worker changes it."""

import hashlib
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.train import sampler
from bench.train.sampler import SamplingPlan

lengths_of = st.lists(st.integers(1, 100), min_size=1, max_size=120)


def digests(count: int) -> list[bytes]:
    return [hashlib.sha256(str(number).encode()).digest() for number in range(count)]


def plan(lengths: list[int], **changes: int) -> SamplingPlan:
    fields = {"seed": 1, "row_tokens": 128, "micro_batches": 8} | changes
    return SamplingPlan(lengths=lengths, digests=digests(len(lengths)), **fields)


@given(lengths_of, st.integers(0, 5))
def test_every_example_trains_once_an_epoch_and_no_row_overflows(lengths: list[int], epoch: int) -> None:
    rows = plan(lengths).rows(epoch)
    assert Counter(place for row in rows for place in row) == Counter(range(len(lengths)))
    assert all(0 < sum(lengths[place] for place in row) <= 128 for row in rows)


@given(lengths_of, st.floats(0.01, 3.0))
def test_there_are_as_many_batches_as_steps(lengths: list[int], epochs: float) -> None:
    batches = list(plan(lengths).batches(epochs))
    assert len(batches) == plan(lengths).steps(epochs)
    assert all(len(batch) == 8 for batch in batches[:-1])


def test_epochs_and_seeds_differ_and_repeat_and_a_line_more_moves_no_other() -> None:
    lengths = [10] * 50
    orders = [plan(lengths, seed=seed).order(epoch) for seed in (1, 2) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert plan(lengths).order(1) == plan(lengths).order(1)
    before, after = plan([10] * 50).order(0), plan([10] * 51).order(0)
    assert [place for place in after if place != 50] == before


def test_going_on_from_a_step_needs_its_number_alone() -> None:
    lengths = [length % 90 + 5 for length in range(300)]
    whole = list(plan(lengths).batches(3))
    assert list(islice(plan(lengths).batches(3), 17, None)) == whole[17:]


def test_rows_come_out_nearly_full_and_an_example_that_fits_none_is_an_error() -> None:
    lengths = [length * 37 % 400 + 20 for length in range(5000)]
    rows = plan(lengths, row_tokens=4096).rows(0)
    assert sum(lengths) / (len(rows) * 4096) > 0.97
    with pytest.raises(ValueError, match="129 tokens does not fit a row of 128"):
        plan([129]).rows(0)


def test_the_share_held_out_and_the_weights_come_out_as_asked() -> None:
    many = digests(20_000)
    assert sum(sampler.is_validation(digest, 0.1) for digest in many) == pytest.approx(2000, rel=0.1)
    assert not any(sampler.is_validation(digest, 0.0) for digest in many)
    assert sum(sampler.times_of(digest, 2.3) for digest in many) == pytest.approx(46_000, rel=0.02)
    assert {sampler.times_of(digest, 2.3) for digest in many} == {2, 3}
