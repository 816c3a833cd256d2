"""Settings of a fine-tuning are validated at construction and round-trip through files."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.records import Trial, TrialError
from bench.records.status import ReasonCode
from bench.records.training import Training, TrainingData, TrainingRecord
from tests.support.cases import Case, load_cases
from tests.support.reports.training_run import RECORD

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


def test_the_record_comes_back_from_its_file_equal(tmp_path: Path):
    stopped = dataclasses.replace(
        RECORD, status="PREEMPTED", reason="stopped by SIGTERM", stop="", reason_code=ReasonCode.WORKER_STOPPED,
        adapter_step=None, adapter_sha256=None,
        adapter_files={}, communication_measured_percent=None, peak_vram_bytes=None,
    )  # fmt: skip
    for record in (RECORD, stopped):
        assert TrainingRecord.read(record.write(tmp_path)) == record
