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
from bench.records.bootstrap import Interval
from bench.records.result import Measurement, Metrics, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import TrialStatus
from tests.support.reports import synthetic

RUN_ID = "20261120-181500-all"
MODEL = "/models/mistralai--Mistral-7B-Instruct-v0.3"
PARAMETERS = 7_248_023_552

# Name: step time in seconds, peak bytes, useful share of the positions, MFU in percent.
TRAINING: dict[str, tuple[float, float, float, float]] = {
    "baseline": (0.541, 8.95e9, 0.17, 34.0),
    "optimized": (0.527, 8.93e9, 0.34, 32.0),
    "seq-256": (0.294, 7.01e9, 0.55, 29.0),
    "seq-1024": (1.008, 12.9e9, 0.17, 36.0),
    "seq-2048": (2.078, 21.0e9, 0.085, 36.0),
    "batch-4": (0.297, 7.01e9, 0.34, 28.0),
    "batch-16": (0.977, 12.9e9, 0.34, 35.0),
    "rank-8": (0.528, 8.89e9, 0.34, 30.0),
    "adamw": (0.515, 9.01e9, 0.34, 33.0),
    "base-bf16": (0.429, 17.4e9, 0.34, 40.0),
    "no-checkpointing": (0.391, 44.4e9, 0.34, 44.0),
    "data-workers-2": (0.5268, 8.93e9, 0.34, 33.0),
    "packed": (0.508, 8.92e9, 1.0, 34.0),
    "train": (0.204, 14.6e9, 0.99, 62.0),
}
RANK_TIMES = {1: 0.576, 2: 0.556, 4: 0.598}


def trials() -> tuple[Trial, ...]:
    """Return every trial of suite all."""
    return suite("all", "gpu", MODEL, "/data/chats.jsonl")


MEMORY_BYTES = 23_680_000_000
LIMIT_WATTS, MAX_MHZ = 150.0, 1695
SLOWDOWN = 10.4  # times of an A10 over those of the H200
OUT_OF_MEMORY = ("no-checkpointing", "seq-2048")


def write(folder: Path, run_id: str = RUN_ID) -> RunRecord:
    """Write the run; two configurations end out of memory."""
    names = ["gpu-node-1", "gpu-node-2"]
    fleet_fields = {"workers": names, "fleet_kind": "kubernetes"}
    run_fields = {"run_id": run_id, "created_at": "2026-11-20T18:15:00+00:00", "suite": "all", "profile": "gpu"}
    record = synthetic.record(trials(), **run_fields, **fleet_fields)
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder)
    free_at = dict.fromkeys(names, 0.0)  # seconds after the run's start; a worker runs one trial at a time
    for number, plan in enumerate(record.planned):
        worker = plan.worker
        result = _result(plan, worker, seed=number, run_id=run_id)
        started, wall = free_at[worker], sum(result.phases.values()) + 1.5
        free_at[worker] = started + wall + 2.0
        start = datetime(2026, 11, 20, 18, 16, tzinfo=UTC) + timedelta(seconds=started)
        synthetic.write_result(folder, replace(result, started_at=start.isoformat(), wall_time_sec=wall))
    return record


def _result(plan: PlannedTrial, worker: str, *, seed: int, run_id: str) -> TrialResult:
    """Make one trial's record without its times."""
    trial = plan.trial
    common: dict[str, Any] = {
        "trial_id": plan.trial_id,
        "trial": trial,
        "worker": worker,
        "run_id": run_id,
        "fingerprint": fingerprint(trial, worker, seed),
    }
    if trial.name in OUT_OF_MEMORY:
        reason = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.06 GiB"
        return TrialResult(status=TrialStatus.OUT_OF_MEMORY, reason=reason, log_tail=[reason], **common)
    done: dict[str, Any] = {"status": TrialStatus.SUCCEEDED, "reason": None, **common}
    if trial.kind in ("training", "distributed"):
        return _training_result(trial, done, seed)
    measured = {
        "hardware": _hardware_measurements,
        "loading": _loading_measurements,
        "inference": _inference_measurements,
    }[trial.kind](trial)
    return TrialResult(
        phases={"import": 4.1, "load": 2.0, "measure": 30.0},
        measurements=_vary([*measured, *_telemetry_measurements()], seed, SLOWDOWN),
        **done,
    )


