"""Predicted against measured peak memory, on points that were measured on one H200; needs no GPU.

The errors are over the 60 points that `bench.predict.memory` was fitted to, and over those of three files that were
predicted before they were measured (HELD_OUT), each after the corrections from the one before.
"""

import json
import statistics
from pathlib import Path
from typing import Any

from bench.predict import flops, memory
from bench.records import Trial
from bench.records.validation import ALL_LINEAR
from tests.benchmarks import Figure, print_figures
from tests.model_shapes import MISTRAL_7B as CONFIG

GRID = Path(__file__).with_name("grid_h200.jsonl")
HELD_OUT = tuple(GRID.with_name(f"{name}_h200.jsonl") for name in ("held_out", "held_out_2", "no_dropout"))
KEPT = (
    *("recipe", "layout", "max_seq_len", "micro_batch_size", "optimizer", "lora_rank"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints"),
)


def main() -> list[Figure]:
    """Make the figures of fitted and held-out points: as predicted before measuring, and by today's model."""
    figures = [_figure("points of the grid", memory_ratios(GRID))]
    for file in HELD_OUT:
        beforehand = [row["predicted_bytes"] / row["peak_bytes"] for row in read(file)]
        figures.append(_figure(f"points of {file.name}, beforehand", beforehand))
        figures.append(_figure("the same, since then", memory_ratios(file)))
    return figures


def read(file: Path) -> list[dict[str, Any]]:
    """Read a file's points of Mistral's shape, each with its `trial`."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    inputs = {"model": "models/mistral", "data": "data/d.jsonl"}
    for row in rows:
        if "trial" in row:
            row["trial"] = Trial.from_json(row["trial"] | inputs)
            continue
        row["trial"] = Trial(
            name="-".join(str(row[name]) for name in ("recipe", "layout", "max_seq_len", "micro_batch_size")),
            reason="a point of the grid",
            suite="grid",
            profile="gpu",
            lora_alpha=2 * row["lora_rank"],
            lora_targets=ALL_LINEAR[: row["targets"]],
            **inputs,
            **{name: row[name] for name in KEPT},
        )
    return [row for row in rows if row["peak_bytes"] and row.get("model", "Mistral").startswith("Mistral")]


def memory_ratios(file: Path) -> list[float]:
    """Return predicted over measured peak of a file's points, by today's `bench.predict.memory`."""
    return [_ratio(row["trial"], row["peak_bytes"]) for row in read(file)]


def _ratio(trial: Trial, measured: int) -> float:
    """Compute the ratio; embeddings and head count for offloaded points, since they were on the GPU when measured."""
    tables = 2 * 2 * flops.head_weights(CONFIG) if trial.offload_checkpoints else 0
    return (memory.peak_bytes(CONFIG, trial, captured=False) + tables) / measured


def _figure(name: str, ratios: list[float]) -> Figure:
    errors = [100.0 * abs(ratio - 1.0) for ratio in ratios]
    return Figure(
        name=f"predicted peak memory, {len(errors)} {name}",
        value=f"median error {statistics.median(errors):.2f} %, worst {max(errors):.1f} %",
        goal="<= 3 %, <= 8 %",
    )


if __name__ == "__main__":
    print_figures(main())
