"""Rates without the workers' own speeds: exact without noise."""

import pytest

from reports.statistics.per_config import Sample, adjusted_means

SPEEDS = {"fast": 0.1, "plain": 0.0, "slow": -0.1}


def samples(rates, places):
    """Return samples without noise: a configuration's rate plus its worker's speed, on these workers."""
    return {
        label: [Sample(worker=worker, log=rate + SPEEDS[worker], error=0.0) for worker in places[label]]
        for label, rate in rates.items()
    }


def test_a_configuration_on_fast_workers_is_not_ranked_above_a_faster_one():
    places = {"a": ("fast", "plain"), "b": ("plain", "slow"), "c": ("slow", "fast")}
    means = adjusted_means(samples({"a": 1.00, "b": 1.02, "c": 0.9}, places))
    assert [mean.value for mean in means.values()] == pytest.approx([1.00, 1.02, 0.9])
    assert {(mean.over, mean.units, mean.df) for mean in means.values()} == {("workers", 3, 2.0)}


@pytest.mark.parametrize(
    "places",
    [
        {"a": ("fast", "fast"), "b": ("slow", "slow")},  # not connected
        {"a": ("fast", "plain"), "b": ("plain", "slow")},  # no repeat is left to measure the noise
        {"a": ("fast", "fast"), "b": ("fast", "fast")},
        {"a": ("fast", "plain", "slow")},
    ],
)
def test_workers_that_cannot_be_told_from_configurations_give_nothing(places):
    assert adjusted_means(samples(dict.fromkeys(places, 1.0), places)) == {}
