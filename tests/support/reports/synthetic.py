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
    trial: Trial,
    count: int,
    *,
    step_time_sec: float = 0.15,
    seed: int = 0,
    exact: bool = False,
    done: int = 0,
    jitter: float = 0.03,
    slow: float = 1.5,
    useful: float | None = None,
) -> Steps:
    """Make `count` steps of a trial after `done` earlier ones. `exact` omits the noise, for golden numbers.

    `slow` is the factor of slow steps. `useful` is the share of useful tokens of texts that every trial reads in the
    same order; None: of its own ones.
    """
    noise, texts = np.random.default_rng(seed), np.random.default_rng(done)
    times = np.full(count, step_time_sec * OF_A_FINE_TIMER)
    if not exact:
        times = times * np.exp(noise.normal(0.0, jitter, count)) * np.where(noise.random(count) < 0.04, slow, 1.0)
    samples = trial.micro_batch_size * trial.gradient_accumulation_steps * (5.4 if trial.layout == "varlen" else 1)
    tokens = trial.tokens_per_step
    shares = np.full(count, 0.75) if exact else noise.uniform(0.6, 0.9, count)
    if useful is not None:
        shares = np.clip(texts.normal(useful, useful * 0.08, count), 0.01, 1.0)
    loss = 4.0 + 4.0 * np.exp(-0.12 * (np.arange(count) + done)) + (0.0 if exact else noise.normal(0.0, 0.08, count))
    return Steps(
        step_time_sec=times.tolist(),
        loss=loss.tolist(),
        samples=[samples] * count,
        tokens=[tokens] * count,
        useful_tokens=[int(tokens * share) for share in shares],
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
    steps_like: dict[str, Any] | None = None,
    peak_vram_bytes: int | None = None,
    **changed: Any,
) -> TrialResult:
    """Make one trial's result, with steps if it SUCCEEDED or if `steps` is their number.

    `steps_like` are options of `measured_steps`, `changed` other fields of the result.
    """
    trial = plan.trial
    trains = trial.kind in ("training", "distributed")
    worker_name = plan.worker or worker or "worker-1"
    count = trial.measured_steps if trains and status is TrialStatus.SUCCEEDED and steps is None else steps or 0
    drawn = {"exact": exact, **(steps_like or {})}
    body = measured_steps(trial, count, step_time_sec=step_time_sec, seed=seed, done=trial.warmup_steps, **drawn)
    warm = trial.warmup_steps if count else 0
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
        "warmup": measured_steps(trial, warm, step_time_sec=step_time_sec * 1.2, seed=seed + 1, **drawn),
        "steps": body,
        "metrics": metrics_of(body, peak_vram_bytes=peak_vram_bytes) if count else None,
        "measurements": measurements_of(trial) if status is TrialStatus.SUCCEEDED else [],
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
    name: str,
    value: float | None,
    *,
    share: float | None = None,
    note: str | None = None,
    spread: float = 0.02,
    **context: Any,
) -> Measurement:
    """Make a measurement with an interval over five repeats, or without one if `value` is unknown."""
    interval = None
    if value is not None:
        interval = Interval(median=value, low=value * (1.0 - spread), high=value * (1.0 + spread), n=5)
    return Measurement(name=name, value=value, interval=interval, share_percent=share, context=context, note=note)


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


# Rate of a matrix product of 8,192 in TFLOP/s, and percent of the chip's published one.
PRODUCTS = {"fp32": (51.0, 76.0), "bf16": (693.0, 70.0), "fp16": (702.0, 71.0), "int8": (896.0, 45.0)}


def measurements_of(trial: Trial) -> list[Measurement]:
    """Make the measurements of a trial's workload, with the names and contexts of the bench."""
    is_nf4, precision = trial.base_precision == "nf4", {"precision": trial.base_precision}
    if trial.kind == "hardware":
        return [
            *(
                measurement("matmul_tflops", rate * reached, share=share * reached, dtype=dtype, size=size)
                for dtype, (rate, share) in PRODUCTS.items()
                for size, reached in ((2048, 0.5), (8192, 1.0))
            ),
            measurement("matmul_tflops", None, note="the chip has no fp8", dtype="fp8", size=8192),
            measurement("device_copy_gb_per_sec", 4253.0, share=88.6, bytes=1 << 30),
            *(
                measurement(f"{way}_gb_per_sec", 55.4, bytes=1 << 30, pinned=True)
                for way in ("host_to_device", "device_to_host")
            ),
        ]
    if trial.kind == "loading":
        return [
            measurement("first_load_time_sec", 7.56, cache="as found", **precision),
            measurement("load_time_sec", 1.97 if is_nf4 else 2.56, cache="warm", **precision),
            *(
                measurement(f"device_memory_{end}bytes", 4.14e9 if is_nf4 else 14.5e9, **precision)
                for end in ("", "peak_")
            ),
        ]
    if trial.kind == "inference":
        return [
            measurement(name, value * relative, batch=batch, path=path, prompt_tokens=512, new_tokens=84, **precision)
            for batch in (1, 2, 4, 8, 16, 32)
            for path, relative in (("base", 1.0), ("adapter", 0.9))
            for name, value in (
                ("time_to_first_token_sec", 0.024 + 0.0095 * batch),
                ("decode_tokens_per_sec", (29.0 if is_nf4 else 59.0) * batch**0.9),
            )
        ]
    if trial.kind == "distributed":
        samples = trial.micro_batch_size * trial.world_size / 0.58
        return [measurement("global_samples_per_sec", samples, world_size=trial.world_size, backend="gloo")]
    return []
