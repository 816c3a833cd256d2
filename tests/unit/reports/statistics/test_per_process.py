"""Statistics of one process: its interval holds the true median; outliers and drift are flagged if they exist."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reports.statistics import per_process as steps
from reports.statistics.per_process import describe
from tests.support.reports import noise
from tests.support.reports.noise import Noise


def process(times, name="p", **more):
    return noise.steps("a", times, process=name, **more)


def coverage(noise_model, count, runs=1000, seed=7):
    """Return the fraction of simulated processes whose interval holds the average median of such processes."""
    random, truth = np.random.default_rng(seed), noise_model.median_offset(count)
    rows = noise_model.within_process(random, (runs, count))
    held = 0
    for described in describe([process(np.exp(row)) for row in rows]):
        held += abs(math.log(described.step_time_sec) - truth) <= steps.half_width(described)
    return held / runs


@pytest.mark.parametrize("count", [20, 50, 100])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_the_interval_over_autocorrelated_steps_holds_the_true_median(count, correlation):
    assert coverage(Noise(correlation=correlation), count) >= 0.93


def test_an_interval_that_ignores_autocorrelation_fails_in_the_simulation():
    noise_model, count = Noise(correlation=0.6), 50
    random, truth = np.random.default_rng(7), noise_model.median_offset(count)
    held = 0
    for row in noise_model.within_process(random, (300, count)):
        drawn = np.median(row[random.integers(0, count, (300, count))], axis=1)
        low, high = np.quantile(drawn, (0.025, 0.975))
        held += low <= truth <= high
    assert held / 300 < 0.85


def test_golden_numbers_of_one_process():
    (described,) = describe([process([0.1, 0.2, 0.3, 0.2])])
    assert described.step_time_sec == pytest.approx(0.2)
    assert described.samples_per_sec == pytest.approx(20.0)
    assert described.tokens_per_sec == pytest.approx(500.0)
    assert described.useful_tokens_per_sec == pytest.approx(250.0)
    assert (described.n_steps, described.drift_percent, described.drifts) == (4, None, False)


def test_processes_of_different_lengths_keep_their_order_and_numbers():
    mixed = [process(np.linspace(0.1, 0.2, count), name=str(count)) for count in (3, 20, 3, 7)]
    together = describe(mixed)
    assert [described.process for described in together] == ["3", "20", "3", "7"]
    for single, combined in zip(mixed, together, strict=True):
        (separate,) = describe([single])
        assert combined.step_time_sec == separate.step_time_sec
        assert combined.effective_steps == pytest.approx(separate.effective_steps)


def test_a_single_step_has_no_interval_and_no_noise():
    (described,) = describe([process([0.2512345])])
    assert steps.half_width(described) is None
    assert (described.step_time_sec, described.noise_percent, described.standard_error) == (0.2512345, 0.0, 0.0)


def test_equal_steps_have_an_interval_of_no_width():
    (described,) = describe([process([0.5123456] * 20)])
    assert steps.half_width(described) == pytest.approx(0.0, abs=1e-12)
    assert (described.outliers, described.drifts, described.drift_percent) == (0, False, pytest.approx(0.0))


@pytest.mark.parametrize(("resolution", "seed"), [(0.01, 1), (0.001, 2), (1 / 64, 3)])
def test_a_coarse_timer_has_an_interval_that_holds_the_true_median(resolution, seed):
    random, held = np.random.default_rng(seed), 0
    for _ in range(200):
        median = random.uniform(0.2, 0.6)
        times = median * np.exp(random.normal(0.0, 0.0002, 30))
        (described,) = describe([process(np.round(times / resolution) * resolution)])
        held += abs(math.log(described.step_time_sec / median)) <= steps.half_width(described)
    assert held >= 0.95 * 200  # 0 % before: all steps are equal


def test_the_same_steps_give_the_same_interval():
    times = np.exp(Noise().within_process(np.random.default_rng(1), (1, 30)))[0]
    first = steps.half_width(describe([process(times)])[0])
    steps._bootstrap_indices.cache_clear()  # a new process draws again
    assert steps.half_width(describe([process(times)])[0]) == first


def test_slow_steps_are_counted_as_outliers_and_ordinary_ones_are_not():
    random = np.random.default_rng(3)
    times = 0.2 * np.exp(random.normal(0, 0.01, 40))
    assert describe([process(times)])[0].outliers == 0
    times[[5, 17]] *= 1.4
    times[30] /= 1.4
    assert describe([process(times)])[0].outliers == 3


def test_a_step_time_that_rises_by_eight_percent_is_flagged_as_drift():
    rows = Noise(drift=0.0, outliers=0.03, correlation=0.4).within_process(np.random.default_rng(4), (200, 60))
    rising = describe([process(np.exp(row + np.linspace(0, 0.08, 60))) for row in rows])
    assert np.mean([described.drifts for described in rising]) > 0.9
    assert np.mean([described.drift_percent for described in rising]) == pytest.approx(8.3, abs=0.7)
    falling = describe([process(np.exp(row - np.linspace(0, 0.08, 60))) for row in rows])
    assert all(described.drift_percent < 0 for described in falling if described.drifts)


def test_noise_without_drift_is_not_flagged_as_drift():
    rows = Noise(drift=0.0).within_process(np.random.default_rng(5), (1000, 40))
    assert np.mean([described.drifts for described in describe([process(np.exp(row)) for row in rows])]) < 0.02


def test_autocorrelation_reduces_the_effective_number_of_steps():
    independent, correlated = (
        describe([process(np.exp(Noise(correlation=rho).within_process(np.random.default_rng(6), (1, 100))[0]))])[0]
        for rho in (0.0, 0.8)
    )
    assert correlated.effective_steps < independent.effective_steps / 2
    assert correlated.standard_error > independent.standard_error


@pytest.mark.parametrize("times", [(), (0.1, 0.0), (0.1, -1.0), (0.1, float("nan")), (0.1, float("inf"))])
def test_impossible_times_are_refused(times):
    with pytest.raises(ValueError, match="process p"):
        process(times)


def test_steps_without_a_useful_token_and_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"process p: .*no useful token"):
        process([0.1], useful=0)
    with pytest.raises(ValueError, match=r"process p: .*equal length"):
        replace(process([0.1]), step_time_sec=np.array([0.1, 0.2]))


def test_many_processes_are_described_at_once_without_changing_any():
    rows = Noise().within_process(np.random.default_rng(8), (50, 20))
    processes = [process(np.exp(row), name=str(number)) for number, row in enumerate(rows)]
    medians = [float(np.median(np.exp(row))) for row in rows]
    assert [described.step_time_sec for described in describe(processes)] == pytest.approx(medians)
    assert steps.describe([]) == []
