"""Inputs of an attempt that differ from the plan's, or from those of the first attempt, are never trained on."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench.data.inputs import InputError, InputRejected
from bench.records import Trial
from bench.records.atomic_files import sha256_of
from bench.records.training import DerivedSettings
from bench.workloads.finetune import training_set
from bench.workloads.finetune.training_set import FirstAttempt
from tests.support import tiny_training

DIGESTS = {"model": "a" * 64, "chats.jsonl": "b" * 64}
OTHER = {**DIGESTS, "chats.jsonl": "c" * 64}


@pytest.fixture
def planned(tiny_inputs: tuple[Path, Path], tmp_path: Path) -> Trial:
    """A trial with the digests of its inputs, over a copy of the data that a test may replace."""
    folder, data = tiny_inputs
    copy = tmp_path / data.name
    copy.write_bytes(data.read_bytes())
    trial = tiny_training.plan(folder, copy)
    model, _, _ = training_set.check_inputs(trial)
    return with_training(trial, input_digests={str(folder): model.sha256, str(copy): sha256_of(copy)})


def with_training(trial: Trial, **changes: Any) -> Trial:
    return dataclasses.replace(trial, training=dataclasses.replace(training_set.training_of(trial), **changes))


def test_replaced_data_is_rejected_before_and_after_the_check_of_the_inputs(planned: Trial, tmp_path: Path) -> None:
    training_set.check_inputs(planned)
    training_set.load(planned, tmp_path / "examples")
    tiny_training.make_data(Path(planned.data), lines=61)
    with pytest.raises(InputRejected, match=planned.data):
        training_set.check_inputs(planned)
    for _ in range(2):  # the second time from the cache
        with pytest.raises(InputRejected, match=planned.data):
            training_set.load(planned, tmp_path / "examples")
    with_new_plan = with_training(planned, input_digests={})
    training_set.check_inputs(with_new_plan)
    training_set.load(with_new_plan, tmp_path / "examples")


def test_a_replaced_model_is_rejected(planned: Trial) -> None:
    digests = {**training_set.training_of(planned).input_digests, planned.model: "0" * 64}
    with pytest.raises(InputRejected, match=planned.model):
        training_set.check_inputs(with_training(planned, input_digests=digests))


def test_the_first_attempt_is_kept_for_later_ones(tmp_path: Path) -> None:
    assert FirstAttempt.read(tmp_path) is None
    first = FirstAttempt(digests=DIGESTS, fitted=DerivedSettings(held_layers=3, gradient_checkpointing=False))
    first.write(tmp_path)
    assert FirstAttempt.read(tmp_path) == first
    with pytest.raises(InputRejected, match=r"^chats\.jsonl"):
        training_set.check_digests(first.digests, OTHER)


@pytest.mark.parametrize("content", [b"", b'{"digests": 1}'])
def test_an_unreadable_first_attempt_is_an_error_with_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / training_set.INPUTS_FILE).write_bytes(content)
    with pytest.raises(InputError, match=training_set.INPUTS_FILE):
        FirstAttempt.read(tmp_path)
