"""Settings of a fine-tuning are validated at construction and round-trip through files."""

import json

import pytest

from bench.records import Trial, TrialError
from bench.records.training import Training, TrainingData
from tests.support.cases import Case, load_cases

DATA = TrainingData(files=["chats.jsonl"], max_seq_len=64, validation_share=0.1)


def training(**changes) -> Training:
    return Training(**{"data": DATA, "rows_per_step": 8} | changes)


@pytest.mark.parametrize("case", load_cases(__file__, "impossible_trainings.yaml"))
def test_a_value_out_of_range_or_of_the_wrong_type_is_refused_by_key(case: Case):
    for value in case["input"]:
        with pytest.raises(TrialError, match=rf"^{case['name']}: expected"):
            training(**{case["name"]: tuple(value) if isinstance(value, list) else value})


@pytest.mark.parametrize("changes", [{"evaluate_every": 5}, {"evaluate_every": 5, "patience": 2}])
def test_evaluations_need_data_that_is_held_out(changes):
    nothing = TrainingData(files=["chats.jsonl"], max_seq_len=64)
    with pytest.raises(TrialError, match=r"^(evaluate_every|patience): expected 0"):
        training(data=nothing, **changes)


def test_a_fine_tuning_round_trips_and_needs_its_field(make_trial):
    trial = make_trial(kind="finetune", world_size=4, training=training(max_hours=2.0))
    assert Trial.from_json(json.loads(trial.to_text())) == trial
    pinned = make_trial(kind="finetune", training=training(input_digests={"chats.jsonl": "0" * 64}))
    assert Trial.from_json(json.loads(pinned.to_text())) == pinned
    with pytest.raises(TrialError, match=r"^training: expected .*finetune"):
        make_trial(kind="finetune")
