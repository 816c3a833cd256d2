"""Predicted against measured peak memory, and the speed, of a grid of configurations on one GPU, in one process.

    python -m tests.benchmarks._memory_grid MODEL DATA OUT.jsonl [fitted|held-out|...] [--predict]

`fitted`, the default, are the 60 configurations that the constants of `bench.predict.memory` come from; `held-out`
were chosen afterwards, to combine other values, and their predictions were written down (--predict,
into held_out_h200.jsonl) before they were measured; `held-out-2` were chosen after the corrections that those led to,
with predictions in held_out_2_h200.jsonl; `no-dropout` are without LoRA's dropout; `llama` is for a model of another
shape. `space` is what `inv tune` searches among the recipes fast and stock within 21.5 GiB, at 640 positions a row.

MODEL needs Mistral's shape only, its weights may be random. One line of JSON a configuration; at the end the errors of
`bench.predict.memory`. A base is loaded once for all batches of one recipe, because loading takes longer than
measuring: leftover memory is released before the next configuration (`torch.cuda.empty_cache`), and the peak
is reset. Each group has a process of its own, because a base's NF4 weights were seen to stay (3.353 GiB each;
held_out_h200.jsonl has peaks with other bases loaded, and the values without).
"""

import argparse
import functools
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench import torch_stack
from bench.data.collate import make_batches, make_rows
from bench.data.readers import read_data
from bench.data.tokenizer import load_tokenizer
from bench.predict import memory
from bench.qlora import recipes
from bench.qlora.step import choose_placement, load_base
from bench.records import Trial
from bench.records.validation import ALL_LINEAR, ATTENTION_PROJECTIONS

WARMUP, MEASURED = 2, 4
SPACE_STEPS = (2, 3)
SPACE_LIMIT_BYTES, SPACE_LONGEST = int(21.5 * 2**30), 640  # 99 % of the demo's samples are no longer
NONE: dict[str, Any] = {"gradient_checkpointing": False}
EVERY: dict[str, dict[str, Any]] = {
    "none": NONE,
    "all": {"gradient_checkpointing": True},
    "every-2": {"gradient_checkpointing": True, "checkpoint_every": 2},
    "every-4": {"gradient_checkpointing": True, "checkpoint_every": 4},
    "offload": {"gradient_checkpointing": True, "offload_checkpoints": True},
}


def _group(model: str, text: str, recipe: str, recompute: str, sizes: str, **fixed: Any) -> list[Trial]:
    """Make one trial for each of `sizes`, LAYOUTxLENGTHxBATCH, with the common fields `fixed`."""
    listed = [word.split("x") for word in sizes.split()]
    about = [str(len(value) if isinstance(value, tuple) else value) for value in fixed.values()]
    return [
        Trial(
            name="-".join([recipe, layout, f"{length}x{batch}", recompute, *about]),
            reason="a point of the grid",
            suite="grid",
            profile="gpu",
            model=model,
            data=text,
            recipe=recipe,
            layout=layout,
            max_seq_len=int(length),
            micro_batch_size=int(batch),
            optimizer="paged_adamw_8bit" if recipe == "reference" else "adamw_torch",
            warmup_steps=WARMUP,
            measured_steps=MEASURED,
            **EVERY[recompute],
            **fixed,
        )
        for layout, length, batch in listed
    ]


def fitted(model: str, text: str) -> list[list[Trial]]:
    """Return 60 configurations in groups that share a loaded base."""
    group = functools.partial(_group, model, text)
    pads = " ".join(f"padx512x{batch}" for batch in (1, 2, 4, 8, 16, 32))
    return [
        group("reference", "all", "padx512x1 padx512x2 padx512x4 padx512x8 padx512x16 varlenx512x8"),
        group("reference", "none", "padx512x1 padx512x2 padx512x4 padx512x8 varlenx512x8"),
        group("reference", "all", "padx512x4 padx512x8", lora_targets=ALL_LINEAR),
        group("stock", "all", "padx512x4 padx512x16 varlenx512x8"),
        group("stock", "none", "padx512x4 padx512x8 varlenx512x8"),
        group("fast", "none", f"{pads} varlenx512x4 varlenx512x8 varlenx512x16 varlenx512x32"),
        group("fast", "all", f"{pads} varlenx512x16 varlenx512x32"),
        group("fast", "every-4", pads),
        group("fast", "offload", "padx512x4 padx512x8 padx512x16 padx512x32"),
        group("fast", "none", "padx1024x4 padx1024x8"),
        group("fast", "none", "padx2048x2 padx2048x4"),
        group("fast", "all", "padx2048x4 padx2048x8"),
        group("fast", "none", "padx512x4 padx512x8 padx512x16 varlenx512x8", lora_targets=ALL_LINEAR),
        group("fast", "all", "padx512x8 padx512x16", lora_targets=ALL_LINEAR),
        group("fast", "none", "padx512x8", lora_rank=64, lora_alpha=128),
    ]