def _vary(measurements: list[Measurement], seed: int, slower: float) -> list[Measurement]:
    """Vary measurements by half a percent, as another process would, and slow them down."""
    random = np.random.default_rng(seed + 1000)
    varied = []
    for measurement in measurements:
        factor = (
            float(np.exp(random.normal(0.0, 0.005)))
            if measurement.name.endswith(("_sec", "_tflops", "_percent"))
            else 1.0
        )
        if measurement.name.endswith(("_per_sec", "_tflops")):
            factor /= slower
        elif measurement.name.endswith("_sec"):
            factor *= slower
        spread = measurement.interval
        if spread is not None:
            ends = {name: getattr(spread, name) * factor for name in ("median", "low", "high")}
            spread = replace(spread, **ends)
        varied.append(
            replace(
                measurement, value=None if measurement.value is None else measurement.value * factor, interval=spread
            )
        )
    return varied


def fingerprint(trial: Trial, worker: str, seed: int) -> dict[str, Any]:
    """Make the fingerprint of a GPU node and trial, with the keys of a real result."""
    trains = {
        "recipe": trial.recipe,
        "recipe_notes": None,
        "optimizer": trial.optimizer,
        "trained_parameters": 13_631_488,
        "peak_vram_reserved_bytes": 9_000_000_000 + 2**21 * seed,
    }
    return (
        synthetic.fingerprint()
        | {
            "device": "cuda",
            "cuda": "13.0",
            "gpus_visible": 1,
            "gpu_name": "NVIDIA A10",
            "gpu_uuid": f"GPU-{worker}",
            "gpu_driver": "580.159.04",
            "gpu_ecc": True,
            "gpu_compute_capability": "9.0",
            "gpu_memory_bytes": MEMORY_BYTES,
            "gpu_memory_used_at_start_bytes": 2**20 * seed,
            "gpu_power_limit_watts": LIMIT_WATTS,
            "gpu_max_sm_clock_mhz": MAX_MHZ,
            "compute_dtype": "bfloat16",
            "load_average_1min_at_start": 0.1 * seed,
            "memory_total_bytes": 252_000_000_000 + 4096 * int(worker[-1]),
            "model_parameters": PARAMETERS,
            "telemetry_cost_percent": 0.2 + 0.01 * seed,
            "torch": "2.11.0+cu130",
            "trial_digest": trial.digest(),
        }
        | (trains if trial.kind in ("training", "distributed") else {})
    )


def _training_result(trial: Trial, done: dict[str, Any], seed: int) -> TrialResult:
    random = np.random.default_rng(seed)
    ranked = trial.kind == "distributed"
    step_sec, peak, useful, mfu = (RANK_TIMES[trial.world_size], 9.0e9, 0.34, 31.0) if ranked else TRAINING[trial.name]
    step_sec *= SLOWDOWN
    warm = _steps(trial, trial.warmup_steps, step_sec * 1.3, useful, random, 0)
    steps = _steps(trial, trial.measured_steps, step_sec, useful, random, trial.warmup_steps)
    metrics: Metrics = synthetic.metrics_of(steps, peak_vram_bytes=int(peak))
    measurements = (
        _distributed_measurements(trial, step_sec) if ranked else _training_measurements(trial, step_sec, mfu, peak)
    )
    return TrialResult(
        phases={"import": 4.1, "load": 2.0, "data": 0.4, "warmup": step_sec * 7, "measure": step_sec * 31},
        warmup=warm,
        steps=steps,
        metrics=metrics,
        measurements=_vary([*measurements, *_telemetry_measurements()], seed, 1.0),
        **done,
    )


def _steps(trial: Trial, count: int, step_sec: float, useful: float, random: np.random.Generator, before: int) -> Any:
    times = step_sec * np.exp(random.normal(0.0, 0.004, count)) * np.where(random.random(count) < 0.05, 1.02, 1.0)
    tokens = trial.tokens_per_step
    packs = trial.layout == "pack"
    samples = trial.micro_batch_size * (5.4 if packs else 1.0)
    loss = 1.05 + 0.9 * np.exp(-0.09 * (np.arange(count) + before)) + random.normal(0.0, 0.03, count)
    texts = np.random.default_rng(before)  # every trial reads the same texts in the same order
    shares = np.ones(count) if packs else np.clip(texts.normal(useful, useful * 0.08, count), 0.01, 1.0)
    return synthetic.Steps(
        step_time_sec=[float(value) for value in times],
        loss=[float(value) for value in loss],
        samples=[float(value) for value in (random.normal(samples, 0.6, count) if packs else np.full(count, samples))],
        tokens=[tokens] * count,
        useful_tokens=[int(tokens * share) for share in shares],
    )


def _repeated(name: str, value: float, spread: float = 0.01, n: int = 20, **context: Any) -> Measurement:
    interval = Interval(
        median=value,
        low=value * (1 - spread),
        high=value * (1 + spread),
        n=n,
    )
    share, note = context.pop("share", None), context.pop("note", None)
    return Measurement(name=name, value=value, interval=interval, share_percent=share, context=context, note=note)


