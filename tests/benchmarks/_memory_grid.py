"""Predicted against measured peak memory, and the speed, of a grid of configurations on one GPU, in one process.

    python -m tests.benchmarks._memory_grid MODEL DATA OUT.jsonl

MODEL needs Mistral's shape only, its weights may be random. One line of JSON a configuration; at the end the errors of
`bench.footprint`. A base is loaded once for all batches of one recipe, because loading takes longer than measuring. Not
one process each, as trials are: what one configuration leaves behind is given back before the next
(`torch.cuda.empty_cache`), and the peak is reset.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import data, footprint, qlora, recipes, stack
from bench.inputs import read_data
from bench.trial import ATTENTION_PROJECTIONS, Trial

WARMUP, MEASURED = 2, 4
ALL_LINEAR = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")
NONE: dict[str, Any] = {"gradient_checkpointing": False}
EVERY: dict[str, dict[str, Any]] = {
    "none": NONE,
    "all": {"gradient_checkpointing": True},
    "every-4": {"gradient_checkpointing": True, "checkpoint_every": 4},
    "offload": {"gradient_checkpointing": True, "offload_checkpoints": True},
}


def grid(model: str, text: str) -> list[list[Trial]]:
    """60 configurations in groups that share a loaded base."""

    def group(recipe: str, recompute: str, sizes: str, **fixed: Any) -> list[Trial]:
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


def measure(group: list[Trial], config: dict[str, Any], modules: stack.Stack) -> Iterator[dict[str, Any]]:
    """Each configuration of the group over one base."""
    torch = modules.torch
    placement = qlora.place(modules)
    tokenizer = data.load_tokenizer(modules, group[0].model)
    _, conversations = read_data(Path(group[0].data))
    began = time.perf_counter()
    base = qlora.load_base(modules, group[0], placement)
    step = recipes.build(group[0].recipe, modules, group[0], placement, base)
    loaded = time.perf_counter() - began
    for trial in group:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        rows = data.make_rows(trial, conversations, tokenizer)
        batches = data.make_batches(modules, trial, rows, tokenizer, pin_memory=True)
        said: dict[str, Any] = {"name": trial.name, "trial": trial.to_json(), "recipe_built": step.recipe}
        said["predicted_bytes"] = footprint.peak_bytes(config, trial)
        try:
            seconds, useful, tokens = [], 0, 0
            for number, batch in enumerate(batches):
                step.wait()
                start = time.perf_counter()
                step(iter([batch]), 1)
                step.wait()
                if number >= WARMUP:
                    seconds.append(time.perf_counter() - start)
                    useful, tokens = useful + batch.useful_tokens, tokens + batch.tokens
            middle = statistics.median(seconds)
            said |= {
                "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved(),
                "step_time_sec": middle,
                "tokens_per_sec": tokens / len(seconds) / middle,
                "useful_tokens_per_sec": useful / len(seconds) / middle,
                "load_time_sec": loaded,
            }
        except torch.cuda.OutOfMemoryError as error:
            said |= {"peak_bytes": None, "reason": str(error)[:200]}
        yield said


def main(model: str, text: str, out: str) -> None:
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    modules = stack.load()
    found: list[dict[str, Any]] = []
    with Path(out).open("w", encoding="utf-8") as file:
        for group in grid(model, text):
            for said in measure(group, config, modules):
                found.append(said)
                file.write(json.dumps(said) + "\n")
                file.flush()
                if said["peak_bytes"]:
                    print(
                        f"{said['name']:<40} {said['peak_bytes'] / 2**30:7.2f} GiB, predicted "
                        f"{said['predicted_bytes'] / 2**30:7.2f} ({error_percent(said):+.1f} %), "
                        f"{said['useful_tokens_per_sec']:9,.0f} useful tokens/s",
                        flush=True,
                    )
            gc.collect()
            modules.torch.cuda.empty_cache()
    summary(found)


def error_percent(said: dict[str, Any]) -> float:
    return float(100.0 * (said["predicted_bytes"] / said["peak_bytes"] - 1.0))


def summary(found: list[dict[str, Any]]) -> None:
    """The errors over all that fitted."""
    errors = [abs(error_percent(said)) for said in found if said["peak_bytes"]]
    print(f"{len(errors)} points: prediction error median {statistics.median(errors):.1f} %, worst {max(errors):.1f} %")


if __name__ == "__main__":
    main(*itertools.islice(sys.argv, 1, 4))
