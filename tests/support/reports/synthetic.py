"""Synthetic runs with realistic noise, written with the same records as real ones; for tests and benchmarks.

Workers differ by a few percent, steps have jitter and are occasionally slow, the loss falls towards a floor.
Everything is seeded: the same arguments give the same bytes.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import Trial
from bench.records.bootstrap import Interval
from bench.records.result import Measurement, Metrics, Steps, TrialResult
from bench.records.run import PlannedTrial, RunRecord
from bench.records.status import TrialStatus

RUN_ID = "20260301-101500-quick"


def trial(name: str = "baseline", *, max_seq_len: int = 128, micro_batch_size: int = 4, **changed: Any) -> Trial:
    """Make a trial of the tiny profile."""
    defaults: dict[str, Any] = {
        "name": name,
        "reason": f"why {name} is measured",
        "suite": "quick",
        "profile": "tiny",
        "model": "models/demo--tiny-mistral",
        "data": "data/demo/train.jsonl",
        "max_seq_len": max_seq_len,
        "micro_batch_size": micro_batch_size,
        "warmup_steps": 3,
        "measured_steps": 15,
        "learning_rate": 2e-3,
        "deadline_sec": 300.0,
    }
    return Trial(**(defaults | changed))


def quick() -> tuple[Trial, Trial]:
    """Make the two configurations of the quick suite at tiny scale."""
    return trial("baseline"), trial("optimized", max_seq_len=64, micro_batch_size=8)


def planned(trials: tuple[Trial, ...], workers: list[str]) -> list[PlannedTrial]:
    """Plan a run: every trial on every worker."""
    return [
        PlannedTrial(trial_id=f"{trial.trial_id}.{worker}", trial=trial, worker=worker)
        for trial in trials
        for worker in workers
    ]


def record(
    trials: tuple[Trial, ...] | None = None,
    *,
    workers: int | list[str] = 4,
    **changed: Any,
) -> RunRecord:
    """Make a run's record; `workers` is a number or names. `changed` replaces fields of the record."""
    names = [f"worker-{number}" for number in range(1, workers + 1)] if isinstance(workers, int) else workers
    trials = quick() if trials is None else trials
    defaults: dict[str, Any] = {
        "run_id": RUN_ID,
        "created_at": "2026-03-01T10:15:00+00:00",
        "suite": "quick",
        "profile": "tiny",
        "fleet_kind": "local",
        "is_on_one_machine": changed.get("fleet_kind", "local") == "local",
        "workers": names,
        "planned": planned(trials, names),
        "settings": {},
        "provenance": {"git_sha": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False},
    }
    return RunRecord(**(defaults | changed))


# Round step times would look like those of a coarse timer, whose rounding counts as an error.
OF_A_FINE_TIMER = 1.0 + 3e-10


def measured_steps(
    trial: Trial, count: int, *, step_time_sec: float = 0.15, seed: int = 0, exact: bool = False, done: int = 0
) -> Steps:
    """Make `count` steps of a trial after `done` earlier ones. `exact` omits the noise, for golden numbers."""
    noise = np.random.default_rng(seed)
    times = np.full(count, step_time_sec * OF_A_FINE_TIMER)
    if not exact:
        times = times * np.exp(noise.normal(0.0, 0.03, count)) * np.where(noise.random(count) < 0.04, 1.5, 1.0)
    samples = trial.micro_batch_size * trial.gradient_accumulation_steps
    tokens = trial.tokens_per_step
    lengths = np.full(count, 0.75) if exact else noise.uniform(0.6, 0.9, count)
    loss = 4.0 + 4.0 * np.exp(-0.12 * (np.arange(count) + done)) + (0.0 if exact else noise.normal(0.0, 0.08, count))
    return Steps(
        step_time_sec=[float(value) for value in times],
        loss=[float(value) for value in loss],
        samples=[samples] * count,
        tokens=[tokens] * count,
        useful_tokens=[int(tokens * share) for share in lengths],
    )


