"""A results folder with a history: benchmarks, of which a new driver made one configuration slower, and a training."""

from pathlib import Path

from tests.support.reports import synthetic, training_run

WORKERS = ("worker-1", "worker-2", "worker-3")
BEFORE, AFTER = "550.54", "580.95"  # drivers
RUNS = 8
CHANGED = 4  # the first run with the new driver; baseline is 16 % slower from then on


def write_benchmarks(results: Path, runs: int = RUNS, *, changed: int = CHANGED) -> list[Path]:
    """Write the benchmarks' runs, oldest first; returns their folders."""
    folders = []
    for number in range(runs):
        is_changed = number >= changed
        facts = {"device": "cuda", "gpu_name": "NVIDIA A10", "gpu_driver": AFTER if is_changed else BEFORE}
        run_id = f"2026030{number + 1}-101500-quick"
        run = synthetic.record(workers=list(WORKERS), run_id=run_id, created_at=f"2026-03-0{number + 1}T10:15:00+00:00")
        step_sec = {"baseline": 0.174 if is_changed else 0.15, "optimized": 0.12}
        results_of_run = [
            synthetic.result(
                plan,
                run_id=run_id,
                step_time_sec=step_sec[plan.trial.name],
                seed=100 * number + index,
                fingerprint=synthetic.fingerprint(**facts),
            )
            for index, plan in enumerate(run.planned)
        ]
        synthetic.write_results(results / run_id, run, results_of_run)
        folders.append(results / run_id)
    return folders


def write_history(results: Path) -> None:
    """Write the benchmarks and a training."""
    write_benchmarks(results)
    training_run.write_run(results / "r")
