"""Pooled noise of a run's configurations: numbers checked by hand, and simulations with known noise."""

import numpy as np
import pytest

from reports.statistics import student
from reports.statistics.pooling import Spread, slower_workers, spreads


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
    assert by_label["c0"] == by_label["c1"]
    assert (by_label["c0"].sd, by_label["c0"].df) == (
        pytest.approx(0.01 / 2**0.5),
        2.0,
    )  # differences: sd 0.01, three of them


def test_many_configurations_share_their_degrees_of_freedom_and_missing_cells_cost_only_their_own():
    whole = simulated_cells(np.random.default_rng(2), 12, 4)
    by_label = spreads(whole, by_worker=True)
    assert len(set(by_label.values())) == 1
    assert (by_label["c0"].sd, by_label["c0"].df) == (pytest.approx(0.005, rel=0.3), 33.0)
    del whole["c3"]["w1"], whole["c7"]["w0"]
    assert {spread.df for spread in spreads(whole, by_worker=True).values()} == {31.0}
    assert spreads(whole, by_worker=True)["c3"].sd == pytest.approx(0.005, rel=0.3)


def test_repeats_on_one_worker_are_pooled_without_it():
    by_label = spreads(cells([[0.0, 0.02], [1.0, 1.02], [5.0, None]]), by_worker=False)
    assert by_label == dict.fromkeys(("c0", "c1", "c2"), Spread(sd=pytest.approx(0.02 / 2**0.5), df=2.0))


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