def held_out(model: str, text: str) -> list[list[Trial]]:
    """Return configurations outside the fit: new lengths, batches, ranks, layouts and mixtures."""
    group = functools.partial(_group, model, text)
    return [
        group("reference", "none", "padx384x6", lora_targets=ALL_LINEAR),
        group("reference", "all", "varlenx768x6", lora_rank=64, lora_alpha=128),
        group("stock", "none", "padx768x4", lora_targets=ALL_LINEAR, lora_rank=8, lora_alpha=16),
        group("stock", "all", "padx1536x6", lora_rank=32, lora_alpha=64),
        group("fast", "every-2", "varlenx640x12 padx640x24", lora_rank=32, lora_alpha=64),
        group("fast", "none", "padx768x6", held_layers=8),
        group("fast", "offload", "varlenx1024x12", lora_targets=ALL_LINEAR),
        group("fast", "all", "padx1536x4", lora_targets=ALL_LINEAR, lora_rank=128, lora_alpha=256),
    ]


def held_out_2(model: str, text: str) -> list[list[Trial]]:
    """Return configurations outside the fit and its corrections: combinations that neither grid has."""
    group = functools.partial(_group, model, text)
    return [
        group("reference", "none", "varlenx384x4", lora_targets=ALL_LINEAR, lora_rank=64, lora_alpha=128),
        group("reference", "all", "padx1280x4", lora_rank=128, lora_alpha=256),
        group("reference", "none", "padx256x12", lora_targets=("q_proj", "v_proj", "down_proj")),
        group("stock", "none", "varlenx640x4", lora_rank=64, lora_alpha=128),
        group("stock", "all", "varlenx1024x8", lora_targets=ALL_LINEAR),
        group("fast", "every-4", "padx896x10", lora_targets=ALL_LINEAR, lora_rank=64, lora_alpha=128),
        group("fast", "none", "varlenx1280x4", held_layers=6, lora_rank=64, lora_alpha=128),
        group("fast", "offload", "padx2048x6", lora_rank=128, lora_alpha=256),
        group("fast", "all", "varlenx1536x12", lora_targets=ALL_LINEAR, lora_rank=8, lora_alpha=16),
        group("fast", "every-2", "padx384x20", held_layers=10, lora_targets=("gate_proj", "up_proj", "down_proj")),
    ]


def no_dropout(model: str, text: str) -> list[list[Trial]]:
    """Return configurations without LoRA's dropout, which all others here have."""
    group = functools.partial(_group, model, text, lora_dropout=0.0)
    return [
        group("reference", "none", "padx512x4"),
        group("reference", "all", "padx512x8"),
        group("reference", "none", "padx512x4", lora_targets=ALL_LINEAR),
        group("stock", "none", "padx512x4"),
        group("stock", "none", "padx512x4", lora_targets=ALL_LINEAR),
        group("stock", "all", "padx512x16", lora_targets=ALL_LINEAR),
    ]


def llama(model: str, text: str) -> list[list[Trial]]:
    """Return configurations for a Llama model of another shape."""
    group = functools.partial(_group, model, text)
    return [
        group("reference", "all", "padx512x8"),
        group("stock", "none", "padx1024x4"),
        group("fast", "none", "padx512x8 varlenx1024x8"),
        group("fast", "every-4", "padx768x8"),
    ]


def space(model: str, text: str) -> list[list[Trial]]:
    """Return the search space of `inv tune`, from its own code, one group for each way to build a step."""
    from tasks.tuning import space as tuning  # only this grid needs the operator's packages

    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    space = tuning.candidates(
        model=model,
        data=text,
        profile="gpu",
        recipes=("fast", "stock"),
        longest=SPACE_LONGEST,
        lora={"lora_rank": 16, "lora_alpha": 32, "lora_targets": ATTENTION_PROJECTIONS},
        steps=SPACE_STEPS,
        seed=42,
        samples=10_000,
    )
    fitting = [candidate for candidate in space if memory.peak_bytes(config, candidate.trial) <= SPACE_LIMIT_BYTES]
    ways: dict[tuple[str, str], list[Trial]] = {}
    for candidate in fitting:
        way = (candidate.choice["recipe"], candidate.choice["recompute"])
        ways.setdefault(way, []).append(candidate.trial)
    return list(ways.values())


