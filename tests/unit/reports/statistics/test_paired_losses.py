"""Held-out losses of two configurations, pair by pair."""

import dataclasses

import pytest

from bench.records.quality import LossCheck, LossPair, QualityRecord, reference_of
from reports.statistics.paired_losses import (
    MAX_PAIRS,
    MIN_PAIRS,
    paired_difference,
    pairs_needed,
    visible_percent,
)
from reports.summary.loss_verdicts import verdict_of
from tests.support.cases import Case, load_cases
from tests.support.reports import synthetic

TRIAL = synthetic.trial("fast", recipe="fast")


def make_record(reference: list[float], losses: list[float]) -> QualityRecord:
    pairs = [
        LossPair(seed=seed, reference=base, loss=loss)
        for seed, (base, loss) in enumerate(zip(reference, losses, strict=True))
    ]
    published = reference_of(synthetic.trial(), TRIAL)
    check = LossCheck(label="fast", trial=TRIAL, reference=published, run_ids=["r"], planned_pairs=9, pairs=pairs)
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
