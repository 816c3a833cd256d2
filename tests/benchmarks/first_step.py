"""Seconds from Enter to the first step of `inv train`, by phase: without compiled kernels, and with them.

    python -m tests.benchmarks.first_step [--model DIR] [--rounds 3] [--workers 1]

On a GPU DIR is a model folder (`python -m tests.model_shapes DIR`); without it, and on a CPU, the demo's small model.
Each round types the same command twice, the first time with an empty cache of kernels. The phases are those of the
record: a worker's check of the inputs and its ranks' import run while the data are read.

Not covered: pods, a model that is not in the page cache.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from bench.records.bootstrap import summarize
from bench.records.result import TrialResult
from bench.records.run import RunRecord
from tests.benchmarks import Figure, demo_inputs, print_figures, spread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.system.conftest import Project, project_copy

LIMIT_SEC = 600.0
TRAIN = {"max_steps": 3, "validation_fraction": 0.0}
PHASES = ("import", "load", "rehearse")


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.first_step")
    parser.add_argument("--model", type=Path, help="a model folder; needs a GPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", default="1", help="ranks, each on a GPU of this host")
    arguments = parser.parse_args(argv)
    seconds: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tiny, data = demo_inputs(here)
        (here / "server").mkdir()
        with ForkServer(here / "server", INV_LIBRARIES) as server, project_copy(here, server, "fleet") as project:
            project.environment |= {"INVOKE_MODEL_PATH": str(arguments.model or tiny), "INVOKE_DATA_PATH": data}
            project.environment |= {"INVOKE_FLEET_SIZE": arguments.workers}
            (project.folder / "settings.json").write_text(json.dumps({"train": TRAIN}))
            project.options = ("-f", "settings.json")
            for number in range(arguments.rounds):
                for state in ("cold", "warm"):
                    kernels = {"TRITON_CACHE_DIR": str(here / f"kernels-{number}")}
                    for phase, value in _round(project, arguments.workers, kernels).items():
                        seconds.setdefault((state, phase), []).append(value)
    goals = {("cold", "first step"): "30 s", ("warm", "first step"): "20 s and the weights"}
    return [
        Figure(name=f"{state}: {phase}", value=spread(summarize(values), "s"), goal=goals.get((state, phase), "-"))
        for (state, phase), values in seconds.items()
    ]


def _round(project: Project, workers: str, environment: dict[str, str]) -> dict[str, float]:
    """Train and return the seconds of PHASES, and those from the command to the end of the first step."""
    entered = time.time()
    process = project.start("train", "--workers", workers, **environment)
    output, complaint = process.communicate(timeout=LIMIT_SEC)
    assert process.returncode == 0, output + complaint
    (planned,) = RunRecord.read(project.run_folder() / "run.json").planned
    result = TrialResult.read(project.run_folder() / "trials" / planned.trial_id / "result.json")
    assert result.started_at is not None
    assert result.wall_time_sec is not None
    began = datetime.fromisoformat(result.started_at).timestamp() - entered
    ended = began + result.wall_time_sec - result.phases["finish"] - result.phases["train"]
    return {**{name: result.phases[name] for name in PHASES}, "first step": ended + result.steps.step_time_sec[0]}


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
