"""Pooled noise of a run's configurations: numbers checked by hand, and simulations with known noise."""

import numpy as np
import pytest

from bench.records import student
from reports.statistics.pooling import (
    PRIOR_VARIANCE,
    Spread,
    cautious_error,
    difference_spreads,
    slower_workers,
    spreads,
)
from tests.benchmarks import _odd_runs, statistics_power


def cells(table):
    """Return cells of configurations c0, c1, ... on workers w0, w1, ...; None in the table is a missing cell."""
    return {
        f"c{row}": {f"w{index}": value for index, value in enumerate(values) if value is not None}
        for row, values in enumerate(table)
    }


def simulated_cells(random, configurations, workers, sd=0.005, worker_sd=0.03):
    noise = random.normal(0.0, sd, (configurations, workers)) + random.normal(0.0, worker_sd, workers)
    return cells((noise + random.normal(0.0, 0.1, (configurations, 1))).tolist())


def test_the_pooled_noise_of_two_configurations_is_that_of_their_paired_difference():
    by_label = spreads(cells([[0.0, 0.0, 0.0], [0.01, 0.02, 0.03]]), by_worker=True)
    assert by_label["c0"].is_own  # they have no other noise
    assert (by_label["c0"].sd, by_label["c0"].df) == (
        pytest.approx(0.01 / 2**0.5),
        2.0,
    )  # differences: sd 0.01, three of them


def test_many_configurations_share_their_degrees_of_freedom_and_missing_cells_cost_only_their_own():
    whole = simulated_cells(np.random.default_rng(2), 12, 4)
    by_label = spreads(whole, by_worker=True)
    assert len({(spread.sd, spread.df) for spread in by_label.values()}) == 1
    assert (by_label["c0"].sd, by_label["c0"].df) == (pytest.approx(0.005, rel=0.3), 33.0)
    del whole["c3"]["w1"], whole["c7"]["w0"]
    assert {spread.df for spread in spreads(whole, by_worker=True).values()} == {31.0}
    assert spreads(whole, by_worker=True)["c3"].sd == pytest.approx(0.005, rel=0.3)


def test_repeats_on_one_worker_are_pooled_without_it():
    by_label = spreads(cells([[0.0, 0.02], [1.0, 1.02], [5.0, None]]), by_worker=False)
    assert [spread.sd for spread in by_label.values()] == pytest.approx([0.02 / 2**0.5] * 3)
    assert [(spread.df, spread.own_df) for spread in by_label.values()] == [(2.0, 1.0), (2.0, 1.0), (2.0, 0.0)]


def test_the_cautious_error_weighs_a_larger_prior_and_the_own_variance():
    spread = Spread(sd=1.0, df=33.0, own_variance=9.0, own_df=3.0)
    error, df = cautious_error([(spread, 2)], 3.0)
    assert error**2 == pytest.approx((3.0 * PRIOR_VARIANCE * 1.0 + 3.0 * 9.0) / (3.0 + 3.0) / 2)
    assert df == 6.0
    few = cautious_error([(Spread(sd=1.0, df=2.0, own_variance=1.0, own_df=1.0), 2)], 3.0)
    # The prior is not known better than the pooled noise.
    assert few[1] == pytest.approx(13.0**2 / (12.0**2 / 2.0 + 1.0))
    assert cautious_error([(Spread(sd=0.0, df=2.0), 2)], 3.0) == (0.0, 3.0)


def test_a_change_counts_the_noise_of_both_runs():
    # Equal differences: only the runs themselves show that c0 is noisy.
    before = cells([[0.0, 0.08], *[[0.0, 0.01 * (row % 2)] for row in range(5)]])
    by_label = difference_spreads(before, before)
    assert {(spread.sd, spread.own_df) for spread in by_label.values()} == {(0.0, 2.0)}
    assert by_label["c0"].own_variance > 30 * max(by_label[f"c{row}"].own_variance for row in range(1, 6)) / 4


@pytest.mark.parametrize("workers", [2, 4])
def test_a_noisier_configuration_rarely_gets_a_false_word(workers):
    runs = 300
    table = statistics_power.odd_ratios(_odd_runs.NOISIER, 12, workers, runs)
    change = statistics_power.odd_changes(_odd_runs.NOISIER, 12, workers, runs)
    assert min(table[0], change[0]) >= 0.93  # 91.5, 93.2 and 65, 77 % without caution
    assert max(table[1], change[1]) <= 0.05 + 2.5 * (0.05 * 0.95 / runs) ** 0.5  # 8.6 to 14 % without it
    assert statistics_power.odd_ratios(_odd_runs.NOISIER, 12, workers, runs, 0)[1] <= 0.08  # 20 and 16 % without it


def test_three_percent_are_found_with_four_workers():
    assert statistics_power.found_ratio(12, 4, 3, 100) >= 0.95
    assert statistics_power.found_change(12, 4, 3, 100) >= 0.95


def test_without_repeats_there_is_no_spread():
    assert spreads(cells([[0.0, None], [None, 1.0]]), by_worker=True) == {}
    assert spreads(cells([[0.0], [1.0]]), by_worker=False) == {}
    assert spreads({}, by_worker=True) == {}


def test_a_noisy_configuration_is_not_pooled():
    random = np.random.default_rng(3)
    table = simulated_cells(random, 12, 8)
    table["c5"] = {worker: value + random.normal(0.0, 0.08) for worker, value in table["c5"].items()}
    by_label = spreads(table, by_worker=True)
    assert (by_label["c5"].is_own, by_label["c5"].df) == (True, 7.0)
    assert by_label["c5"].sd > 0.03
    assert by_label["c0"].sd == pytest.approx(0.005, rel=0.3)


def test_equally_noisy_configurations_are_rarely_separated():
    random = np.random.default_rng(4)
    own = [
        any(spread.is_own for spread in spreads(simulated_cells(random, 12, 4), by_worker=True).values())
        for _ in range(500)
    ]
    assert sum(own) <= 20


def test_the_tail_of_f_is_that_of_t_squared():
    assert student.f_tail(2.776445**2, 1.0, 4.0) == pytest.approx(0.05, abs=1e-6)
    assert student.f_tail(4.737414, 2.0, 7.0) == pytest.approx(0.05, abs=1e-6)  # from a table


def test_a_slow_worker_is_distinguished_from_a_slow_configuration():
    slow = slower_workers(cells([[n, n, n + 0.17] for n in (0.0, 1.0, 2.0, 3.0)] + [[2.0, 2.5, 2.17]]))
    assert slow == {"w0": 0.0, "w1": 0.0, "w2": pytest.approx(0.17)}
    assert slower_workers(cells([[0.0, 0.17]])) == {}
