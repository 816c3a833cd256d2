"""Collected run folder of a training: two steps of two workers, a restart, held-out losses."""

import dataclasses
import json
from pathlib import Path

from bench.records import Trial
from bench.records.adapter import AdapterCheck, ServedForm
from bench.records.run import PlannedTrial, RunRecord
from bench.records.score import ScoredRow, ScoreFault, ScoreMeasure, TrainingScore
from bench.records.training import (
    Evaluation,
    TrainedSteps,
    Training,
    TrainingData,
    TrainingRecord,
)
from bench.records.version import VERSION

DATA = TrainingData(files=["d.jsonl"], max_seq_len=64, validation_share=0.1)
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
    restarts=[], data=None, adapter_step=2, adapter_sha256="ab" * 32,
    adapter_files={"adapter_model.safetensors": 2_000_000}, communication_measured_percent=7.0,
    peak_vram_bytes=3 << 30,
)  # fmt: skip
MEASURE = ScoreMeasure(
    name="score", rows=2, before=0.0, before_low=0.0, before_high=0.8, after=0.75, after_low=0.5, after_high=1.0,
    change=0.75, change_low=0.5, change_high=1.0,
)  # fmt: skip
ROW = ScoredRow(
    row=1, place="d.jsonl: line 4", prompt="<b>p</b>", expected="e", before="b", after="a", before_score=0.0,
    after_score=0.5,
)  # fmt: skip
UNSCORED = dataclasses.replace(ROW, row=3, after_score=None, fault=ScoreFault.RAISED, detail="KeyError: 'x'")
SCORE = TrainingScore(
    method="json", measures=[MEASURE, dataclasses.replace(MEASURE, name="valid JSON")],
    places=["d.jsonl: line 4", "d.jsonl: line 5", "d.jsonl: line 6"], before=[0.0, 0.0, 0.0], after=[0.5, 1.0, None],
    shown=[ROW], unscored=[UNSCORED], unscored_rows=1,
)  # fmt: skip
SCORED = dataclasses.replace(RECORD, score=SCORE)
FORECAST = {"steps": 2, "seconds": 3500.0, "usd": 3.9, "usd_per_gpu_hour": 2.0, "price": "$2.00", "peak_bytes": 3 << 30}


def write_run_with_adapter(folder: Path) -> Path:
    """Write a run with its collected adapter."""
    adapter = write_run(folder) / "adapter"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(b"weights")
    return folder


def write_run(folder: Path, record: TrainingRecord = RECORD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    RunRecord(
        run_id="r", created_at="2026-11-22T00:00:00+00:00", suite="train", profile="tiny",
        fleet_kind="local", is_on_one_machine=True, workers=["worker-0", "worker-1"],
        planned=[PlannedTrial(trial_id="train", trial=TRIAL, worker="worker-0")], settings={},
        provenance={
            "inputs": {
                "device": "NVIDIA A10", "forecast": FORECAST, "job": {"shared": "/runs", "turn": 1, "after": 0},
            }
        },
    ).write(folder)  # fmt: skip
    trial = folder / "trials" / "train"
    trial.mkdir(parents=True)
    record.write(trial)
    events = [
        {"time": "2026-11-22T01:00:00+00:00", "event": "started", "attempt": 1, "worker": "worker-0"},
        {"time": "2026-11-22T01:30:00+00:00", "event": "retried", "attempt": 1, "reason": "killed by SIGKILL"},
        {"time": "2026-11-22T01:30:00+00:00", "event": "started", "attempt": 2, "worker": "worker-0"},
        {"time": "2026-11-22T01:31:00+00:00", "event": "restarted", "attempt": 2, "step": 1, "lost_sec": 90.0,
         "usd": 0.1},
        {"time": "2026-11-22T02:00:00+00:00", "event": "ended", "attempt": 2, "end": "SUCCEEDED", "reason": None},
    ]  # fmt: skip
    lines = [json.dumps({"version": VERSION, "trial_id": "train", **event}) for event in events]
    (folder / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    return folder


FORM = ServedForm(
    name="trained", loss=2.0, low=1.9, high=2.1, change=None, change_low=None, change_high=None, answers=[], unended=0,
)  # fmt: skip


def write_checked(folder: Path, examples: dict[str, float], *merged: ServedForm) -> Path:
    """Write a training with these losses per token; each example has ten targets."""
    AdapterCheck(
        adapter_sha256=RECORD.adapter_sha256 or "", merged=None, end_ids=[2],
        prompts=[], questions=[], forms=[FORM, *merged], examples=list(examples),
        losses=[10 * loss for loss in examples.values()], targets=[10] * len(examples),
        device="CPU", arithmetic="float32",
    ).write(write_run(folder))  # fmt: skip
    return folder
