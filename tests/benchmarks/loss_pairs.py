"""Real pairs of trainings on the CPU: how far held-out losses of equal seeds are apart, and what is claimed of them.

    python -m tests.benchmarks.loss_pairs [--model DIR --data FILE] [--pairs 3] [--steps 60] [--json FILE]

The reference and `fast` train alike; `fast` with a quarter of the learning rate is truly worse. Without --model the
demo's small model learns its documentation strings, two minutes a pair on an idle core. The trials are those of the
workload quality, as `inv tune` plans them, with a held-out part for each of 20 seeds.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.records import Trial
from bench.records.result import TrialResult
from bench.records.training import Training, TrainingData
from reports.statistics.paired_losses import paired_difference
from tasks.settings.schema import QualitySection
from tasks.tuning.quality import LOSS
from tests.benchmarks import Figure, demo_inputs, print_figures
from tests.support.paths import ROOT

LEARNING_RATE, WORSE = 4e-3, 0.25  # the factor makes the small random model 0.5 % worse
PARTS, LENGTH, ROWS = 20, 128, 2
ARMS: dict[str, dict[str, Any]] = {
    "reference": {"recipe": "reference", "optimizer": "adamw_torch"},
    "fast": {"recipe": "fast", "optimizer": "adamw_torch"},
    "worse": {"recipe": "fast", "optimizer": "adamw_torch", "learning_rate": WORSE * LEARNING_RATE},
}
MARGIN = QualitySection().max_increase_percent
GROUP = 4  # pairs of a comparison: as many as `inv tune` plans by default


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.loss_pairs")
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path, help="every loss, for a record")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, data = (arguments.model, arguments.data) if arguments.model else demo_inputs(folder)
        losses = {
            arm: [train(folder, arm, seed, model, data, arguments.steps) for seed in range(arguments.pairs)]
            for arm in ARMS
        }
    if arguments.json:
        arguments.json.write_text(json.dumps(losses, indent=1))
    return [*figures("fast", losses, "same"), *figures("worse", losses, "not the same")]


def train(folder: Path, arm: str, seed: int, model: str, data: str, steps: int) -> float:
    """Run one trial; return its held-out loss."""
    spec = TrainingData(files=[data], weights=[1.0], max_seq_len=LENGTH, validation_share=0.4)
    trial = Trial(
        **{"learning_rate": LEARNING_RATE} | ARMS[arm],
        name=f"{arm}-{seed}", reason="a pair", suite="benchmark", kind="quality", profile="tiny", model=model,
        data=data, max_seq_len=LENGTH, micro_batch_size=2, layout="varlen", seed=seed, held_out_parts=PARTS,
        deadline_sec=14_400.0,
        training=Training(data=spec, rows_per_step=ROWS, max_steps=steps, epochs=100.0, warmup_share=0.03),
    )  # fmt: skip
    file, out = folder / f"{trial.name}.json", folder / trial.name
    file.write_text(trial.to_text())
    run = (sys.executable, "-m", "bench", "run", "--trial", str(file), "--out", str(out))
    subprocess.run(
        (*run, "--checkpoints", str(folder / "cache")),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    result = TrialResult.read(out / "result.json")
    return next(each.value or 0.0 for each in result.measurements if each.name == LOSS)


def figures(arm: str, losses: dict[str, list[float]], expected: str) -> list[Figure]:
    """Return the difference over all pairs, and what is claimed of every group of GROUP of them."""
    reference, count = losses["reference"], len(losses[arm])
    difference = paired_difference(reference, losses[arm][:count])
    if difference is None:
        return []
    value = f"{difference.percent:+.3f} % ({difference.low:+.3f} to {difference.high:+.3f})"
    name = f"{arm} against reference, {count} pairs"
    groups = list(itertools.combinations(range(count), GROUP))
    claimed = 0
    for group in groups:
        compared = paired_difference([reference[n] for n in group], [losses[arm][n] for n in group])
        claimed += compared is not None and compared.high <= MARGIN
    share = f"{100 * claimed / len(groups):.0f} % of {len(groups)} groups of {GROUP}" if groups else "too few pairs"
    return [
        Figure(name=name, value=value, ratio=f"deviation {difference.sd:.3f} %"),
        Figure(name=f"{arm}: called the same at {MARGIN:g} %", value=share, goal=expected),
    ]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