GRIDS = {
    "fitted": fitted,
    "held-out": held_out,
    "held-out-2": held_out_2,
    "no-dropout": no_dropout,
    "llama": llama,
    "space": space,
}


def measure(group: list[Trial], config: dict[str, Any], modules: torch_stack.Stack) -> Iterator[dict[str, Any]]:
    """Measure each configuration of the group over one base."""
    torch = modules.torch
    placement = choose_placement(modules)
    tokenizer = load_tokenizer(Path(group[0].model))
    _, conversations = read_data(Path(group[0].data))
    began = time.perf_counter()
    base = load_base(modules, group[0], placement)
    step = recipes.build(group[0].recipe, modules, group[0], placement, base)
    loaded = time.perf_counter() - began
    for trial in group:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rows = make_rows(trial, conversations, tokenizer)
        batches = make_batches(modules, trial, rows, tokenizer, pin_memory=True)
        point: dict[str, Any] = {"name": trial.name, "trial": trial.to_json(), "recipe_built": step.recipe}
        point["predicted_bytes"] = memory.peak_bytes(config, trial)
        try:
            seconds, useful, tokens = [], 0, 0
            for number, batch in enumerate(batches):
                step.synchronize()
                start = time.perf_counter()
                step(iter([batch]), 1)
                step.synchronize()
                if number >= trial.warmup_steps:
                    seconds.append(time.perf_counter() - start)
                    useful, tokens = useful + batch.useful_tokens, tokens + batch.tokens
            middle = statistics.median(seconds)
            point |= {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "step_time_sec": middle,
                "tokens_per_sec": tokens / len(seconds) / middle,
                "useful_tokens_per_sec": useful / len(seconds) / middle,
                "load_time_sec": loaded,
            }
        except torch.cuda.OutOfMemoryError as error:
            point |= {"peak_bytes": None, "reason": str(error)[:200]}
        yield point


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks._memory_grid")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("which", nargs="?", choices=GRIDS, default="fitted")
    parser.add_argument("--predict", action="store_true", help="write the predictions and measure nothing")
    arguments = parser.parse_args(argv)
    config = json.loads((Path(arguments.model) / "config.json").read_text(encoding="utf-8"))
    groups = GRIDS[arguments.which](arguments.model, arguments.data)
    every_point: list[dict[str, Any]] = []
    with arguments.out.open("w", encoding="utf-8") as file, _one_process_each() as pool:
        for group in groups:
            points = predict(group, config) if arguments.predict else pool.submit(measured, group, config).result()
            for point in points:
                every_point.append(point)
                file.write(json.dumps(point) + "\n")
                print(line(point), flush=True)
            file.flush()
    summary(every_point)


def _one_process_each() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def measured(group: list[Trial], config: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure every point of a group in this process."""
    return list(measure(group, config, torch_stack.load()))


def predict(group: list[Trial], config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for trial in group:
        yield {"name": trial.name, "predicted_bytes": memory.peak_bytes(config, trial)}


def line(point: dict[str, Any]) -> str:
    """Format a point as one line."""
    predicted = f"{point['name']:<40} predicted {point['predicted_bytes'] / 2**30:7.2f} GiB"
    if not point.get("peak_bytes"):
        return predicted
    return (
        f"{predicted}, measured {point['peak_bytes'] / 2**30:7.2f} ({error_percent(point):+.1f} %), "
        f"{point['useful_tokens_per_sec']:9,.0f} useful tokens/s"
    )


def error_percent(point: dict[str, Any]) -> float:
    return float(100.0 * (point["predicted_bytes"] / point["peak_bytes"] - 1.0))


def summary(points: list[dict[str, Any]]) -> None:
    """Print the errors over all configurations that fitted."""
    errors = [abs(error_percent(point)) for point in points if point.get("peak_bytes")]
    if errors:
        middle = statistics.median(errors)
        print(f"{len(errors)} points: prediction error median {middle:.2f} %, worst {max(errors):.1f} %")


if __name__ == "__main__":
    main(sys.argv[1:])
