"""The report and `inv compare` on fleets of another structure than the statistics were built on: rates, with room.

`python -m tests.benchmarks report_trust` measures the same over more runs and more fleets, beside their goals. These
runs are seeded; the bounds lie several standard deviations from the rates that were measured.
"""

from dataclasses import replace

import pytest

from reports.summary import text
from reports.summary.summarize import summarize
from tests.benchmarks import statistics_power as trust

pytestmark = pytest.mark.slow

BARE = replace(trust.FULL, measured=False)
FULL_ON_TWO = replace(BARE, workers=2)


def test_of_twelve_equal_configurations_none_is_called_the_fastest():
    found = [summarize(run) for run in trust.equal(FULL_ON_TWO, 60)]
    assert trust.share(found, trust.has_word) <= 0.12  # 27 % before configurations shared their noise
    assert trust.share(found, lambda one: text.recommendation_text(one).startswith("Train with")) <= 0.08


def test_with_two_workers_the_recommendation_costs_little():
    lost = trust.regrets(FULL_ON_TWO, 40)
    assert sum(lost) / len(lost) <= 0.005  # 1.8 % before


def test_jumping_clocks_and_a_throttled_worker_do_not_take_the_truth_out_of_the_headline():
    ratio, rate = trust.coverage(replace(BARE, modes=0.04, throttled=0.17), 40)
    assert min(ratio, rate) >= 0.88


def test_one_process_is_not_taken_for_all():
    ratio, rate = trust.coverage(replace(trust.QUICK, workers=1, apart=0.0, measured=False), 60)
    assert min(ratio, rate) >= 0.88  # 65 % before


def test_a_comparison_of_equal_runs_rarely_says_a_word_whatever_the_trials_measured_beside_their_steps():
    assert trust.alarms(trust.QUICK, 60) <= 0.1


def test_a_slowdown_of_three_percent_is_found_in_one_configuration_and_in_all():
    assert trust.finds_one(trust.QUICK, 40) >= 0.88  # 62 % before
    assert trust.finds_all(trust.QUICK, 40) >= 0.95
