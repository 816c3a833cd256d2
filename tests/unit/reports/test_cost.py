"""Cost: golden dollars, and no dollar without a price and its source."""

from __future__ import annotations

import pytest

from reports.cost import per_1000_samples, price
from reports.stats import Estimate

RATE = Estimate(value=1.46, low=1.40, high=1.50, n=60)


def test_the_published_optimum_costs_eleven_cents_at_sixty_cents_an_hour():
    cost = per_1000_samples(RATE, price(0.60, "reference"))
    assert cost.usd_per_1000_samples == pytest.approx(0.114, abs=0.0005)


def test_the_interval_turns_over_because_faster_is_cheaper():
    cost = per_1000_samples(RATE, price(2.0, "list"))
    assert cost.low == pytest.approx(2.0 / 3600 * 1000 / 1.50)
    assert cost.high == pytest.approx(2.0 / 3600 * 1000 / 1.40)
    assert cost.low < cost.usd_per_1000_samples < cost.high


def test_without_a_price_there_is_no_cost():
    assert price(None, "somewhere") is None
    assert per_1000_samples(RATE, None) is None


def test_without_an_interval_the_cost_has_none():
    cost = per_1000_samples(Estimate(value=1.0, low=None, high=None, n=1), price(3.6, "list"))
    assert (cost.usd_per_1000_samples, cost.low, cost.high) == (pytest.approx(1.0), None, None)


def test_the_source_travels_with_the_dollars():
    assert per_1000_samples(RATE, price(2.0, "list price B95909")).price.source == "list price B95909"


@pytest.mark.parametrize("amount", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_price_is_refused(amount):
    with pytest.raises(ValueError, match="price_usd_per_gpu_hour: expected an amount above 0"):
        price(amount, "list")


@pytest.mark.parametrize("source", [None, "", "  "])
def test_a_price_without_a_source_is_refused(source):
    with pytest.raises(ValueError, match="a price needs its source"):
        price(2.0, source)
