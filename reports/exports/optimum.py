"""optimum-benchmark's benchmark.json for each trial with measured steps: latency, throughput, memory.

Its `train` section has our measured steps, its latencies are our step times. Energy is left empty: optimum-benchmark
counts that of the whole machine.
"""

import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.records.bootstrap import quantile
from reports.exports.log_model import LoggedRun, Point

FOLDER = "optimum-benchmark"
FILE = "benchmark.json"


def write(report: Path, runs: Sequence[LoggedRun]) -> Path:
    """Write the files below a report's folder. Raises OSError."""
    folder = report / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for run in runs:
        if any(point.phase == "train" for point in run.points):
            (folder / run.name).mkdir()
            (folder / run.name / FILE).write_text(
                json.dumps(benchmark_document(run), indent=4) + "\n", encoding="utf-8"
            )
    return folder


def benchmark_document(run: LoggedRun) -> dict[str, Any]:
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
