"""What a report says of a training: honest words for each end, and predicted beside actual."""

import dataclasses
import json
from pathlib import Path

import pytest

from bench.records import Trial
from bench.records.run import PlannedTrial, RunRecord
from bench.records.training import Evaluation, TrainedSteps, Training, TrainingRecord
from bench.records.training_data import TrainingData
from reports.read.run import ReportError
from reports.training import told

DATA = TrainingData(files=["d.jsonl"], weights=[1.0], max_seq_len=64, validation_share=0.1)
TRIAL = Trial(
    name="train", reason="the training", suite="train", profile="tiny", model="m", data="d.jsonl", kind="finetune",
    world_size=2, training=Training(data=DATA, rows_per_step=4),
)  # fmt: skip
RECORD = TrainingRecord(
    run_id="r", trial_id="train", attempt=2, world_size=2, status="SUCCEEDED", reason=None, stop="finished",
    steps_planned=2, steps_done=2,
    steps=TrainedSteps(
        step=[1, 2], loss=[2.0, 1.0], learning_rate=[0.1, 0.1], gradient_norm=[1.0, 1.0], targets=[5, 6],
        tokens=[10, 12], samples=[1, 1], step_time_sec=[1800.0, 1800.0],
    ),
    evaluations=[
        Evaluation(step=0, loss=2.0, low=1.9, high=2.1, rows=9, targets=50, is_best=False),
        Evaluation(
            step=2, loss=1.5, low=1.4, high=1.6, rows=9, targets=50, is_best=True,
            change=-0.5, change_low=-0.6, change_high=-0.4,
        ),
    ],
    checkpoints=[], restarts=[], answers=[], data=None, adapter_step=2, adapter_sha256="ab" * 32,
    adapter_files={"adapter_model.safetensors": 2_000_000}, communication_predicted_percent=None,
    communication_measured_percent=7.0, peak_vram_bytes=3 << 30, peak_rss_bytes=None, seconds=3600.0,
)  # fmt: skip
FORESEEN = {"steps": 2, "seconds": 3500.0, "usd": 3.9, "usd_per_gpu_hour": 2.0, "price": "$2.00", "peak_bytes": 3 << 30}


def a_run(folder: Path, record: TrainingRecord = RECORD) -> Path:
    RunRecord(
        run_id="r", created_at="2026-11-22T00:00:00+00:00", suite="train", profile="tiny", spread="replicate",
        fleet_kind="local", workers=["worker-0", "worker-1"],
        planned=[PlannedTrial(trial_id="train", trial=TRIAL, worker="worker-0")], settings={},
        provenance={"inputs": {"device": "NVIDIA A10", "foreseen": FORESEEN}},
    ).write(folder)  # fmt: skip
    trial = folder / "trials" / "train"
    trial.mkdir(parents=True)
    record.write(trial)
    events = [
        {"time": "2026-11-22T01:00:00+00:00", "event": "started", "attempt": 1, "worker": "worker-0", "workers": 2},
        {"time": "2026-11-22T01:30:00+00:00", "event": "retried", "attempt": 1, "reason": "killed by SIGKILL"},
        {"time": "2026-11-22T01:30:00+00:00", "event": "started", "attempt": 2, "worker": "worker-0", "workers": 2},
        {"time": "2026-11-22T01:31:00+00:00", "event": "restarted", "attempt": 2, "step": 1, "lost_sec": 90.0,
         "usd": 0.1, "workers": 2},
        {"time": "2026-11-22T02:00:00+00:00", "event": "ended", "attempt": 2, "end": "SUCCEEDED", "reason": None},
    ]  # fmt: skip
    lines = [json.dumps({"trial_id": "train", **event}) for event in events]
    (folder / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_the_figures_of_a_training_with_a_restart(tmp_path: Path) -> None:
    found = told.read(a_run(tmp_path))
    assert told.headline(found) == "Trained: the held-out loss fell by 0.5000 nats a token (0.4000 to 0.6000)"
    lines = dict(told.lines(found))
    assert lines["workers"] == "2, on NVIDIA A10"
    assert lines["workers were held for"] == "2 hours, all workers and attempts together"
    assert lines["cost"] == "$4.00 at $2.00"
    assert lines["restarts"] == "1, 90.0 s since their checkpoints, $0.1000"
    assert told.compared(found)[1:] == [
        ("time of the steps", "0.972 hours", "1 hours"),
        ("dollars for the steps", "$3.90", "$4.00"),
        ("peak GPU memory", "3.00 GiB", "3.00 GiB"),
        ("communication", "unknown", "7.0 %"),
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"change": 0.5, "change_low": 0.4, "change_high": 0.6}, "it got worse: the held-out loss rose by 0.5000"),
        ({"change": -0.1, "change_low": -0.3, "change_high": 0.1}, "no change of the held-out loss is shown: -0.1000"),
        ({"change": -0.1, "change_low": None, "change_high": None}, "nothing is known of what it learned"),
    ],
)
def test_a_loss_that_did_not_fall_is_not_called_a_success(
    changes: dict[str, float | None], words: str, tmp_path: Path
) -> None:
    last = dataclasses.replace(RECORD.evaluations[1], **changes)
    record = dataclasses.replace(RECORD, evaluations=[RECORD.evaluations[0], last])
    assert words in told.headline(told.read(a_run(tmp_path, record)))


def test_a_training_that_ended_otherwise_says_so_first(tmp_path: Path) -> None:
    record = dataclasses.replace(RECORD, status="FAILED", reason="the loss is not finite", steps_done=1)
    found = told.read(a_run(tmp_path, record))
    assert told.headline(found) == ("The training did not end well: FAILED after 1 of 2 steps: the loss is not finite")


def test_a_training_that_was_not_collected_says_what_to_type(tmp_path: Path) -> None:
    folder = a_run(tmp_path)
    (folder / "trials" / "train" / "training.json").unlink()
    with pytest.raises(ReportError, match="`inv collect --run="):
        told.read(folder)
