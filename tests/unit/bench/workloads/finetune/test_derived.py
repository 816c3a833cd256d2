"""Settings that follow from the data: few rows give smaller steps, a larger held-out part and a longer warm-up."""

import dataclasses
from pathlib import Path

import pytest

from bench.data import dataset
from bench.data.findings import DataFindings
from bench.data.inputs import InputError
from bench.records.training import DerivedSettings
from bench.workloads.finetune import derived
from bench.workloads.finetune.training_set import training_of
from tests.support import tiny_training


@pytest.mark.parametrize(
    ("lines", "share"), [(1, 0.2), (30, 0.2), (200, 0.15), (1500, 0.02), (100_000, 0.02), (1_000_000, 0.002)]
)
def test_a_part_that_shows_a_difference_is_held_out(lines: int, share: float) -> None:
    assert derived.validation_share(lines, 0.02) == share


@pytest.mark.parametrize(
    ("rows", "workers", "expected"),
    [(1.0, 1, 1), (199.0, 1, 1), (250.0, 1, 2), (9e6, 1, 4), (50.0, 3, 3), (9e6, 3, 6), (9e6, 8, 8)],
)
def test_a_step_has_few_rows_of_little_data_and_equally_many_for_each_worker(
    rows: float, workers: int, expected: int
) -> None:
    assert derived.rows_per_step(rows, workers, 4) == expected


@pytest.mark.parametrize(("steps", "share"), [(1, 0.1), (100, 0.1), (200, 0.05), (10_000, 0.03)])
def test_a_short_training_warms_up_for_some_steps(steps: int, share: float) -> None:
    assert derived.warmup_share(steps, 0.03) == share


def test_only_the_fields_that_the_user_left_open_are_derived(tiny_inputs: tuple[Path, Path], tmp_path: Path) -> None:
    trial = tiny_training.plan(*tiny_inputs, training={"max_steps": None, "epochs": 3.0})
    fixed, values, _ = derived.derive(trial, tmp_path, DerivedSettings())
    assert (values, fixed.training) == (DerivedSettings(), training_of(trial))
    names = ("validation_share", "rows_per_step", "warmup_share")
    open_trial = dataclasses.replace(trial, derive=names)
    for was_cached in (False, True):
        material, values, report = derived.derive(open_trial, tmp_path, DerivedSettings())
        assert (values.validation_share, values.rows_per_step, report.was_cached) == (0.2, 1, was_cached)
        assert values.warmup_share == derived.warmup_share(material.steps(), 0.03)
    assert material.training.data.validation_share == 0.2
    assert len(material.data.validation) > len(fixed.data.validation)


def test_lines_that_are_all_held_out_are_answered_with_what_leaves_some(tiny_inputs: tuple[Path, Path]) -> None:
    spec = training_of(tiny_training.plan(*tiny_inputs)).data
    with pytest.raises(InputError) as refused:
        dataset._check_counts(spec, DataFindings(), training=0, validation=2)
    assert "train.validation_fraction" in str(refused.value.remedy)
