"""Error rates of the report and `inv compare` on fleets with another structure than the statistics assume.

`python -m tests.benchmarks.statistics_power` measures the same over more runs and fleets, and prints the goals. These
runs are seeded; the bounds are several standard deviations from the measured rates.
"""

from dataclasses import replace

import pytest

from reports.summary import text
from reports.summary.summarize import summarize
from tests.benchmarks import statistics_power as power

pytestmark = pytest.mark.slow

BARE = replace(power.FULL, has_measurements=False)
FULL_ON_TWO = replace(BARE, workers=2)


def test_of_twelve_equal_configurations_none_is_called_the_fastest():
    summaries = [summarize(run) for run in power.equal(FULL_ON_TWO, 60)]
    assert power.share(summaries, power.has_verdict) <= 0.12  # 27 % before configurations shared their noise
    assert power.share(summaries, lambda summary: text.recommendation_text(summary).startswith("Train with")) <= 0.08


def test_with_two_workers_the_recommendation_costs_little():
    lost = power.regrets(FULL_ON_TWO, 40)
    assert sum(lost) / len(lost) <= 0.005  # 1.8 % before


def test_the_headline_holds_the_truth_despite_jumping_clocks_and_a_throttled_worker():
    ratio, rate = power.coverage(replace(BARE, modes=0.04, throttled=0.17), 40)
    assert min(ratio, rate) >= 0.88


def test_one_process_does_not_stand_for_all():
    ratio, rate = power.coverage(replace(power.QUICK, workers=1, worker_spread=0.0, has_measurements=False), 60)
    assert min(ratio, rate) >= 0.88  # 65 % before


def test_a_comparison_of_equal_runs_rarely_has_a_verdict_whatever_else_was_measured():
    assert power.alarms(power.QUICK, 60) <= 0.1


def test_a_slowdown_of_three_percent_is_found_in_one_configuration_and_in_all():
    assert power.finds_one(power.QUICK, 40) >= 0.88  # 62 % before
    assert power.finds_all(power.QUICK, 40) >= 0.95


@pytest.mark.parametrize("noise", ["normal", "heavy tails"])
def test_both_stages_of_a_loss_comparison_rarely_err(noise: str) -> None:
    assert power.verdicts(0.1, noise, 0.0, 300).same >= 0.92  # 72 % with stage 1 only
    assert power.verdicts(0.1, noise, power.MARGIN, 300).same <= 0.09
    assert power.verdicts(0.1, noise, 0.5, 300).worse >= 0.95
