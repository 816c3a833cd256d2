"""Predicted time and memory of trainings against what they took, from their start to their end.

    python -m tests.benchmarks.train_hours [--trainings 10] [--model DIR ...]

Of each model the first training measures; the others have other sizes, and the forecast from those before them is in
their plans. The trainings are shared among the models: the demo's small one on a CPU, or each DIR on a GPU, with the
settings of plain `inv train`. The time is that of the ledger: start-up, steps, evaluations, checkpoints. A CPU that
others share changes its speed between one minute and the next.

A line for each training also has what `bench.predict` needs: the median time of a layer and row (`chips.LAYER_SEC`),
and the peak memory.

Not covered: several ranks; scores.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.architectures import find
from bench.data.model_folder import read_config
from bench.records.bootstrap import summarize
from reports.read import attempts
from reports.training import training_facts
from tests.benchmarks import Figure, demo_inputs, print_figures, spread
from tests.support.forked import INV_LIBRARIES, ForkServer
from tests.system.conftest import Project, project_copy

LIMIT_SEC = 900.0
GIB = 1 << 30
ON_A_CPU = {"max_seq_len": 64, "micro_batch_size": 2}
ALWAYS = {"epochs": 20, "validation_fraction": 0.01}
FIRST = {"max_steps": 20, "rows_per_step": 2}
SIZES: tuple[dict[str, Any], ...] = (
    {"max_steps": 20, "rows_per_step": 2},
    {"max_steps": 80, "rows_per_step": 1},
    {"max_steps": 30, "rows_per_step": 4},
    {"max_steps": 50, "rows_per_step": 2, "evaluate_every": 25},
    {"max_steps": 10, "rows_per_step": 8, "validation_fraction": 0.03},
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
    parser.add_argument("--model", type=Path, action="append", help="a model folder; needs a GPU")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        tiny, data = demo_inputs(here)
        models = arguments.model or [Path(tiny)]
        train = ALWAYS | (ON_A_CPU if arguments.model is None else {})
        sizes = SIZES[: arguments.trainings]
        each = -(-len(sizes) // len(models))
        (here / "server").mkdir()
        trained = []
        with ForkServer(here / "server", INV_LIBRARIES) as server, project_copy(here, server, "fleet") as project:
            project.environment |= {"INVOKE_DATA_PATH": data, "INVOKE_FLEET_SIZE": "1"}
            project.options = ("-f", "settings.json")
            for number, model in enumerate(models):
                project.environment["INVOKE_MODEL_PATH"] = str(model)
                _train(project, model, train | FIRST)
                ours = sizes[number * each : (number + 1) * each]
                trained += [_train(project, model, train | size) for size in ours]
    misses = sum(is_miss for _, is_miss in trained)
    where = "a CPU" if arguments.model is None else "a GPU"
    return [
        Figure(
            name=f"whole time of trainings on {where}, predicted",
            value=spread(summarize([off for off, _ in trained]), "% off"),
        ),
        Figure(
            name=f"  of {len(trained)}, more than {MAX_OFF_PERCENT:g} % off and outside the interval",
            value=str(misses),
            goal="at most 1 in 10",
        ),
    ]


def _train(project: Project, model: Path, train: dict[str, Any]) -> tuple[float, bool]:
    """Train; return how many percent the forecast was off, and whether it missed also with its interval."""
    (project.folder / "settings.json").write_text(json.dumps({"train": train}))
    process = project.start("train", "--workers", "1")
    output, complaint = process.communicate(timeout=LIMIT_SEC)
    assert process.returncode == 0, output + complaint
    done = training_facts.read(project.run_folder())
    predicted, actual = done.forecast.get("total_sec"), attempts.total_sec(done.attempts, 0.0)
    low, high = done.forecast.get("total_between") or (None, None)
    off, is_miss, text = 0.0, False, "no forecast"
    if predicted is not None:
        off = 100.0 * (predicted / actual - 1.0)
        is_miss = abs(off) > MAX_OFF_PERCENT and not (low or 0.0) <= actual <= (high or predicted)
        text = f"{predicted:.1f} s ({low:.1f} to {high:.1f}), {off:+.1f} %{', missed' if is_miss else ''}"
    plan, spent = done.forecast.get("parts_sec", {}), {"steps": done.steps_sec, **done.parts_sec}
    parts = ", ".join(
        f"{name} {sec:.1f} of {plan.get(name, done.forecast.get('seconds')) or 0.0:.1f}" for name, sec in spent.items()
    )
    layers = find(config := read_config(model)).geometry(config).layers
    layer_sec = statistics.median(done.record.steps.step_time_sec) / layers / train["rows_per_step"]
    peaks = [f"{(peak or 0) / GIB:.3f} GiB" for peak in (done.forecast.get("peak_bytes"), done.record.peak_vram_bytes)]
    print(f"{model.name}, {train}: took {actual:.1f} s, predicted {text}")
    print(f"  {parts}; a layer and row {1e3 * layer_sec:.3f} ms; peak {peaks[1]} of {peaks[0]}", flush=True)
    return abs(off), is_miss


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
