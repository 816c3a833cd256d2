"""`inv train --from`: the configuration that a benchmark recommends."""

import dataclasses
from pathlib import Path

import pytest

from bench.records.quality import LossCheck, LossPair, QualityRecord
from bench.records.run import RunRecord
from reports.read.run_folder import load
from reports.summary.summarize import summarize
from tasks.errors import UsageError
from tasks.fleet import trial_spec
from tasks.fleet.declared import CONFIGURATION_FIELDS
from tasks.settings.layers import Settings
from tasks.train import recommended
from tests.support.reports import synthetic
from tests.unit.tasks.train.conftest import MakeSettings

RUN = "20261120-181600-quick"


def write_benchmark(settings: Settings, *, names: tuple[str, ...] = ("baseline", "optimized"), **changed: str) -> Path:
    """Write a run of the settings' model in which `optimized` is 4x as fast."""
    trials = tuple(
        dataclasses.replace(each, **{"model": settings.model.path, **changed})
        for each in synthetic.quick()
        if each.name in names
    )
    folder = settings.results_folder / RUN
    synthetic.exact_run(folder, run_id=RUN, trials=trials)
    return folder


def test_the_recommended_configuration_is_taken_over_and_the_rest_comes_from_the_settings(
    settings: MakeSettings,
) -> None:
    configured = settings(learning_rate=5e-4)
    folder = write_benchmark(configured)
    row = next(row for row in summarize(load(folder)).rows if row.label == "optimized")
    trial, lines = recommended.recommended_trial(configured, configured.results_folder / RUN)
    training = trial_spec.make_trial(configured, 1, trial)
    taken = {name: getattr(training, name) for name in CONFIGURATION_FIELDS}
    expected = {name: getattr(row.trial, name) for name in CONFIGURATION_FIELDS}
    assert taken == expected | {"max_seq_len": 512, "micro_batch_size": 8}
    assert training.derive == ("validation_share", "rows_per_step", "warmup_share")
    assert training.learning_rate == 5e-4
    assert summarize(load(folder)).train_command == f"inv train --from={RUN}"
    assert len(lines) == 2
    shorter = dataclasses.replace(trial, max_seq_len=configured.train.max_seq_len - 1)
    assert len(list(recommended.describe_source(configured, shorter, RUN))) == 2


def test_plain_training_is_recommended_where_it_was_not_measured_and_then_takes_over_nothing(
    settings: MakeSettings,
) -> None:
    configured = settings()
    trial, lines = recommended.recommended_trial(configured, write_benchmark(configured, profile="gpu"))
    assert trial is None
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "elsewhere"}, f"{RUN}: is for the model elsewhere, but model.path is "),
        ({"profile": "gpu", "recipe": "stock"}, f"{RUN}: profile gpu, but bench.profile is tiny"),
        ({"names": ("optimized",)}, f"{RUN}: recommends no configuration"),
    ],
)
def test_a_benchmark_without_a_usable_recommendation_is_refused(
    settings: MakeSettings, changed: dict[str, str], message: str
) -> None:
    configured = settings()
    write_benchmark(configured, **changed)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        recommended.recommended_trial(configured, configured.results_folder / RUN)


def test_configurations_that_are_all_withheld_are_named(settings: MakeSettings) -> None:
    configured = settings()
    folder = write_benchmark(configured)
    trial = next(each for each in RunRecord.read(folder / "run.json").planned if each.trial.name == "optimized").trial
    pairs = [LossPair(seed=seed, reference=2.0, loss=2.02) for seed in range(3)]
    check = LossCheck(label="optimized", trial=trial, reference=trial, run_ids=["q"], planned_pairs=9, pairs=pairs)
    QualityRecord(max_increase_percent=0.15, steps=60, checks=[check]).write(folder)
    with pytest.raises(UsageError, match="optimized") as refused:
        recommended.recommended_trial(configured, configured.results_folder / RUN)
    assert f"inv bench --quality --resume={RUN}" in (refused.value.remedy or "")
