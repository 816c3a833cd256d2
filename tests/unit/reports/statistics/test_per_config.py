"""Statistics of configurations: golden numbers without noise, and coverage in simulation with noise."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reports.statistics import per_config
from reports.statistics.per_config import measure, ratio
from tests.support.reports.scenarios import Scenario, steps
from tests.support.thorough import examples

pytestmark = pytest.mark.slow

RUNS = examples(400)
# 95 % and 5 %, minus and plus three standard deviations for 400 runs.
MIN_COVERAGE, MAX_FALSE_VERDICTS = 0.917, 0.083


def noisy(worker, median, seed, count=20, sigma=0.02, process=None):
    noise = np.random.default_rng(seed)
    return steps(worker, tuple(median * np.exp(noise.normal(0, sigma, count))), process=process)


def simulated(world, random, *, workers, repeats=1, base=0.2):
    """Simulate processes of one configuration; each worker has its own speed."""
    processes = []
    for worker in range(workers):
        speed = random.normal(0.0, world.worker_spread)
        for repeat in range(repeats):
            times = base * np.exp(world.process(random, speed))
            processes.append(steps(f"worker-{worker}", tuple(times), process=f"trial-{repeat}.worker-{worker}"))
    return processes


def test_golden_numbers_of_two_workers():
    amounts = {"samples": [3, 4, 5], "tokens": [50, 100, 150], "useful": [0, 50, 100]}
    measured = measure([steps("a", (0.1, 0.2, 0.3), **amounts), steps("b", (0.2, 0.4, 0.6))])
    assert measured.step_time_sec.value == pytest.approx(math.sqrt(0.2 * 0.4))  # the geometric mean of both medians
    assert measured.steady_samples_per_sec.value == pytest.approx(4 / math.sqrt(0.08))
    assert measured.steady_tokens_per_sec.value == pytest.approx(100 / math.sqrt(0.08))
    assert measured.steady_useful_tokens_per_sec.value == pytest.approx(50 / math.sqrt(0.08))
    assert measured.padding_percent == pytest.approx(50.0)
    assert measured.worker_medians == {"a": pytest.approx(0.2), "b": pytest.approx(0.4)}
    assert (measured.n_workers, measured.n_processes, measured.n_steps, measured.step_time_sec.n) == (2, 2, 6, 6)


def test_golden_interval_of_four_workers():
    # Medians e^-0.03 .. e^0.03 around 0.2: standard error 0.0258 / 2, Student's t of three degrees 3.182.
    shifts = {"a": -0.03, "b": -0.01, "c": 0.01, "d": 0.03}
    measured = measure([steps(name, (0.2 * math.exp(shift),) * 5) for name, shift in shifts.items()])
    half = 3.18245 * math.sqrt(0.002 / 3) / 2
    assert measured.step_time_sec.value == pytest.approx(0.2)
    assert measured.step_time_sec.low == pytest.approx(0.2 * math.exp(-half), rel=1e-5)
    assert measured.step_time_sec.high == pytest.approx(0.2 * math.exp(half), rel=1e-5)
    assert measured.step_time_sec.over == "workers"
    assert measured.steady_samples_per_sec.low == pytest.approx(4 / measured.step_time_sec.high)


def test_an_interval_names_its_unit():
    single = measure([noisy("a", 0.2, 1)])
    repeats = measure([noisy("a", 0.2, seed, process=f"t{seed}") for seed in range(3)])
    several = measure([noisy(name, 0.2, seed) for seed, name in enumerate("abc")])
    one_step = measure([steps(name, (0.2 + 0.01 * index,)) for index, name in enumerate("abcd")])
    over = [measured.step_time_sec.over for measured in (single, repeats, several, one_step)]
    assert over == ["steps", "processes", "workers", "workers"]
    assert (repeats.n_workers, repeats.n_processes) == (1, 3)
    assert one_step.step_time_sec.low < one_step.step_time_sec.value < one_step.step_time_sec.high


def test_a_single_step_has_a_value_but_no_interval():
    measured = measure([steps(times=(0.25,))])
    assert measured.step_time_sec.value == pytest.approx(0.25)
    assert (measured.step_time_sec.low, measured.step_time_sec.over) == (None, None)
    other = measure([steps(times=(0.5,))])
    compared = ratio(measured, other, "samples")
    assert (compared.value, compared.low, compared.verdict, compared.over) == (pytest.approx(2.0), None, None, None)


def test_two_processes_that_agree_by_chance_are_not_exact():
    # Both medians are equal, but the interval still includes the noise of the steps.
    times = np.exp(np.random.default_rng(1).normal(0, 0.05, 15))
    measured = measure([steps("a", tuple(times)), steps("b", tuple(times[::-1]))])
    assert measured.step_time_sec.high / measured.step_time_sec.low > 1.01


def sides_with_stragglers(every):
    """Measure two configurations on four workers: the first has a median 4 % faster, and slow steps now and then."""
    random = np.random.default_rng(5)
    slow = np.where(np.arange(40) % every == 0, 1.5, 1.0) if every else np.ones(40)
    speeds = {"measured": (0.2 / 1.04, slow), "reference": (0.2, np.ones(40))}
    return [
        measure([steps(f"w{n}", second * extra * np.exp(random.normal(0, 0.002, 40))) for n in range(4)])
        for second, extra in speeds.values()
    ]


def test_a_faster_median_with_slow_steps_that_take_it_back_cannot_be_told():
    # One step of ten takes half as long again: elapsed 1.04 / 1.05 = 0.99 of the reference.
    compared = ratio(*sides_with_stragglers(10), "useful_tokens")
    assert (compared.value, compared.steady.value) == (
        pytest.approx(1.04 / 1.05, rel=2e-3),
        pytest.approx(1.04, rel=2e-3),
    )
    assert compared.steady.low > 1.0 > compared.value
    assert compared.verdict is None
    assert ratio(*sides_with_stragglers(0), "useful_tokens").verdict == "faster"


def test_a_single_process_is_taken_to_be_as_noisy_as_the_other_sides():
    many = measure([noisy("a", 0.2 * speed, 7, sigma=1e-4, process=str(speed)) for speed in (0.98, 1.0, 1.02)])
    single = measure([noisy("a", 0.203, 9, sigma=1e-4)])
    compared = ratio(single, many, "samples")
    assert compared.over == "processes"
    assert compared.low < 1 < compared.high
    assert compared.high / compared.low > 1.15  # 4.303 * 0.02 * sqrt(1 + 1 / 3) on both sides


def test_equal_names_of_other_machines_do_not_pair():
    measured = measure([noisy(str(n), 0.2 * speed, n) for n, speed in enumerate((1.0, 1.3, 1.7, 2.2))])
    both = [per_config.samples(measured.processes, "steady_tokens_per_sec")] * 2
    assert per_config.difference(*both).half < per_config.difference(*both, same_workers=False).half / 10


@pytest.mark.parametrize(("workers", "count", "repeats"), [(1, 20, 1), (1, 20, 3)])
def test_intervals_hold_the_true_value_in_nearly_all_runs(workers, count, repeats):
    # Workers 3 % apart, processes 0.5 %.
    world = Scenario(steps=count, worker_spread=0.03 if workers > 1 else 0.0)
    random, middle, held = np.random.default_rng((workers, count, repeats)), world.median_log_time(), 0
    for _ in range(RUNS):
        measured = measure(simulated(world, random, workers=workers, repeats=repeats))
        held += measured.step_time_sec.low <= 0.2 * math.exp(middle) <= measured.step_time_sec.high
    assert held >= MIN_COVERAGE * RUNS


def texts(random, batch, workers=4, count=30, cut=512):
    """Measure a configuration whose workers read the same texts, with lengths distributed like those of chats."""
    useful = np.minimum(np.exp(random.normal(4.5, 0.7, (count, batch))), cut).sum(axis=1)
    seconds = 0.1 * batch * np.exp(random.normal(0.0, 0.004, (workers, count)))
    return measure([steps(f"w{index}", row, samples=batch, useful=useful) for index, row in enumerate(seconds)])


def test_configurations_that_read_different_texts_do_not_differ_by_the_texts():
    # Equal samples per second; another batch size reads other texts.
    random, verdicts = np.random.default_rng(7), 0
    for _ in range(RUNS):
        verdicts += ratio(texts(random, 16), texts(random, 4), "useful_tokens").verdict is not None
    assert verdicts <= MAX_FALSE_VERDICTS * RUNS
    same = [texts(np.random.default_rng(8), 8), texts(np.random.default_rng(8), 8)]
    useful, counted = (ratio(*same, name) for name in ("useful_tokens", "samples"))
    assert (useful.low, useful.high) == pytest.approx((counted.low, counted.high))


def test_configurations_on_one_worker_each_include_the_difference_between_workers():
    # Three processes each; they differ only by their workers, which are 1 % apart.
    random, verdicts = np.random.default_rng(6), 0
    for _ in range(RUNS):
        first, second = (simulated(Scenario(), random, workers=1, repeats=3) for _ in range(2))
        compared = ratio(measure([replace(process, worker="b") for process in first]), measure(second), "samples")
        verdicts += compared.verdict is not None
    assert verdicts <= MAX_FALSE_VERDICTS * RUNS


def test_configurations_on_different_devices_are_compared_by_the_workers_that_both_ran_on_or_not_at_all():
    first, second = (
        [replace(noisy(name, 0.2, 1), device=name) for name in names] for names in (("a", "b"), ("c", "d"))
    )
    apart = ratio(measure(first), measure(second), "samples")
    assert (apart.low, apart.high, apart.over, apart.verdict) == (None, None, None, None)
    assert ratio(measure(first), measure([*first, *second]), "samples").over == "workers"
