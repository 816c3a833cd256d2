"""What the plan shows of trials that are not trainings."""

import pytest

from bench.records import SUITES, suite
from tasks.fleet.plan import KINDS_WITH_STEPS, size_of, steps_of


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("quick", ["128 x 4", "64 x 8"]),
        ("hardware", ["-"]),
        ("loading", ["nf4", "bf16"]),
        ("inference", ["64 + 64 x 32", "64 + 64 x 32"]),
        ("distributed", ["64 x 8 x 1", "64 x 8 x 2", "64 x 8 x 4"]),
    ],
)
def test_each_kind_says_what_it_works_on(name: str, sizes: list[str]) -> None:
    assert [size_of(trial) for trial in suite(name, "tiny", "m", "d")] == sizes


@pytest.mark.parametrize("name", SUITES)
def test_only_trials_that_train_have_steps(name: str) -> None:
    for trial in suite(name, "tiny", "m", "d"):
        assert (steps_of(trial) == "-") == (trial.kind not in KINDS_WITH_STEPS)
