"""Predicted hours beside what an undisturbed training took: `python -m tests.benchmarks.train_hours [--rounds 3]`.

Each round types `inv bench --trials` with the configuration of the training, then `inv train`: the hours foreseen
from these steps are in its plan, the time of its steps is in training.json. The demo's small model, one worker here.

Not covered: GPUs; several ranks; start-up and evaluations, which the prediction does not cover either.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.data import demo
from bench.records.interval import summarize
from bench.records.run import RunRecord
from bench.records.training import TrainingRecord
from tests.benchmarks import Figure, spread
from tests.support.forked import INV, ForkServer
from tests.system.conftest import Project, made_project

LIMIT_SEC = 900.0
TRAIN = {"max_steps": 40, "max_seq_len": 256, "rows_per_step": 2, "micro_batch_size": 2, "validation": 0.0}


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_hours")
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args(argv).rounds
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        model, data = here / "models" / "demo--tiny", here / "data.jsonl"
        demo.make(model, data)
        (here / "server").mkdir()
        with ForkServer(here / "server", INV) as server, made_project(here, server) as project:
            project.environment |= {"INVOKE_MODEL_PATH": str(model), "INVOKE_DATA_PATH": str(data)}
            project.environment |= {"INVOKE_FLEET_SIZE": "1", "INVOKE_BENCH_MEASURED_STEPS": "60"}
            (project.folder / "settings.json").write_text(json.dumps({"train": TRAIN}))
            project.options = ("-f", "settings.json")
            ratios = [_round(project) for _ in range(rounds)]
    off = [100.0 * (ratio - 1.0) for ratio in ratios]
    return [
        Figure(
            name="predicted time of a training's steps, beside what they took, on a CPU",
            value=spread(summarize(off), "% off"),
            goal="within 3 %",
        )
    ]


def _round(project: Project) -> float:
    """Predicted over actual seconds."""
    if not (project.folder / "trial.json").exists():
        _typed(project, "train", "--workers", "1")  # for its plan alone
        trial = RunRecord.read(project.run_folder() / "run.json").planned[0].trial
        steps = dataclasses.replace(trial, kind="training", suite="custom", name="same", training=None)
        (project.folder / "trial.json").write_text(steps.to_text())
    _typed(project, "bench", "--trials", "trial.json")
    _typed(project, "train", "--workers", "1")
    foreseen = RunRecord.read(project.run_folder() / "run.json").provenance["inputs"]["foreseen"]
    record = TrainingRecord.read(project.run_folder() / "training.json")
    return float(foreseen["seconds"]) / sum(record.steps.step_time_sec)


def _typed(project: Project, *words: str) -> None:
    process = project.start(*words)
    said, complaint = process.communicate(timeout=LIMIT_SEC)
    assert process.returncode == 0, said + complaint


if __name__ == "__main__":
    for figure in main(sys.argv[1:]):
        print("\t".join((figure.name, figure.value, figure.ratio, figure.goal)))
