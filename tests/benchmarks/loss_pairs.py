"""Real pairs of trainings: how far held-out losses of equal seeds are apart, and what is claimed of them.

    python -m tests.benchmarks.loss_pairs [--model DIR --data FILE] [--pairs 3] [--steps 60] [--json FILE]

The reference and `fast` train alike; `worse` is `fast` with a part of the learning rate, and truly worse. Without
--model the demo's small model learns its documentation strings, two minutes a pair on an idle core. The trials are
those of the workload quality, as `inv bench --quality` plans them, with a held-out part for each of 20 seeds. FILE has
every loss as it comes; a benchmark that was stopped takes them from there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from bench.records import Trial
from bench.records.atomic_files import write_atomic
from bench.records.result import TrialResult
from bench.records.training import Training, TrainingData
from reports.statistics.paired_losses import paired_difference, pairs_of_both_stages
from tasks.fleet.loss_pairs import LOSS
from tasks.settings.sections import QualitySection
from tests.benchmarks import Figure, demo_inputs, print_figures
from tests.support.paths import ROOT

LEARNING_RATE = 4e-3
PARTS, LENGTH, ROWS = 20, 128, 2
ARMS: dict[str, dict[str, Any]] = {
    "reference": {"recipe": "reference"},
    "fast": {"recipe": "fast"},
    "int8_backward": {"recipe": "fast", "matmul": "int8_backward"},
    "int8": {"recipe": "fast", "matmul": "int8"},
    "worse": {"recipe": "fast"},
}
MARGIN = QualitySection().max_increase_percent
STAGE_1 = 4  # pairs: as many as `inv bench --quality` plans at first
ORDERS = 4000  # random orders of the pairs; they share pairs


def main(argv: Sequence[str] = ()) -> list[Figure]:
    arguments = parse(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not arguments.model:
            arguments.model, arguments.data = demo_inputs(folder)
        losses = train_all(folder, arguments)
    return [
        shown
        for arm in losses
        if arm != "reference"
        for shown in figures(arm, losses, "not the same" if arm == "worse" else "same")
    ]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.loss_pairs")
    parser.add_argument("--model")
    parser.add_argument("--data")
    parser.add_argument("--arms", default="fast,worse", help=f"compared with the reference, of {', '.join(ARMS)}")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens of an example at most")
    parser.add_argument("--rows", type=int, default=ROWS, help="of 2 x LENGTH tokens, a step")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--worse", type=float, default=0.25, help="part of the learning rate of the arm `worse`")
    parser.add_argument("--profile", default="tiny", choices=("tiny", "gpu"))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--json", type=Path, help="file of every loss")
    return parser.parse_args(argv)


def train_all(folder: Path, arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the losses of each arm by seed; those of the file are not trained again."""
    arms = ["reference", *arguments.arms.split(",")]
    kept = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    losses: dict[str, dict[str, float]] = {arm: dict(kept.get(arm, {})) for arm in arms}
    missing = [(seed, arm) for seed in range(arguments.pairs) for arm in arms if str(seed) not in losses[arm]]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [(seed, arm, pool.submit(train, folder, arm, seed, arguments)) for seed, arm in missing]
        for seed, arm, task in tasks:
            losses[arm][str(seed)] = task.result()
            if arguments.json:
                write_atomic(arguments.json, json.dumps(losses, indent=1).encode())
    return {arm: [losses[arm][str(seed)] for seed in range(arguments.pairs)] for arm in arms}


def train(folder: Path, arm: str, seed: int, arguments: argparse.Namespace) -> float:
    """Run one trial; return its held-out loss."""
    spec = TrainingData(files=[arguments.data], weights=[1.0], max_seq_len=arguments.length, validation_share=0.4)
    rate = arguments.learning_rate * (arguments.worse if arm == "worse" else 1.0)
    training = Training(
        data=spec, rows_per_step=arguments.rows, max_steps=arguments.steps, epochs=100.0, warmup_share=0.03
    )
    trial = Trial(
        **ARMS[arm],
        name=f"{arm}-{seed}", reason="a pair", suite="benchmark", kind="quality", profile=arguments.profile,
        model=arguments.model, data=arguments.data, max_seq_len=arguments.length, micro_batch_size=2, layout="varlen",
        seed=seed, held_out_parts=PARTS, deadline_sec=14_400.0, optimizer="adamw_torch", learning_rate=rate,
        training=training,
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
    """Return the difference over all pairs, and what both stages say in ORDERS random orders of them."""
    reference, count = losses["reference"], len(losses[arm])
    difference = paired_difference(reference, losses[arm])
    if difference is None:
        return []
    value = f"{difference.percent:+.3f} % ({difference.low:+.3f} to {difference.high:+.3f})"
    shown = [
        Figure(name=f"{arm} against reference, {count} pairs", value=value, ratio=f"deviation {difference.sd:.3f} %")
    ]
    if count < STAGE_1:
        return shown
    random, same, worse, pairs, same_in_stage_1 = np.random.default_rng(15), 0, 0, 0, 0
    for _ in range(ORDERS):
        order = random.permutation(count)
        bases, values = [reference[number] for number in order], [losses[arm][number] for number in order]
        first = paired_difference(bases[:STAGE_1], values[:STAGE_1])
        if first is None:
            raise ValueError("stage 1 has pairs")
        needed = pairs_of_both_stages(first, MARGIN, min(count, QualitySection().max_pairs))
        compared = paired_difference(bases[:needed], values[:needed], STAGE_1) or first
        same, worse = same + (compared.high <= MARGIN), worse + (compared.low > MARGIN)
        pairs, same_in_stage_1 = pairs + needed, same_in_stage_1 + (first.high <= MARGIN)
    text = f"{100 * same / ORDERS:.0f} % the same, {100 * worse / ORDERS:.0f} % worse, {pairs / ORDERS:.1f} pairs"
    ratio = f"stage 1 only: {100 * same_in_stage_1 / ORDERS:.0f} % the same"
    return [*shown, Figure(name=f"{arm}: both stages at {MARGIN:g} %", value=text, ratio=ratio, goal=expected)]


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
