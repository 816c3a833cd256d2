"""Comparison of two trainings by the losses of the examples that both held out."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bench.records.adapter import AdapterCheck
from reports.read.loaded_run import ReportError
from reports.training import comparison
from tests.benchmarks import statistics_power
from tests.support.reports import hostile
from tests.support.reports.training_run import RECORD, write_checked, write_run


@pytest.mark.parametrize(
    ("moves", "verdict"),
    [
        ([-0.1, -0.2, -0.12, -0.18, -0.14, -0.16], "lower"),
        ([0.1, 0.2, 0.12, 0.18, 0.14, 0.16], "higher"),
        ([-0.1, 0.1, 0.0, 0.1, -0.1, 0.1], "not shown to differ"),
    ],
)
def test_a_difference_is_computed_per_example(moves: list[float], verdict: str, tmp_path: Path) -> None:
    before = {f"e{number}": float(number) for number in range(6)}  # far apart, so only pairs show the difference
    after = {name: loss + move for (name, loss), move in zip(before.items(), moves, strict=True)}
    compared = comparison.compare(
        write_checked(tmp_path / "a", before), write_checked(tmp_path / "b", after | {"another": 99.0})
    )
    assert compared.examples == 6
    assert compared.change == pytest.approx(sum(moves) / 6, abs=1e-12)
    assert compared.verdict == verdict
    assert ("until a held-out loss of 1.5000", "60 min, $4.00", "60 min, $4.00") in compared.lines


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("forms", [], "losses, targets and examples"),
        ("losses", [1.0], "losses, targets and examples"),
        ("examples", ["x", "x"], "losses, targets and examples"),
        ("targets", [0, 10], "losses, targets and examples"),
        ("losses", [1e300, 1.0], r"losses is 1e\+300"),
    ],
)
def test_an_impossible_check_is_refused_by_name(tmp_path: Path, name: str, value: object, message: str) -> None:
    first, second = (write_checked(tmp_path / run_id, {"x": 1.0, "y": 2.0}) for run_id in "ab")
    hostile.rewrite_checksummed(first / AdapterCheck.FILE, lambda document: hostile.set_value(document, (name,), value))
    with pytest.raises(ReportError, match=rf"adapter-check\.json: .*{message}.*; .*`inv adapter\.check --run=a`"):
        comparison.compare(first, second)


def test_trainings_without_common_examples_or_without_a_check_name_the_remedy(tmp_path: Path) -> None:
    first = write_checked(tmp_path / "a", {"x": 1.0})
    with pytest.raises(ReportError, match=r"; .*train\.validation_file"):
        comparison.compare(first, write_checked(tmp_path / "b", {"y": 1.0}))
    with pytest.raises(ReportError, match=r"; .*`inv adapter\.check --run=c`"):
        comparison.compare(first, write_run(tmp_path / "c"))
    with pytest.raises(ReportError, match="no data was held out"):
        comparison.compare(first, write_run(tmp_path / "e", dataclasses.replace(RECORD, evaluations=[])))
    single = comparison.compare(first, write_checked(tmp_path / "d", {"x": 1.5}))
    assert (single.low, single.high) == (None, None)
    assert single.verdict.startswith("not shown to differ (fewer than 6 ")


def test_the_interval_covers_that_of_all_subsets() -> None:
    changes = [float(number) for number in (1, 2, 4, 8, 16, 32)]
    # Of 63 sums of subsets over ten targets an example, the first and the last are left out.
    low, high = comparison.paired_interval(changes, [10] * 6) or (0.0, 0.0)
    assert low == pytest.approx(0.1)
    assert high > 3.2  # the bootstrap-t interval reaches further towards the long tail
    assert comparison.paired_interval(changes[::-1], [10] * 6) == (low, high)
    assert comparison.paired_interval(changes[:5], [10] * 5) is None


@pytest.mark.parametrize(("examples", "noise"), [*zip((8, 12), statistics_power.TRAINING_NOISES, strict=True)])
def test_equal_trainings_rarely_differ_although_lengths_are_skewed(examples: int, noise: str) -> None:
    # 16 % by Student's t; 10 % of skewed changes by sign flips without the bootstrap.
    assert statistics_power.false_changes(examples, noise, 200) <= 0.085


def test_a_change_of_many_examples_is_found() -> None:
    changes = np.random.default_rng(3).normal(0.05, 0.1, 100) * 50
    low, high = comparison.paired_interval(changes.tolist(), [50] * 100) or (0.0, 0.0)
    assert 0.0 < low < 0.05 < high