def _single(name: str, value: float | None, note: str | None = None, **context: Any) -> Measurement:
    return Measurement(name=name, value=value, context=context, note=note)


def _training_measurements(trial: Trial, step_sec: float, mfu: float, peak: float) -> list[Measurement]:
    measurements = [
        _repeated(f"step_{phase}_sec", step_sec * share, n=30, clock="CUDA events")
        for phase, share in (("data", 0.004), ("forward", 0.31), ("backward", 0.66), ("optimizer", 0.026))
    ]
    measurements.append(_repeated("matmul_tflops", 735.0, 0.02, share=74.3, dtype="bf16", size=8192))
    measurements.append(_repeated("mfu_percent", mfu, n=30, flop_per_token=4.7e10, matmul_dtype="bf16", formula="PaLM"))
    measurements.append(_single("predicted_peak_vram_bytes", peak * (1.06 if trial.max_seq_len < 1024 else 0.93)))
    return measurements


def _hardware_measurements(_trial: Trial) -> list[Measurement]:
    rates = {"fp32": (51.0, 76.0), "tf32": (339.0, 69.0), "bf16": (693.0, 70.0), "fp16": (702.0, 71.0)}
    rates |= {"int8": (896.0, 45.0), "fp8": (1241.0, 63.0)}
    measurements = [
        _repeated("matmul_tflops", rate * reached, share=share * reached, dtype=dtype, size=size)
        for dtype, (rate, share) in rates.items()
        for size, reached in ((2048, 0.62), (4096, 0.93), (8192, 1.0))
    ]
    measurements.append(_repeated("device_copy_gb_per_sec", 4253.0, share=88.6, bytes=1 << 30))
    measurements.append(_repeated("host_to_device_gb_per_sec", 55.4, bytes=1 << 30, pinned=True))
    measurements.append(_repeated("device_to_host_gb_per_sec", 55.3, bytes=1 << 30, pinned=True))
    return measurements


def _loading_measurements(trial: Trial) -> list[Measurement]:
    is_nf4 = trial.base_precision == "nf4"
    precision = {"precision": trial.base_precision}
    warm = {"cache": "warm", **precision}
    memory_bytes = 4.14e9 if is_nf4 else 14.5e9
    return [
        _single("first_load_time_sec", 7.56 if is_nf4 else 8.93, cache="as found", **precision),
        _repeated("load_time_sec", 1.97 if is_nf4 else 2.56, 0.03, 3, **warm),
        _single("device_memory_bytes", memory_bytes, **precision),
        _single("device_memory_peak_bytes", memory_bytes * 1.08, **precision),
    ]


def _inference_measurements(trial: Trial) -> list[Measurement]:
    is_nf4 = trial.base_precision == "nf4"
    rates = {1: 29.0, 2: 58.5, 4: 116.0, 8: 181.0, 16: 346.0, 32: 695.0}
    if not is_nf4:
        rates = {1: 59.1, 2: 118.0, 4: 235.0, 8: 467.0, 16: 949.0, 32: 1905.0}
    base = {"precision": trial.base_precision, "prompt_tokens": trial.max_seq_len, "new_tokens": trial.new_tokens}
    measurements = []
    for batch, rate in rates.items():
        first = (0.024 + 0.0095 * batch) * (1.0 if is_nf4 else 0.84)
        for path, relative in (("base", 1.0), ("adapter", 0.9)):
            context = {"batch": batch, "path": path, **base}
            measurements.append(_repeated("time_to_first_token_sec", first, 0.02, 5, **context))
            measurements.append(_repeated("decode_tokens_per_sec", rate * relative, 0.02, 5, **context))
    return measurements


def _distributed_measurements(trial: Trial, step_sec: float) -> list[Measurement]:
    world = trial.world_size
    ranks: dict[str, Any] = {"world_size": world, "backend": "nccl"}
    samples = trial.micro_batch_size * world / step_sec
    return [_repeated("global_samples_per_sec", samples, 0.015, 30, **ranks)]


def _telemetry_measurements() -> list[Measurement]:
    window = {"window": "measure"}
    return [
        _repeated("gpu_utilization_percent", 97.0, **window),
        _repeated("gpu_memory_used_bytes", 9.9e9, **window),
        _repeated("gpu_power_watts", 0.88 * LIMIT_WATTS, **window),
        _repeated("gpu_sm_clock_mhz", 0.86 * MAX_MHZ, **window),
        _repeated("gpu_temperature_celsius", 58.0, **window),
        _repeated("process_cpu_percent", 103.0, **window),
        _single("gpu_power_capped_percent", 76.0, **window),
    ]
