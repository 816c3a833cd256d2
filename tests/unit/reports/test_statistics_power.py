"""Error rates of the report and `inv compare` on fleets with another structure than the statistics assume.

`python -m tests.benchmarks.statistics_power` measures the same over more runs and fleets, and prints the goals. These
runs are seeded; the bounds are several standard deviations from the measured rates.
"""

from dataclasses import replace

import pytest

from reports.summary import sentences
from reports.summary.summarize import summarize
from tests.benchmarks import _drifting_runs
from tests.benchmarks import statistics_power as power

pytestmark = pytest.mark.slow

FULL_ON_TWO = replace(power.FULL, workers=2)


def test_of_twelve_equal_configurations_none_is_called_the_fastest():
    summaries = [summarize(run) for run in power.equal(FULL_ON_TWO, 40)]
    assert power.share(summaries, power.has_verdict) <= 0.12  # 27 % before configurations shared their noise
    assert power.share(summaries, lambda summary: sentences.recommendation(summary).startswith("Train with")) <= 0.08


def test_the_headline_holds_the_truth_despite_jumping_clocks_and_a_throttled_worker():
    ratio, rate = power.coverage(replace(power.FULL, modes=0.04, throttled=0.17), 25)
    assert min(ratio, rate) >= 0.88


@pytest.mark.parametrize("drift", ["step of 5 %", "load 20 %"])
def test_a_machine_that_changes_does_not_pass_for_a_difference(drift: str) -> None:
    rates = _drifting_runs.equal(_drifting_runs.fleet(2, 2, drift=drift), 60)
    assert rates.headline >= 0.88  # 49 to 89 % before
    assert max(rates.train_with, rates.any_word) <= 0.08  # 11 to 100 % before


def test_a_slope_is_taken_off_and_a_slower_configuration_found() -> None:
    assert _drifting_runs.found(_drifting_runs.fleet(12, 4, drift="linear 5 %"), 20) >= 0.85  # 46 %, by chance, before


def test_a_comparison_of_equal_runs_rarely_has_a_verdict_whatever_else_was_measured():
    assert power.alarms(power.QUICK, 40) <= 0.1


def test_a_slowdown_of_three_percent_is_found_in_one_configuration_and_in_all():
    assert power.finds_one(power.QUICK, 25) >= 0.65  # beyond the effect of the day
    assert power.finds_all(power.QUICK, 25) >= 0.8


@pytest.mark.parametrize("noise", ["normal", "heavy tails"])
def test_a_comparison_of_losses_rarely_errs(noise: str) -> None:
    assert power.verdicts(0.1, noise, 0.0, 300).same >= 0.92  # 72 % with 4 pairs
    assert power.verdicts(0.1, noise, power.MARGIN, 300).same <= 0.09
    assert power.verdicts(0.1, noise, 0.5, 300).worse >= 0.95
