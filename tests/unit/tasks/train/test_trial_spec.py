"""The trial of a training, built from settings, flags and a benchmark; each error names the setting."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from bench.records import choose, suite
from tasks.errors import UsageError
from tasks.fleet import declared, trial_spec
from tests.unit.tasks.train.conftest import MakeSettings


@pytest.mark.parametrize(("changed", "named"), [({"model": "m"}, "model.path"), ({"kind": "loading"}, "kind loading")])
def test_a_configuration_of_something_else_is_refused(
    changed: dict[str, Any], named: str, settings: MakeSettings
) -> None:
    configured = settings()
    (measured,) = choose(suite("quick", "tiny", configured.model.path, "d"), ("optimized",))
    with pytest.raises(UsageError, match=re.escape(named)):
        trial_spec.check_trial(configured, dataclasses.replace(measured, **changed), "train: --from: r")


@pytest.mark.parametrize(
    ("train", "asked", "message"),
    [
        ({}, 9, "train: --workers: 9 workers, but the fleet has 4"),
        ({"workers": 5}, None, "train.workers: 5 workers, but the fleet has 4"),
        ({"rows_per_step": 2}, None, "train.rows_per_step: 2 packed rows in a step, too few for 4 workers"),
    ],
)
def test_an_invalid_number_of_workers_is_an_error(
    train: dict[str, Any], asked: int | None, message: str, settings: MakeSettings
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.worker_count(settings(**train), asked)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"early_stopping_patience": 2}, "train.early_stopping_patience: expected 0"),
        ({"data": ["a", "a"]}, "train.data: expected at least one data file, each named once"),
        ({"validation_fraction": 0.9}, "train.validation_fraction: expected a number from 0 to 0.5, or auto, found"),
    ],
)
def test_the_error_for_an_invalid_setting_names_it(train: dict[str, Any], message: str, settings: MakeSettings) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        trial_spec.make_trial(settings(**train), 1)


def test_a_chat_template_is_read_from_its_file(settings: MakeSettings, tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ messages }}", encoding="utf-8-sig")
    trial = trial_spec.make_trial(settings(chat_template=str(path), system="s"), 1)
    assert trial.training is not None
    assert (trial.training.data.chat_template, trial.training.data.system) == ("{{ messages }}", "s")
    for content in (b" \n", b"\xff", b"x" * (declared.MAX_TEMPLATE_BYTES + 1)):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"^train\.chat_template: "):
            trial_spec.training_data(settings(chat_template=str(path)))
    with pytest.raises(UsageError, match=r"^train\.chat_template: .*No such file"):
        trial_spec.training_data(settings(chat_template=str(tmp_path / "none")))
