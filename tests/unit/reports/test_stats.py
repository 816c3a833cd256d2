"""Statistics: golden numbers where there is no noise, and what the bootstrap must respect where there is."""

from __future__ import annotations

import numpy as np
import pytest

from reports import stats
from reports.stats import WorkerSteps, measure, ratio


def steps(worker="a", times=(0.1, 0.2, 0.3), samples=4, tokens=100, useful=50):
    count = len(times)
    return WorkerSteps(
        worker=worker,
        step_time_sec=np.array(times, dtype=float),
        samples=np.full(count, float(samples)),
        tokens=np.full(count, float(tokens)),
        useful_tokens=np.full(count, float(useful)),
    )


def noisy(worker, median, seed, count=20, sigma=0.02):
    noise = np.random.default_rng(seed)
    return steps(worker, tuple(median * np.exp(noise.normal(0, sigma, count))))


def test_golden_numbers_of_two_workers():
    found = measure([steps("a", (0.1, 0.2, 0.3)), steps("b", (0.2, 0.4, 0.6))])
    assert found.step_time_sec.value == pytest.approx(0.25)  # the middle of 0.1 0.2 0.2 0.3 0.4 0.6
    assert found.samples_per_sec.value == pytest.approx(4 / 0.25)
    assert found.tokens_per_sec.value == pytest.approx(100 / 0.25)
    assert found.useful_tokens_per_sec.value == pytest.approx(50 / 0.25)
    assert found.padding_percent == pytest.approx(50.0)
    assert found.worker_medians == {"a": pytest.approx(0.2), "b": pytest.approx(0.4)}
    assert found.worker_spread == pytest.approx(2.0)
    assert (found.n_workers, found.n_steps, found.step_time_sec.n) == (2, 6, 6)


def test_without_noise_the_interval_is_the_value():
    found = measure([steps("a", (0.5,) * 10), steps("b", (0.5,) * 10)])
    assert (found.step_time_sec.low, found.step_time_sec.high) == (0.5, 0.5)
    assert (found.samples_per_sec.low, found.samples_per_sec.high) == (8.0, 8.0)


def test_a_single_step_has_a_value_but_no_interval():
    found = measure([steps(times=(0.25,))])
    assert found.step_time_sec.value == 0.25
    assert (found.step_time_sec.low, found.step_time_sec.high, found.worker_spread) == (None, None, None)
    other = measure([steps(times=(0.5,))])
    assert (ratio(found, other, "samples_per_sec").value, ratio(found, other, "samples_per_sec").low) == (2.0, None)
    assert ratio(found, other, "samples_per_sec").verdict is None


def test_a_single_worker_gets_an_interval_from_its_steps():
    found = measure([noisy("a", 0.2, 1)])
    assert found.step_time_sec.low < found.step_time_sec.value < found.step_time_sec.high
    assert found.worker_spread is None


def test_workers_that_differ_widen_the_interval():
    alike = measure([noisy(str(number), 0.2, number) for number in range(4)])
    apart = measure([noisy(str(number), 0.2 * (1 + 0.1 * number), number) for number in range(4)])
    width = {name: of.step_time_sec.high - of.step_time_sec.low for name, of in (("alike", alike), ("apart", apart))}
    assert width["apart"] > 3 * width["alike"]


def test_the_same_steps_give_the_same_interval():
    workers = [noisy("a", 0.2, 1), noisy("b", 0.2, 2)]
    assert measure(workers).step_time_sec == measure(list(reversed(workers))).step_time_sec


def test_a_worker_with_fewer_steps_is_not_padded_with_zeros():
    found = measure([steps("a", (0.2,) * 30), steps("b", (0.2,) * 3)])
    assert (found.step_time_sec.low, found.step_time_sec.high) == (0.2, 0.2)
    assert (found.tokens_per_sec.low, found.tokens_per_sec.high) == pytest.approx((500.0, 500.0))


def test_many_steps_are_drawn_in_pieces_with_the_same_answer(monkeypatch):
    workers = [noisy("a", 0.2, 1), noisy("b", 0.21, 2, count=7)]
    whole = measure(workers, resamples=300)
    monkeypatch.setattr(stats, "_CHUNK", 400)
    assert measure(workers, resamples=300).step_time_sec == whole.step_time_sec


def test_rates_use_the_mean_amount_per_step():
    found = measure(
        [
            WorkerSteps(
                worker="a",
                step_time_sec=np.array([0.5, 0.5]),
                samples=np.array([2.0, 4.0]),
                tokens=np.array([100.0, 300.0]),
                useful_tokens=np.array([50.0, 150.0]),
            )
        ]
    )
    assert found.samples_per_sec.value == pytest.approx(6.0)
    assert found.tokens_per_sec.value == pytest.approx(400.0)
    assert found.tokens_per_sec.low == pytest.approx(200.0)  # both draws the shorter step
    assert found.tokens_per_sec.high == pytest.approx(600.0)


def test_a_clear_difference_gets_its_word():
    slow = measure([noisy(str(number), 0.4, number) for number in range(4)], stream=0)
    fast = measure([noisy(str(number), 0.2, 9 + number) for number in range(4)], stream=1)
    assert ratio(fast, slow, "samples_per_sec").verdict == "faster"
    assert ratio(slow, fast, "samples_per_sec").verdict == "slower"
    assert ratio(fast, slow, "samples_per_sec").value == pytest.approx(2.0, rel=0.03)


def test_no_difference_gets_no_word():
    one = measure([noisy(str(number), 0.2, number) for number in range(4)], stream=0)
    other = measure([noisy(str(number), 0.2, 40 + number) for number in range(4)], stream=1)
    found = ratio(one, other, "samples_per_sec")
    assert found.low < 1 < found.high
    assert found.verdict is None


def test_machines_that_are_slow_for_both_cancel_out_of_the_ratio():
    speeds = (1.0, 1.3, 1.7, 2.2)
    base = measure([noisy(str(n), 0.2 * speed, n) for n, speed in enumerate(speeds)], stream=0)
    other = measure([noisy(str(n), 0.19 * speed, 20 + n) for n, speed in enumerate(speeds)], stream=1)
    found = ratio(other, base, "samples_per_sec")
    spread = base.samples_per_sec.high / base.samples_per_sec.low
    assert found.high / found.low < 1 + (spread - 1) / 2


def test_intervals_of_alike_workers_hold_the_true_median_in_nearly_all_simulated_runs():
    held = 0
    for run in range(200):
        found = measure([noisy(str(n), 0.2, 1000 * run + n, count=15) for n in range(4)], resamples=400, seed=run)
        held += found.step_time_sec.low <= 0.2 <= found.step_time_sec.high
    assert held >= 0.93 * 200  # seeded: the same runs every time


@pytest.mark.parametrize("times", [(), (0.1, 0.0), (0.1, -1.0), (0.1, float("nan")), (0.1, float("inf"))])
def test_impossible_times_are_refused(times):
    with pytest.raises(ValueError, match="worker a"):
        steps("a", times)


def test_no_workers_are_refused():
    with pytest.raises(ValueError, match="at least one worker"):
        measure([])
