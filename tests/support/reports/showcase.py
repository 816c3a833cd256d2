"""Synthetic run with every workload on two A10 nodes, to inspect figures.

The structure of every record (names, contexts, phases) is that of `bench`. The numbers follow docs/measurements.md (one
H200), slowed down, with seeded noise; do not quote them.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import Trial, suite
from bench.records.result import Measurement, TrialResult
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
    free_at = dict.fromkeys(names, 0.0)  # seconds after the run's start; a worker runs one trial at a time
    results = []
    for number, plan in enumerate(record.planned):
        worker = plan.worker
        result = _result(plan, worker, seed=number, run_id=run_id)
        started, wall = free_at[worker], sum(result.phases.values()) + 1.5
        free_at[worker] = started + wall + 2.0
        start = datetime(2026, 11, 20, 18, 16, tzinfo=UTC) + timedelta(seconds=started)
        results.append(replace(result, started_at=start.isoformat(), wall_time_sec=wall))
    return synthetic.write_results(folder, record, results)


def _result(plan: PlannedTrial, worker: str, *, seed: int, run_id: str) -> TrialResult:
    """Make one trial's record without its times."""
    trial = plan.trial
    common: dict[str, Any] = {"run_id": run_id, "worker": worker, "fingerprint": fingerprint(trial, worker, seed)}
    if trial.name in OUT_OF_MEMORY:
        reason = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.06 GiB"
        failed = {"status": TrialStatus.OUT_OF_MEMORY, "reason": reason, "log_tail": [reason]}
        return synthetic.result(plan, phases={}, **failed, **common)
    measurements = _vary([*synthetic.measurements_of(trial), *synthetic.telemetry()], seed)
    if trial.name not in TRAINING:
        return synthetic.result(plan, phases={"load": 6.1, "measure": 30.0}, measurements=measurements, **common)
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
        phases={"load": 6.1, "data": 0.4, "warmup": seconds * 7, "measure": seconds * 31},
        measurements=measurements,
        **common,
    )


def _vary(measurements: list[Measurement], seed: int) -> list[Measurement]:
    """Vary times and rates by half a percent, as another process would, and slow them down."""
    random, varied = np.random.default_rng(seed + 1000), []
    for measurement in measurements:
        is_rate = measurement.name.endswith(("_per_sec", "_tflops"))
        factor = float(np.exp(random.normal(0.0, 0.005))) / SLOWDOWN if is_rate else 1.0
        if measurement.name.endswith("_sec") and not is_rate:
            factor = float(np.exp(random.normal(0.0, 0.005))) * SLOWDOWN
        spread = measurement.interval
        if spread is not None and measurement.value is not None:
            ends = {name: getattr(spread, name) * factor for name in ("median", "low", "high")}
            measurement = replace(measurement, value=measurement.value * factor, interval=replace(spread, **ends))
        varied.append(measurement)
    return varied


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
