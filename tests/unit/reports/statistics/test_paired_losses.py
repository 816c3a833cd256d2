"""Held-out losses of two configurations, pair by pair."""

import dataclasses

import pytest

from bench.records.quality import LossCheck, LossPair, QualityRecord, reference_of
from reports.statistics.paired_losses import (
    MAX_PAIRS,
    MIN_PAIRS,
    paired_difference,
    pairs_needed,
    pairs_of_both_stages,
    visible_percent,
)
from reports.summary.loss_verdicts import verdict_of
from tests.support.cases import Case, load_cases
from tests.support.reports import synthetic

TRIAL = synthetic.trial("fast", recipe="fast")


def make_record(reference: list[float], losses: list[float], first: int | None = None) -> QualityRecord:
    pairs = [
        LossPair(seed=seed, reference=base, loss=loss, stage=1 if first is None or seed < first else 2)
        for seed, (base, loss) in enumerate(zip(reference, losses, strict=True))
    ]
    published = reference_of(synthetic.trial(), TRIAL)
    check = LossCheck(label="fast", trial=TRIAL, reference=published, run_id="r", planned_pairs=9, pairs=pairs)
    return QualityRecord(max_increase_percent=0.15, steps=60, checks=[check])


@pytest.mark.parametrize("case", load_cases(__file__, "paired_losses.yaml"))
def test_the_difference_and_what_it_shows(case: Case) -> None:
    difference = paired_difference(**case["input"])
    percent = None if difference is None else round(difference.percent, 4)
    assert (percent, verdict_of(make_record(**case["input"]), TRIAL)) == (case["percent"], case["verdict"])


def test_the_verdict_holds_for_every_configuration_that_trains_alike() -> None:
    record = make_record([2.0] * 3, [2.0] * 3)
    assert verdict_of(record, dataclasses.replace(TRIAL, max_seq_len=64, layout="varlen", held_layers=2)) == "same"
    assert verdict_of(record, dataclasses.replace(TRIAL, matmul="int8")) == "unknown"
    assert verdict_of(record, synthetic.trial()) == "reference"
    assert verdict_of(None, TRIAL) == "unknown"


def test_the_planned_pairs_can_show_the_margin() -> None:
    for sd in (0.01, 0.05, 0.1):
        pairs = pairs_needed(sd, 0.15)
        assert visible_percent(sd, pairs) <= 0.15
        assert pairs == MIN_PAIRS or visible_percent(sd, pairs - 1) > 0.15
    assert pairs_needed(10.0, 0.15) == MAX_PAIRS


@pytest.mark.parametrize(
    ("losses", "maximum", "expected"),
    [
        ([2.0, 2.0, 2.0, 2.0], 16, 4),  # equal pairs need no second stage
        ([2.0, 2.00368, 2.0001, 1.9998], 16, 9),  # one outlier
        ([2.0, 2.00368, 2.0001, 1.9998], 6, 6),  # as many as the budget allows
        ([2.0, 2.01, 1.99, 2.0], 2, 4),  # stage 1 is not shortened
        ([2.02, 2.021, 2.019, 2.022], 16, 4),  # shown to be worse
    ],
)
def test_the_second_stage_is_as_large_as_the_deviation_of_the_first_needs(
    losses: list[float], maximum: int, expected: int
) -> None:
    first = paired_difference([2.0] * 4, losses)
    assert first is not None
    assert pairs_of_both_stages(first, 0.15, maximum) == expected
