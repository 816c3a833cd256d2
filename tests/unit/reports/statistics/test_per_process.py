"""Statistics of one process: its interval holds the true median."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reports.statistics.per_process import describe
from tests.support.reports.scenarios import Scenario, steps

pytestmark = pytest.mark.slow


def process(times, name="p", **more):
    return steps("a", times, process=name, **more)


def test_the_interval_over_autocorrelated_steps_holds_the_true_median():
    world, random = Scenario(steps=20, warm_up=0.0), np.random.default_rng(7)
    described = describe([process(np.exp(row)) for row in world.within_processes(random, 1000)])
    errors = [abs(math.log(each.step_time_sec) - world.median_log_time()) for each in described]
    held = [error <= each.half_width(elapsed=False) for error, each in zip(errors, described, strict=True)]
    assert np.mean(held) >= 0.93


def test_processes_of_different_lengths_keep_their_order_and_numbers():
    mixed = [process(np.linspace(0.1, 0.2, count), name=str(count)) for count in (3, 20, 3, 7)]
    together = describe(mixed)
    assert [described.process for described in together] == ["3", "20", "3", "7"]
    for single, combined in zip(mixed, together, strict=True):
        (separate,) = describe([single])
        assert combined.step_time_sec == separate.step_time_sec
        assert combined.effective_steps == pytest.approx(separate.effective_steps)


@pytest.mark.parametrize(("times", "half"), [([0.2512345], None), ([0.5123456] * 20, pytest.approx(0.0, abs=1e-12))])
def test_a_single_step_has_no_interval_and_equal_steps_one_of_no_width(times, half):
    (described,) = describe([process(times)])
    assert described.half_width(elapsed=False) == half
    assert (described.step_time_sec, described.standard_error) == (times[0], 0.0)


def test_the_interval_of_an_elapsed_rate_holds_the_rate_of_stragglers():
    world, random = Scenario(slow=0.02), np.random.default_rng(9)
    truth = math.log(np.exp(world.within_processes(random, 20_000)).mean())
    described = describe([process(np.exp(row)) for row in world.within_processes(random, 1000)])
    errors = [math.log(4 / each.elapsed_samples_per_sec) - truth for each in described]
    held = [abs(error) <= each.half_width(elapsed=True) for error, each in zip(errors, described, strict=True)]
    assert np.mean(held) >= 0.93  # 84 % and 48 % without a step that was missed


@pytest.mark.parametrize(
    ("times", "useful"),
    [*((times, 50) for times in ((), (0.1, 0.0), (0.1, -1.0), (0.1, float("nan")), (0.1, float("inf")))), ((0.1,), 0)],
)
def test_impossible_times_and_steps_without_a_useful_token_are_refused(times, useful):
    with pytest.raises(ValueError, match="process p"):
        process(times, useful=useful)
    with pytest.raises(ValueError, match="process p"):
        replace(process([0.1]), step_time_sec=np.array([0.1, 0.2]))
