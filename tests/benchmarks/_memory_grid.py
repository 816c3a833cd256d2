"""Predicted against measured peak memory, and the speed, of the configurations of a file, on one GPU.

    python -m tests.benchmarks._memory_grid MODEL DATA OUT.jsonl [POINTS.jsonl] [--predict]

POINTS.jsonl is a file of this folder. grid_h200.jsonl, the default, has the 60 configurations that the constants of
`bench.predict.memory` come from; those of held_out_h200.jsonl were chosen afterwards, to combine other values, and
their predictions were written down (--predict) before they were measured; those of held_out_2_h200.jsonl were chosen
after the corrections that those led to; no_dropout_h200.jsonl is without LoRA's dropout.

MODEL needs Mistral's shape only, its weights may be random. One line of JSON a configuration; at the end the errors of
`bench.predict.memory`. Each configuration has a process of its own, because a base's NF4 weights were seen to stay
(3.353 GiB each; held_out_h200.jsonl has peaks with other bases loaded, and the values without).
"""

import argparse
import dataclasses
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.collate import make_batches, make_rows
from bench.data.readers import read_data
from bench.data.tokenizer import load_tokenizer
from bench.predict import memory
from bench.qlora import recipes
from bench.qlora.step import choose_placement
from bench.records import Trial
from tests.benchmarks.predicted_memory import GRID, read

WARMUP, MEASURED = 2, 4


def measure(trial: Trial) -> dict[str, Any]:
    """Measure one configuration; an out of memory is an answer too."""
    modules = torch_stack.load()
    torch, placement = modules.torch, choose_placement(modules)
    tokenizer = load_tokenizer(Path(trial.model))
    rows = make_rows(trial, read_data(Path(trial.data))[1], tokenizer)
    began = time.perf_counter()
    step = recipes.load(modules, trial, placement)
    point: dict[str, Any] = {"recipe_built": step.recipe, "load_time_sec": time.perf_counter() - began}
    torch.cuda.reset_peak_memory_stats()
    seconds, useful, tokens = [], 0, 0
    try:
        for number, batch in enumerate(make_batches(modules, trial, rows, tokenizer, pin_memory=True)):
            taken, _, _ = step.run_timed(iter([batch]), 1)
            if number >= trial.warmup_steps:
                seconds.append(taken)
                useful, tokens = useful + batch.useful_tokens, tokens + batch.tokens
    except torch.cuda.OutOfMemoryError as error:
        return point | {"peak_bytes": None, "reason": str(error)[:200]}
    middle = statistics.median(seconds)
    return point | {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "step_time_sec": middle,
        "tokens_per_sec": tokens / len(seconds) / middle,
        "useful_tokens_per_sec": useful / len(seconds) / middle,
    }


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks._memory_grid")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("points", nargs="?", type=Path, default=GRID)
    parser.add_argument("--predict", action="store_true", help="write the predictions and measure nothing")
    arguments = parser.parse_args(argv)
    config = json.loads((Path(arguments.model) / "config.json").read_text(encoding="utf-8"))
    changes = {"model": arguments.model, "data": arguments.data, "warmup_steps": WARMUP, "measured_steps": MEASURED}
    errors = []
    with (
        arguments.out.open("w", encoding="utf-8") as file,
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool,
    ):
        for row in read(arguments.points):
            trial = dataclasses.replace(row["trial"], **changes)
            point = {"name": trial.name, "trial": trial.to_json(), "predicted_bytes": memory.peak_bytes(config, trial)}
            point |= {} if arguments.predict else pool.submit(measure, trial).result()
            file.write(json.dumps(point) + "\n")
            file.flush()
            line = f"{trial.name:<40} predicted {point['predicted_bytes'] / 2**30:7.2f} GiB"
            if point.get("peak_bytes"):
                errors.append(100.0 * (point["predicted_bytes"] / point["peak_bytes"] - 1.0))
                line += (
                    f", measured {point['peak_bytes'] / 2**30:7.2f} ({errors[-1]:+.1f} %), "
                    f"{point['useful_tokens_per_sec']:9,.0f} useful tokens/s"
                )
            print(line, flush=True)
    if errors:
        sizes = list(map(abs, errors))
        middle = statistics.median(sizes)
        print(f"{len(sizes)} points: prediction error median {middle:.2f} %, worst {max(sizes):.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