def metrics_of(steps: Steps, *, peak_vram_bytes: int | None = None) -> Metrics:
    """Compute the metrics that a bench process would write for these steps."""
    ordered = np.sort(np.array(steps.step_time_sec))
    median = float(np.median(ordered))
    count = len(ordered)
    useful, tokens = sum(steps.useful_tokens), sum(steps.tokens)
    return Metrics(
        step_time_sec=Interval(
            median=median,
            low=float(ordered[0]),
            high=float(ordered[-1]),
            n=count,
        ),
        samples_per_sec=sum(steps.samples) / count / median,
        tokens_per_sec=tokens / count / median,
        useful_tokens_per_sec=useful / count / median,
        padding_percent=100.0 * (1.0 - useful / tokens),
        first_loss=steps.loss[0],
        last_loss=steps.loss[-1],
        peak_vram_bytes=peak_vram_bytes,
        peak_rss_bytes=812_000_000,
        load_time_sec=1.7,
    )


def fingerprint(**changed: Any) -> dict[str, Any]:
    """Make the fingerprint of a CPU host with the bench's keys."""
    return {
        "python": "3.11.7",
        "torch": "2.13.0+cpu",
        "transformers": "5.23.0",
        "git_sha": "0123456789abcdef0123456789abcdef01234567",
        "git_dirty": False,
        "cpu_model": "A CPU of some kind",
        "cpu_logical_cores": 8,
        "cpu_allowed_cores": 8,
        "device": "cpu",
        "torch_threads": 1,
        "cuda": None,
        "gpu_name": None,
        "gpu_driver": None,
        "model_sha256": "0" * 64,
        "seed": 42,
    } | changed


def result(
    plan: PlannedTrial,
    *,
    worker: str | None = None,
    status: TrialStatus = TrialStatus.SUCCEEDED,
    reason: str | None = None,
    step_time_sec: float = 0.15,
    seed: int = 0,
    exact: bool = False,
    steps: int | None = None,
    **changed: Any,
) -> TrialResult:
    """Make one trial's result, with steps if it SUCCEEDED or if `steps` is their number."""
    trial = plan.trial
    trains = trial.kind in ("training", "distributed")
    worker_name = plan.worker or worker or "worker-1"
    count = trial.measured_steps if trains and status is TrialStatus.SUCCEEDED and steps is None else steps or 0
    body = measured_steps(trial, count, step_time_sec=step_time_sec, seed=seed, exact=exact, done=trial.warmup_steps)
    defaults: dict[str, Any] = {
        "trial_id": plan.trial_id,
        "trial": trial,
        "status": status,
        "reason": reason,
        "worker": worker_name,
        "run_id": RUN_ID,
        "started_at": "2026-03-01T10:15:04+00:00",
        "wall_time_sec": 6.5,
        "phases": {"import": 2.0, "load": 1.7, "data": 0.2, "warmup": 0.5, "measure": 2.1},
        "warmup": measured_steps(
            trial, trial.warmup_steps, step_time_sec=step_time_sec * 1.2, seed=seed + 1, exact=exact
        )
        if count
        else Steps(),
        "steps": body,
        "metrics": metrics_of(body) if count else None,
        "measurements": measurements_of(trial.kind) if status is TrialStatus.SUCCEEDED else [],
        "fingerprint": fingerprint(),
    }
    return TrialResult(**(defaults | changed))


def write_result(folder: Path, result: TrialResult) -> Path:
    """Write one result where `inv collect` would; returns the path of result.json."""
    trial_folder = folder / "trials" / result.trial_id
    trial_folder.mkdir(parents=True, exist_ok=True)
    return result.write(trial_folder)


def rewrite(folder: Path, plan: PlannedTrial, **changed: Any) -> Path:
    """Write another result of a planned trial, made by `result`."""
    return write_result(folder, result(plan, **changed))


def plan_of(run: RunRecord, trial_id: str) -> PlannedTrial:
    """Return the plan of one of the run's trials."""
    return next(plan for plan in run.planned if plan.trial_id == trial_id)


def write_results(folder: Path, run: RunRecord, results: Iterable[TrialResult]) -> RunRecord:
    """Write a run with these results."""
    folder.mkdir(parents=True, exist_ok=True)
    run.write(folder)
    for result in results:
        write_result(folder, result)
    return run


