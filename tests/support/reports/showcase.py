"""Synthetic run with every workload on two A10 nodes, to inspect figures.

The structure of every record (names, contexts, phases) is that of `bench`. The step times follow docs/measurements.md
(one H200), slowed down; do not quote them.
"""

from pathlib import Path
from typing import Any

from bench.records import Trial, suite
from bench.records.result import TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import TrialStatus
from tests.support.reports import synthetic

RUN_ID = "20261120-181500-all"
MODEL = "/models/mistralai--Mistral-7B-Instruct-v0.3"

# Name: step time in seconds, peak bytes, useful share of the positions.
TRAINING: dict[str, tuple[float, float, float]] = {
    "baseline": (0.541, 8.95e9, 0.17),
    "optimized": (0.527, 8.93e9, 0.34),
    "seq-256": (0.294, 7.01e9, 0.55),
    "seq-1024": (1.008, 12.9e9, 0.17),
    "batch-4": (0.297, 7.01e9, 0.34),
    "batch-16": (0.977, 12.9e9, 0.34),
    "rank-8": (0.528, 8.89e9, 0.34),
    "adamw": (0.515, 9.01e9, 0.34),
    "base-bf16": (0.429, 17.4e9, 0.34),
    "data-workers-2": (0.5268, 8.93e9, 0.34),
    "packed": (0.508, 8.92e9, 1.0),
    "train": (0.204, 14.6e9, 0.99),
    "ddp-1": (0.576, 9.0e9, 0.34),
    "ddp-2": (0.556, 9.0e9, 0.34),
    "ddp-4": (0.598, 9.0e9, 0.34),
}
OUT_OF_MEMORY = ("no-checkpointing", "seq-2048")
SLOWDOWN = 10.4  # times of an A10 over those of the H200


def write(folder: Path, run_id: str = RUN_ID) -> RunRecord:
    """Write the run; two configurations end out of memory."""
    names = ["gpu-node-1", "gpu-node-2"]
    fields = {"run_id": run_id, "created_at": "2026-11-20T18:15:00+00:00", "suite": "all", "profile": "gpu"}
    trials = suite("all", "gpu", MODEL, "/data/chats.jsonl")
    record = synthetic.record(trials, workers=names, fleet_kind="kubernetes", **fields)
    results = [_result(plan, seed=number, run_id=run_id) for number, plan in enumerate(record.planned)]
    return synthetic.write_results(folder, record, results)


def _result(plan: PlannedTrial, *, seed: int, run_id: str) -> TrialResult:
    trial, worker = plan.trial, plan.worker or ""
    common: dict[str, Any] = {"run_id": run_id, "worker": worker, "fingerprint": fingerprint(trial, worker, seed)}
    if trial.name in OUT_OF_MEMORY:
        failed = {"status": TrialStatus.OUT_OF_MEMORY, "reason": "CUDA out of memory", "log_tail": ["no room"]}
        return synthetic.result(plan, phases={}, **failed, **common)
    measurements = [*synthetic.measurements_of(trial), *synthetic.telemetry()]
    if trial.name not in TRAINING:
        return synthetic.result(plan, measurements=measurements, **common)
    seconds, peak, useful = TRAINING[trial.name]
    seconds *= SLOWDOWN
    if trial.kind == "training":
        predicted = peak * (1.06 if trial.max_seq_len < 1024 else 0.93)
        measurements.append(synthetic.measurement("predicted_peak_vram_bytes", predicted))
    return synthetic.result(
        plan,
        step_time_sec=seconds,
        seed=seed,
        steps_like={"jitter": 0.004, "slow": 1.02, "useful": useful},
        peak_vram_bytes=int(peak),
        measurements=measurements,
        **common,
    )


def fingerprint(trial: Trial, worker: str, seed: int) -> dict[str, Any]:
    """Make the fingerprint of a GPU node and trial: facts that all share, and some that differ between trials."""
    trains = {"recipe": trial.recipe, "recipe_notes": None, "optimizer": trial.optimizer}
    return {
        **synthetic.fingerprint(
            device="cuda", gpu_name="NVIDIA A10", gpu_driver="580.159.04", torch="2.11.0+cu130", cuda="13.0"
        ),
        "gpu_uuid": f"GPU-{worker}",
        "gpu_memory_bytes": 23_680_000_000,
        "load_average_1min_at_start": 0.1 * seed,
        "memory_total_bytes": 252_000_000_000 + 4096 * int(worker[-1]),
        "model_parameters": 7_248_023_552,
        "trial_digest": trial.digest(),
        **(trains if trial.kind in ("training", "distributed") else {}),
    }
