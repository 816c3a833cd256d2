"""A run in the files of MLPerf (lines of `:::MLLOG` and a JSON object) and of optimum-benchmark (benchmark.json)."""

import json
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.records.bootstrap import quantile
from bench.records.status import TrialStatus
from reports.exports.log_model import LoggedRun, Point, Setting

MLPERF, OPTIMUM = "mlperf", "optimum-benchmark"  # the formats' folders below a report
_POINT, _START, _STOP = "POINT_IN_TIME", "INTERVAL_START", "INTERVAL_END"
_KEYS = {
    "seed": "seed",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "learning_rate": "opt_base_learning_rate",
    "training.max_gradient_norm": "opt_gradient_clip_norm",
    "training.weight_decay": "opt_adamw_weight_decay",
}


def write_mlperf(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write a log for each trial below a report's folder. Raises OSError.

    The keys are those of MLPerf's llama2_70b_lora benchmark where it has one. The log cannot be submitted: model, data
    and target differ.
    """
    folder = report / MLPERF
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for run in runs:
        (folder / f"{run.name}.log").write_text("".join(f"{line}\n" for line in _log_lines(run)), encoding="utf-8")
    return folder


def _log_lines(run: LoggedRun) -> Iterator[str]:
    """Yield the log of one trial or training."""
    identity = {"run_id": run.run_id, "trial_id": run.name, "worker": run.worker}
    yield _format_line(
        run.start_time, _POINT, "submission_benchmark", "qlora-fleet", **identity, configuration=run.configuration
    )
    yield _format_line(run.start_time, _START, "init_start")
    for name, key in _KEYS.items():
        if name in run.settings:
            yield _format_line(run.start_time, _POINT, key, run.settings[name])
    for key, value in _batch_settings(run).items():
        yield _format_line(run.start_time, _POINT, key, value)
    first_point = next((point for point in run.points if point.phase != "warmup"), None)
    yield _format_line(run.start_time, _STOP, "init_stop")
    yield _format_line(run.start_time if first_point is None else first_point.time, _START, "run_start")
    samples = 0.0
    for point in run.points:
        samples += point.values.get("samples", 0.0)
        position = {"step_num": point.step, "samples_count": samples}
        if point.phase == "held_out":
            loss = point.values.get("loss")
            yield _format_line(point.time, _POINT, "eval_accuracy", loss, **position)  # MLPerf's key for the loss
        else:
            yield _format_line(point.time, _POINT, "tracked_stats", dict(point.values), **position, phase=point.phase)
    if run.end_time is not None:
        status = "success" if run.status == TrialStatus.SUCCEEDED.value else "aborted"
        yield _format_line(run.end_time, _STOP, "run_stop", None, status=status, end=run.status, samples_count=samples)


def _batch_settings(run: LoggedRun) -> dict[str, Setting]:
    """Return the batch of a step: a training's packed rows over all ranks, or a trial's samples on one device."""
    length = "max_sequence_length"
    if (rows := run.settings.get("training.rows_per_step")) is not None:
        return {"global_batch_size": rows, length: run.settings["training.data.max_seq_len"]}
    micro_batch, accumulation = int(run.settings["micro_batch_size"]), int(run.settings["gradient_accumulation_steps"])
    return {
        "global_batch_size": micro_batch * accumulation,
        "gradient_accumulation_steps": accumulation,
        length: run.settings["max_seq_len"],
    }


def _format_line(seconds: float, kind: str, key: str, value: Any = None, **metadata: Any) -> str:
    document = {"namespace": "", "time_ms": round(seconds * 1000), "event_type": kind, "key": key, "value": value}
    return f":::MLLOG {json.dumps({**document, 'metadata': metadata}, allow_nan=False)}"


def write_optimum(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write a benchmark.json for each trial with measured steps below a report's folder. Raises OSError.

    Energy is left empty: optimum-benchmark counts that of the whole machine.
    """
    folder = report / OPTIMUM
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for run in runs:
        if any(point.phase == "train" for point in run.points):
            (folder / run.name).mkdir()
            (folder / run.name / "benchmark.json").write_text(
                json.dumps(_benchmark_document(run), indent=4) + "\n", encoding="utf-8"
            )
    return folder


def _benchmark_document(run: LoggedRun) -> dict[str, Any]:
    """Return the content of a benchmark.json."""
    steps = [point for point in run.points if point.phase != "held_out"]
    warmup = [point for point in steps if point.phase == "warmup"]
    settings = run.settings
    return {
        "config": {
            "name": f"{run.run_id}/{run.name}",
            "backend": {"name": "qlora-fleet", "model": settings["model"], "seed": settings["seed"]},
            "scenario": {"name": "training", "max_steps": len(steps), "warmup_steps": len(warmup), **settings},
            "launcher": {"name": "qlora-fleet", "worker": run.worker},
            "environment": {"run_id": run.run_id, "configuration": run.configuration, "end": run.status},
            "print_report": False,
            "log_report": False,
        },
        "report": {
            "overall": _section(run, steps),
            "warmup": _section(run, warmup),
            "train": _section(run, steps[len(warmup) :]),
        },
    }


def _section(run: LoggedRun, steps: Sequence[Point]) -> dict[str, Any]:
    times = [point.values["step_time_sec"] for point in steps if "step_time_sec" in point.values]
    samples = sum(point.values.get("samples", 0.0) for point in steps)
    total = sum(times)
    return {
        "memory": _memory(run),
        "latency": _latency(times) if times else None,
        "throughput": {"unit": "samples/s", "value": samples / total} if total > 0 else None,
        "energy": None,
        "efficiency": None,
    }


def _latency(times: Sequence[float]) -> dict[str, Any]:
    ordered, mean, spread = sorted(times), statistics.fmean(times), statistics.pstdev(times)
    shares = {name: quantile(ordered, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95))}
    return {
        "unit": "s",
        "values": list(times),
        "count": len(times),
        "total": sum(times),
        "mean": mean,
        **shares,
        "p99": quantile(ordered, 0.99),
        "stdev": spread,
        "stdev_": 100.0 * spread / mean if mean > 0 else 0.0,
    }


def _memory(run: LoggedRun) -> dict[str, Any] | None:
    rss, vram = (run.results.get(name) for name in ("peak_rss_bytes", "peak_vram_bytes"))
    if rss is None:
        return None
    vram = None if vram is None else vram / 1e6
    return {
        "unit": "MB",
        "max_ram": rss / 1e6,
        "max_global_vram": None,
        "max_process_vram": None,
        "max_reserved": None,
        "max_allocated": vram,
    }
