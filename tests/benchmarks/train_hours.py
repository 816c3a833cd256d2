"""Predicted time of trainings against what they took, from their start to their end.

    python -m tests.benchmarks.train_hours [--trainings 10] [--model DIR]

The first training measures; each further one has another size, and its forecast from those before it is in its plan.
The time is that of the ledger: steps, start-up, evaluations, checkpoints. One worker: the demo's small model on a CPU,
or DIR on a GPU with the recipe `fast`. A CPU that others share changes its speed between one minute and the next.

Not covered: several ranks; scores.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.records.bootstrap import summarize
from reports.read import attempts
from reports.training import training_facts
from tests.benchmarks import Figure, demo_inputs, print_figures, spread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.system.conftest import Project, project_copy

LIMIT_SEC = 900.0
ON_A_CPU = {"max_seq_len": 64, "micro_batch_size": 2, "validation_fraction": 0.01}
ON_A_GPU = {"max_seq_len": 512, "micro_batch_size": 8, "recipe": "fast", "validation_fraction": 0.01}
FIRST = {"max_steps": 40, "rows_per_step": 2}
SIZES: tuple[dict[str, Any], ...] = (
    {"max_steps": 20, "rows_per_step": 2},
    {"max_steps": 80, "rows_per_step": 1},
    {"max_steps": 60, "rows_per_step": 4},
    {"max_steps": 100, "rows_per_step": 2, "evaluate_every": 25},
    {"max_steps": 30, "rows_per_step": 8, "validation_fraction": 0.03},
    {"max_steps": 150, "rows_per_step": 2},
    {"max_steps": 10, "rows_per_step": 1},
    {"max_steps": 50, "rows_per_step": 4, "evaluate_every": 10},
    {"max_steps": 200, "rows_per_step": 1, "validation_fraction": 0.02},
    {"max_steps": 120, "rows_per_step": 4},
)
MAX_OFF_PERCENT = 5.0


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_hours")
    parser.add_argument("--trainings", type=int, default=len(SIZES))
    parser.add_argument("--model", type=Path, help="a model folder; needs a GPU")
    arguments = parser.parse_args(argv)
    train = ON_A_CPU if arguments.model is None else ON_A_GPU
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tiny, data = demo_inputs(here)
        (here / "server").mkdir()
        with ForkServer(here / "server", INV_LIBRARIES) as server, project_copy(here, server, "fleet") as project:
            project.environment |= {"INVOKE_MODEL_PATH": str(arguments.model or tiny), "INVOKE_DATA_PATH": data}
            project.environment |= {"INVOKE_FLEET_SIZE": "1"}
            project.options = ("-f", "settings.json")
            _train(project, train | FIRST)
            trained = [_compare(project, train, size) for size in islice(cycle(SIZES), arguments.trainings)]
    misses = sum(is_miss for _, is_miss in trained)
    where = "a CPU" if arguments.model is None else "a GPU"
    return [
        Figure(
            name=f"whole time of trainings on {where}, predicted",
            value=spread(summarize([off for off, _ in trained]), "% off"),
            goal="-",
        ),
        Figure(
            name=f"  of {len(trained)}, more than {MAX_OFF_PERCENT:g} % off and outside the interval",
            value=str(misses),
            goal="at most 1 in 10",
        ),
    ]


def _compare(project: Project, train: dict[str, Any], size: dict[str, Any]) -> tuple[float, bool]:
    """Train; return how many percent the forecast was off, and whether it missed also with its interval."""
    predicted, low, high, actual = _train(project, train | size)
    off = 100.0 * (predicted / actual - 1.0)
    is_miss = abs(off) > MAX_OFF_PERCENT and not low <= actual <= high
    verdict = "missed" if is_miss else "held"
    interval = f"{predicted:.1f} s ({low:.1f} to {high:.1f})"
    print(f"{size}: {interval}, took {actual:.1f} s, {off:+.0f} %, {verdict}", flush=True)
    return abs(off), is_miss


def _train(project: Project, train: dict[str, Any]) -> tuple[float, float, float, float]:
    """Train; return the predicted seconds with their interval, and those it took. Zeros without a forecast."""
    (project.folder / "settings.json").write_text(json.dumps({"train": train}))
    process = project.start("train", "--workers", "1")
    output, complaint = process.communicate(timeout=LIMIT_SEC)
    assert process.returncode == 0, output + complaint
    done = training_facts.read(project.run_folder())
    low, high = done.forecast.get("total_between") or (0.0, 0.0)
    return done.forecast.get("total_sec") or 0.0, low, high, attempts.total_sec(done.attempts, time.time())


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
