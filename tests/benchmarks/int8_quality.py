"""Cost of products in 8 bits: gradient errors, and the held-out loss of the trained adapter, computed in bf16.

    python -m tests.benchmarks.int8_quality --model DIR --data FILE [--seeds 3] [--steps 200] [--targets all-linear]

DIR holds real weights: random ones have no outliers and hide the cost of rounding. Gradients are those of `fast_equal`.
Each training takes 4 x 256 tokens a step, rank 16 on attention or all linear layers, the same batches in the same order
for every choice of `matmul`, and other adapters and dropout masks for each seed. Held-out loss is a target token's,
over batches that no step has seen, with the adapter in a model whose products are all in bf16, as it will be served;
differences to bf16 are paired by seed, with Student's 95 % interval.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.qlora.step import choose_placement
from bench.records.student import quantile
from bench.records.trial import MATMULS
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS
from tests.benchmarks import Figure, a_trial, print_figures
from tests.benchmarks.fast_equal import REFERENCE, Equality

HELD_OUT = 64  # batches
TARGETS = {"attention": ATTENTION_PROJECTIONS, "all-linear": ALL_LINEAR}
LAST = 50  # steps at the end over which the training loss is a mean


def main(argv: Sequence[str] = ()) -> list[Figure]:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.int8_quality")
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--targets", choices=TARGETS, default="attention", help="the layers with adapters")
    parser.add_argument("--json", type=Path, help="every loss, for a record")
    arguments = parser.parse_args(argv)
    modules = torch_stack.load()
    trial = a_trial(
        "quality", arguments.model, data=arguments.data, recipe="fast", max_seq_len=256, micro_batch_size=4,
        warmup_steps=0, measured_steps=arguments.steps + HELD_OUT, gradient_checkpointing=False,
        lora_targets=TARGETS[arguments.targets],
    )  # fmt: skip
    equal = Equality(modules, choose_placement(modules), trial)
    quality = Quality(equal, arguments.steps)
    figures = equal.gradients([REFERENCE, *((name, "fast", {"matmul": name}) for name in MATMULS)])
    losses = {choice: [quality.trained(choice, seed) for seed in range(arguments.seeds)] for choice in MATMULS}
    if arguments.json:
        arguments.json.write_text(json.dumps(losses, indent=1))
    return figures + [_figure(choice, losses) for choice in MATMULS]


class Quality:
    """One model, one data set, one device."""

    def __init__(self, equal: Equality, steps: int) -> None:
        self._equal, self._steps = equal, steps
        self._torch = equal.modules.torch
        self._held_out = equal.batches[steps : steps + HELD_OUT]

    def trained(self, matmul: str, seed: int) -> dict[str, float]:
        """Train; return the training loss of the last steps and the held-out loss in bf16."""
        step = self._equal.build("fast", matmul=matmul, seed=seed)
        self._torch.manual_seed(1000 + seed)
        losses = [float(step(iter([batch]), 1)) for batch in islice(self._equal.batches, self._steps)]
        adapters = [each.detach().clone() for each in step.model.parameters() if each.requires_grad]
        recipe = f"{step.recipe} {' '.join(step.notes)}"
        del step
        self._equal.free()
        served = self._equal.build("fast", seed=seed).model
        with self._torch.no_grad():
            for parameter, value in zip(
                (each for each in served.parameters() if each.requires_grad), adapters, strict=True
            ):
                parameter.copy_(value)
        run_losses = {"training": statistics.fmean(losses[-LAST:]), "held_out": self._loss(served)}
        print(f"{recipe}, seed {seed}: {run_losses}", flush=True)
        del served
        self._equal.free()
        return run_losses

    def _loss(self, model: Any) -> float:
        model.eval()
        total = targets = 0.0
        with self._torch.no_grad():
            for batch in self._held_out:
                count = int((batch.labels[:, 1:] != -100).sum())
                total += float(model(**self._equal.inputs(batch)).loss) * count
                targets += count
        return total / targets


def _figure(choice: str, losses: dict[str, list[dict[str, float]]]) -> Figure:
    held_out = [run_losses["held_out"] for run_losses in losses[choice]]
    training = statistics.fmean(run_losses["training"] for run_losses in losses[choice])
    value = f"held-out loss {statistics.fmean(held_out):.4f}, training {training:.4f}"
    apart = [loss / plain["held_out"] - 1 for loss, plain in zip(held_out, losses["bf16"], strict=True)]
    if choice == "bf16" or len(apart) < 2:
        return Figure(name=f"trained with matmul {choice}", value=value)
    half = quantile(0.95, len(apart) - 1) * statistics.stdev(apart) / len(apart) ** 0.5
    middle = statistics.fmean(apart)
    ratio = f"{100 * middle:+.3f} % ({100 * (middle - half):+.3f} to {100 * (middle + half):+.3f})"
    return Figure(name=f"trained with matmul {choice}", value=value, ratio=ratio)


if __name__ == "__main__":
    print_figures(main(sys.argv[1:]))
