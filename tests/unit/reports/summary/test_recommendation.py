"""What the report recommends: only what can be relied on, and no winner among equals."""

from dataclasses import replace

import pytest

from bench.records.result import TrialStatus
from reports.read.load import load
from reports.summary import headline, text
from reports.summary.prices import Pricing
from reports.summary.recommendation import choose
from reports.summary.summarize import summarize
from tests.support.reports import synthetic

NAMES = ("baseline", "good", "large")


@pytest.fixture
def summed_up(tmp_path):
    """A run of three configurations, each faster than the one before, of which trials may end otherwise."""

    def make(ends, speeds=(0.16, 0.12, 0.08), workers=4, *, exact=False):
        trials = tuple(synthetic.trial(name, lora_rank=8 * place) for place, name in enumerate(NAMES, start=1))
        run = synthetic.record(trials, workers=workers)
        synthetic.write_run(tmp_path, run, speeds=dict(zip(NAMES, speeds, strict=True)), exact=exact)
        for plan in run.planned:
            number = run.workers.index(plan.worker)
            if number < len(ends.get(plan.trial.name, ())):
                synthetic.rewrite(tmp_path, plan, status=ends[plan.trial.name][number], reason="no room")
        return summarize(load(tmp_path), Pricing(usd_per_gpu_hour=2.0, source="a list"))

    return make


def test_what_mostly_runs_out_of_memory_is_passed_over_and_the_next_best_named(summed_up):
    summary = summed_up({"large": [TrialStatus.OUT_OF_MEMORY] * 3})
    said = text.recommendation_text(summary)
    assert said.startswith("Train with good: 1.")
    assert said.endswith("; passed over, though faster: only 1 of 4 trials of large succeeded.")
    assert headline.recommended(summary) == "good"
    assert headline.costs(summary).configuration == "good"
    assert "good" in said and "large" not in headline.tiles(summary)[0].value  # noqa: PT018 - one thought


@pytest.mark.parametrize(
    ("ends", "recommended"),
    [
        ((TrialStatus.OUT_OF_MEMORY, TrialStatus.FAILED, TrialStatus.TIMED_OUT), "good"),
        ((TrialStatus.LOST, TrialStatus.PREEMPTED, TrialStatus.CANCELLED), "large"),
    ],
    ids=["one fault of the configuration is enough", "what was stopped from outside says nothing"],
)
def test_a_single_trial_counts_against_its_configuration_where_it_shows_a_fault_of_it(summed_up, ends, recommended):
    for end in ends:
        assert headline.recommended(summed_up({"large": [end]})) == recommended, end


def test_the_recommendation_and_the_finding_say_how_many_trials_they_rest_on(summed_up):
    summary = summed_up({name: [TrialStatus.OUT_OF_MEMORY] for name in NAMES})
    assert text.recommendation_text(summary).startswith("Train with large (3 of 4 trials): ")
    assert summed_up({"large": [TrialStatus.FAILED] * 2}).finding.startswith("large (2 of 4 trials) processed ")


def test_dollars_of_the_headline_are_of_what_it_counts(summed_up):
    said = text.recommendation_text(summed_up({}))
    assert "useful tokens per second of baseline at $" in said
    assert "per million useful tokens on 4 workers" in said
    assert "samples" not in said


def test_what_cannot_be_told_from_the_best_is_named_with_it(summed_up):
    said = text.recommendation_text(summed_up({}, speeds=(0.16, 0.08, 0.08)))
    first, second = ("good", "large") if "good," in said else ("large", "good")
    assert said.startswith(f"Train with {first}, or with {second}, not shown to differ from it: {first} gave ")


def test_equal_configurations_leave_the_baseline_with_all_that_was_not_shown_to_differ(summed_up):
    summary = summed_up({}, speeds=(0.16, 0.16, 0.16), exact=True)
    assert text.recommendation_text(summary).startswith("Stay with baseline: ")
    assert "good and large" in text.recommendation_text(summary).replace(", ", " and ")
    chosen = choose(summary.rows)
    assert {chosen.fastest.label, *(row.label for row in chosen.tied)} == set(NAMES)
    assert (chosen.row.label, chosen.is_shown) == ("baseline", False)


def test_a_baseline_that_failed_is_not_stayed_with(summed_up):
    summary = summed_up({"baseline": [TrialStatus.OUT_OF_MEMORY]}, speeds=(0.16, 0.16, 0.159))
    assert headline.recommended(summary) in ("good", "large")
    assert text.recommendation_text(summary).startswith("Train with ")


def test_a_summary_of_other_rows_has_a_choice_of_its_own_and_without_any_measurement_none(summed_up):
    summary = summed_up({})
    assert choose([replace(row, measured=None) for row in summary.rows]) is None
    assert headline.recommended(summary) == "large"
    rest = tuple(row for row in summary.rows if row.label != "large")
    assert headline.recommended(replace(summary, rows=rest)) == "good"
