"""Pooled noise of a run's configurations: numbers checked by hand, and simulations with known noise."""

import numpy as np
import pytest

from reports.statistics.pooling import (
    PRIOR_VARIANCE,
    Spread,
    cautious_error,
    fit_slope,
    spreads,
)
from tests.benchmarks import _odd_runs, statistics_power


def cells(table):
    """Return cells of configurations c0, c1, ... on workers w0, w1, ...; None in the table is a missing cell."""
    return {
        f"c{row}": {f"w{index}": value for index, value in enumerate(values) if value is not None}
        for row, values in enumerate(table)
    }


def test_the_pooled_noise_of_two_configurations_is_that_of_their_paired_difference():
    by_label = spreads(cells([[0.0, 0.0, 0.0], [0.01, 0.02, 0.03]]), by_worker=True)
    assert not by_label["c0"].has_prior  # they have no other noise
    assert (by_label["c0"].sd, by_label["c0"].df) == (
        pytest.approx(0.01 / 2**0.5),
        2.0,
    )  # differences: sd 0.01, three of them


def test_many_configurations_share_their_degrees_of_freedom_and_missing_cells_cost_only_their_own():
    random = np.random.default_rng(2)
    noise = random.normal(0.0, 0.005, (12, 4)) + random.normal(0.0, 0.03, 4) + random.normal(0.0, 0.1, (12, 1))
    whole = cells(noise.tolist())
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
    error, df = cautious_error([(spread, 2)])
    assert error**2 == pytest.approx((3.0 * PRIOR_VARIANCE * 1.0 + 3.0 * 9.0) / (3.0 + 3.0) / 2)
    assert df == 6.0
    few = cautious_error([(Spread(sd=1.0, df=2.0, own_variance=1.0, own_df=1.0), 2)])
    # The prior is not known better than the pooled noise.
    assert few[1] == pytest.approx(13.0**2 / (12.0**2 / 2.0 + 1.0))
    assert cautious_error([(Spread(sd=0.0, df=2.0), 2)]) == (0.0, 3.0)


@pytest.mark.parametrize("odd", [1, 0])
def test_a_noisier_configuration_rarely_gets_a_false_word(odd):
    random, runs = np.random.default_rng(7), 150
    drawn = [_odd_runs.ratios(_odd_runs.table(random, 12, 4, noisier=odd)) for _ in range(runs)]
    assert sum(_odd_runs.holds(means[0]) for means in drawn) >= 0.9 * runs
    assert sum(map(statistics_power.is_false, drawn)) <= 0.1 * runs  # 14 to 20 % without caution


def test_without_repeats_there_is_no_spread():
    assert spreads(cells([[0.0, None], [None, 1.0]]), by_worker=True) == {}
    assert spreads(cells([[0.0], [1.0]]), by_worker=False) == {}
    assert spreads({}, by_worker=True) == {}


def slope_of(orders, noise=0.0, change=0.05, clocks=(0.0, 5e5, 9e5, 3e5)):
    """Fit runs in which the machines become slower by `change` from the first trial to the last."""
    random, processes = np.random.default_rng(6), []
    for number, order in enumerate(orders):
        for turn, label in enumerate(order):
            part = change * turn / (len(order) - 1)
            log = ord(label) + 0.1 * number + part + random.normal(0.0, noise)
            processes.append((label, f"w{number}", clocks[number] + 40.0 * turn, log))
    return fit_slope(processes)


def test_the_slope_of_a_run_is_found_whatever_the_clocks_of_its_workers_show():
    slope = slope_of(["abcd", "cdba", "bdac"])
    assert (slope.change, slope.low, slope.high) == pytest.approx((0.05, 0.05, 0.05))
    assert slope.trends[:4] == pytest.approx((-0.025, -0.025 / 3, 0.025 / 3, 0.025))
    noisy = slope_of(["abcd", "cdba", "bdac"], noise=0.01)
    assert noisy.low < 0.05 < noisy.high


@pytest.mark.parametrize("orders", [["ab", "ba"], ["abba"], ["abcd", "abcd"]])
def test_too_few_trials_or_an_order_that_no_worker_changes_show_no_slope(orders):
    assert slope_of(orders) is None


def test_a_slope_of_repeats_on_one_worker_is_found():
    assert slope_of(["abcdbcadcadb"]).change == pytest.approx(0.05)
