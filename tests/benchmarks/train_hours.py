"""Predicted hours against those of an undisturbed training.

    python -m tests.benchmarks.train_hours [--rounds 3] [--model DIR]

Each round types `inv bench --trial-file` with the configuration of the training, then `inv train`: the hours predicted
from these steps are in its plan, the time of its steps is in training.json. One worker: the demo's small model on a
CPU, or DIR on a GPU with the recipe `fast`. A CPU that others share changes its speed by several percent between one
minute and the next, and so does what is printed.

Not covered: several ranks; start-up and evaluations, which the prediction does not cover either.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.records.bootstrap import summarize
from bench.records.run import RunRecord
from bench.records.training import TrainingRecord
from tests.benchmarks import Figure, demo_inputs, print_figures, spread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.system.conftest import Project, project_copy

LIMIT_SEC = 900.0
TRAIN = {"max_steps": 40, "rows_per_step": 2, "validation_fraction": 0.0}
ON_A_CPU = TRAIN | {"max_seq_len": 256, "micro_batch_size": 2}
ON_A_GPU = TRAIN | {"max_seq_len": 512, "micro_batch_size": 8, "recipe": "fast", "gradient_checkpointing": False}


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_hours")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a model folder; needs a GPU")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tiny, data = demo_inputs(here)
        (here / "server").mkdir()
        with ForkServer(here / "server", INV_LIBRARIES) as server, project_copy(here, server, "fleet") as project:
            project.environment |= {"INVOKE_MODEL_PATH": str(arguments.model or tiny), "INVOKE_DATA_PATH": data}
            project.environment |= {"INVOKE_FLEET_SIZE": "1"}
            train = ON_A_CPU if arguments.model is None else ON_A_GPU
            (project.folder / "settings.json").write_text(json.dumps({"train": train}))
            project.options = ("-f", "settings.json")
            ratios = [_round(project) for _ in range(arguments.rounds)]
    where = "a CPU" if arguments.model is None else "a GPU"
    off = [100.0 * (ratio - 1.0) for ratio in ratios]
    return [
        Figure(
            name=f"predicted against actual time of a training's steps, on {where}",
            value=spread(summarize(off), "% off"),
            goal="within 3 %",
        )
    ]


def _round(project: Project) -> float:
    """Return predicted over actual seconds."""
    if not (project.folder / "trial.json").exists():
        _typed(project, "train", "--workers", "1")  # only for its plan
        trial = RunRecord.read(project.run_folder() / "run.json").planned[0].trial
        steps = dataclasses.replace(trial, kind="training", suite="custom", name="same", training=None)
        (project.folder / "trial.json").write_text(dataclasses.replace(steps, measured_steps=40).to_text())
    _typed(project, "bench", "--trial-file", "trial.json")
    _typed(project, "train", "--workers", "1")
    forecast = RunRecord.read(project.run_folder() / "run.json").provenance["inputs"]["forecast"]
    record = TrainingRecord.read(project.run_folder() / "training.json")
    return float(forecast["seconds"]) / sum(record.steps.step_time_sec)


def _typed(project: Project, *arguments: str) -> None:
    process = project.start(*arguments)
    output, complaint = process.communicate(timeout=LIMIT_SEC)
    assert process.returncode == 0, output + complaint


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
