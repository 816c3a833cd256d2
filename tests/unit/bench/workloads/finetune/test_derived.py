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
    ("function", "arguments", "expected"),
    [
        *((derived.validation_share, (lines, 0.02), share) for lines, share in ((1, 0.2), (200, 0.15), (1500, 0.02))),
        (derived.validation_share, (1_000_000, 0.02), 0.002),
        *((derived.rows_per_step, (rows, 1, 4), count) for rows, count in ((1.0, 1), (199.0, 1), (250.0, 2), (9e6, 4))),
        *((derived.rows_per_step, (rows, 3, 4), count) for rows, count in ((50.0, 3), (9e6, 6))),
        *((derived.warmup_share, (steps, 0.03), share) for steps, share in ((1, 0.1), (200, 0.05), (10_000, 0.03))),
    ],
)
def test_few_data_have_a_larger_held_out_part_smaller_steps_and_a_longer_warm_up(function, arguments, expected) -> None:
    assert function(*arguments) == expected


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