def write_run(
    folder: Path, run: RunRecord | None = None, *, speeds: dict[str, float] | None = None, exact: bool = False
) -> RunRecord:
    """Write a run in which every trial SUCCEEDED. `speeds` maps a trial's name to its step time in seconds."""
    run = record() if run is None else run
    speeds = speeds or {"baseline": 0.160, "optimized": 0.155}
    results = []
    for number, plan in enumerate(run.planned):
        worker = plan.worker or run.workers[number % len(run.workers)]
        drift = 1.0 if exact else 1.0 + 0.02 * run.workers.index(worker)
        options = {"step_time_sec": speeds.get(plan.trial.name, 0.15) * drift, "seed": number, "exact": exact}
        results.append(result(plan, worker=worker, run_id=run.run_id, **options))
    return write_results(folder, run, results)


def exact_run(folder: Path, **changed: Any) -> RunRecord:
    """Write a run with steps of exactly 0.16 s and 0.08 s, of 4 and 8 samples: optimized is 4x as fast per sample."""
    return write_run(folder, record(**changed), speeds={"baseline": 0.16, "optimized": 0.08}, exact=True)


def measurement(
    name: str, value: float | None, *, share: float | None = None, note: str | None = None, **context: Any
) -> Measurement:
    """Make a measurement with a narrow interval over five repeats, or without one if `value` is unknown."""
    spread = None
    if value is not None:
        spread = Interval(median=value, low=value * 0.98, high=value * 1.02, n=5)
    return Measurement(name=name, value=value, interval=spread, share_percent=share, context=context, note=note)


def other_kinds() -> tuple[Trial, ...]:
    """Make one trial of each workload except training."""
    return (
        trial("hardware", kind="hardware"),
        trial("load-nf4", kind="loading"),
        trial("generate-nf4", kind="inference", micro_batch_size=32),
        trial("ddp-2", kind="distributed", world_size=2),
    )


def telemetry() -> list[Measurement]:
    """Make the telemetry measurements of a trial's measured window."""
    return [
        measurement("gpu_utilization_percent", 87.5, window="measure"),
        measurement("gpu_memory_bytes", 20.1e9, window="measure"),
        measurement("gpu_power_watts", 148.0, window="measure"),
        measurement("gpu_sm_clock_mhz", 1695.0, window="measure"),
        measurement("gpu_temperature_celsius", 61.0, window="measure"),
    ]


def measurements_of(kind: str) -> list[Measurement]:
    """Make some measurements of a workload: rates, shares, memory, and an unavailable value."""
    if kind == "hardware":
        return [
            *(
                measurement("matmul_tflops", size / 100 * speed, share=size / 100, dtype=dtype, size=size)
                for dtype, speed in (("fp32", 0.3), ("bf16", 1.2), ("fp16", 1.2))
                for size in (2048, 4096, 8192)
            ),
            measurement("matmul_tflops", None, note="the chip has no fp8", dtype="fp8", size=8192),
            *(
                measurement("copy_gb_per_sec", 475.0, share=79.2, direction=direction)
                for direction in ("on device", "to device")
            ),
        ]
    if kind == "loading":
        return [
            measurement(f"load_{phase}_sec", 0.25 * number, cache=cache)
            for cache in ("cold", "warm")
            for number, phase in enumerate(("read", "quantize", "move"), start=1)
        ] + [measurement("peak_vram_bytes", 4.69e9, cache=cache) for cache in ("cold", "warm")]
    if kind == "inference":
        return [
            measurement(name, value * batch, batch=batch, path=path, precision="nf4")
            for path in ("base", "adapter")
            for batch in (1, 8, 32)
            for name, value in (
                ("prefill_tokens_per_sec", 800.0),
                ("first_token_sec", 0.02),
                ("decode_tokens_per_sec", 7.81),
                ("peak_vram_bytes", 5e8),
            )
        ]
    if kind == "distributed":
        return [
            measurement("global_samples_per_sec", 2.85, world_size=2, backend="gloo"),
        ]
    return []
