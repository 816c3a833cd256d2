"""`inv tune`'s search against an exhaustive grid: the best rate it reaches, and its share of the grid's GPU time.

Replayed, not run: how fast each configuration is comes from a table (`_tune_scenarios`), and the search asks that table
instead of a fleet. Its parts are the real ones: `bench.predict.memory` says what fits, `bench.predict.throughput`
predicts rates, `tasks.tuning.search` chooses. Every scenario is searched many times, with new scatter and noise.

GPU time is what processes hold a GPU for: each one's start, FIXED_SEC for importing, loading and measuring ceilings,
and its steps. The search pays for every short trial, those that run out of memory included (only their start), and for
each finalist as many full processes as the settings say; the grid for one full process of every candidate that fits.

The memory errors are over the 60 points that `bench.predict.memory` was fitted to, and over those of three files
that were predicted before they were measured (HELD_OUT), each after the corrections from the one before.
"""

import json
import math
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.predict import flops, memory
from bench.records import Trial
from bench.records.trial import SCALES
from bench.records.validation import ALL_LINEAR
from tasks.settings.schema import TuneSection
from tasks.tuning import search
from tasks.tuning.space import DIMENSIONS, Candidate, MemoryLimit, TrialObservation
from tasks.tuning.tune import SHORT_STEPS
from tests.benchmarks import Figure, print_figures
from tests.benchmarks._tune_scenarios import GRID, Scenario, changed, measured, points, recompute_of, space
from tests.model_shapes import MISTRAL_7B as CONFIG

HELD_OUT = tuple(GRID.with_name(f"{name}_h200.jsonl") for name in ("held_out", "held_out_2", "no_dropout"))
FIXED_SEC = 20.0
SEEDS = range(10)
LIMITS_GIB = (21.5, 12.0)
WORKERS = (1, 4, 8)
NOISE = {
    "pad": 0.015,
    "varlen": 0.015,
    "bucket": 0.04,
}  # standard deviation of a short trial's log rate; buckets differ in length
FULL_NOISE = 0.007  # the same for a full trial, between processes (docs/measurements.md)


def main() -> list[Figure]:
    candidates = space(SHORT_STEPS["gpu"])
    known = {(row["recipe"], row["layout"], row["micro_batch_size"], recompute_of(row)) for row in points()}
    on_grid = [candidate for candidate in candidates if tuple(candidate.choice[name] for name in DIMENSIONS) in known]
    figures = memory_figures()
    for limit_gib in LIMITS_GIB:
        figures.append(_replayed(on_grid, limit_gib, "only the grid's own points"))
        figures += [
            _replayed(candidates, limit_gib, f"the whole space over {count}", workers=count) for count in WORKERS
        ]
        figures += [
            _replayed(candidates, limit_gib, name, unlike=name) for name in changed(candidates, measured(candidates))
        ]
    return figures


def _replayed(
    candidates: Sequence[Candidate], limit_gib: float, name: str, *, workers: int = 4, unlike: str | None = None
) -> Figure:
    """Make one figure of a search per seed, in the measured scenario or the one named `unlike`."""
    rows = []
    for seed in SEEDS:
        world = measured(candidates, seed=seed)
        rows.append(
            replay(candidates, changed(candidates, world)[unlike] if unlike else world, limit_gib, workers, seed)
        )
    quality, cost, tried, fitting = zip(*rows, strict=True)
    value = (
        f"best found: median {statistics.median(quality):.1f} %, worst {min(quality):.1f} %; GPU time: median "
        f"{statistics.median(cost):.1f} %, worst {max(cost):.1f} % of the grid's; "
        f"{statistics.median(tried):.0f} of {statistics.median(fitting):.0f} tried"
    )
    return Figure(name=f"tune, {name}, within {limit_gib} GiB", value=value, goal=">= 98 %, <= 15 %")


def replay(
    candidates: Sequence[Candidate], world: Scenario, limit_gib: float, workers: int, seed: int
) -> tuple[float, float, int, int]:
    """Run one search; return % of the best rate, % of the grid's GPU time, tried configurations, fitting ones."""
    settings, limit_bytes = TuneSection(), round(limit_gib * 2**30)
    noise = random.Random(1000 + seed)
    fitting = [candidate for candidate in candidates if world[candidate.key].peak_bytes <= limit_bytes]
    observed: list[TrialObservation] = []
    spent = 0.0
    surrogate, outcomes = search.Surrogate(candidates), dict[str, float | None]()
    while True:
        limit = MemoryLimit(limit_bytes, observed)
        wave = search.choose_wave(surrogate, outcomes, limit, min(workers, settings.trials - len(outcomes)))
        if not wave:
            break
        for proposal in wave:
            truth = world[proposal.key]
            fits = truth.peak_bytes <= limit_bytes
            observed.append(TrialObservation(candidate=proposal, peak_bytes=truth.peak_bytes if fits else None))
            rate = truth.rate * math.exp(noise.gauss(0.0, NOISE[proposal.choice["layout"]]))
            outcomes[proposal.key] = rate if fits else None
            spent += FIXED_SEC + (sum(SHORT_STEPS["gpu"]) * truth.step_sec if fits else 0.0)
    chosen = search.finalists(surrogate, outcomes, MemoryLimit(limit_bytes, observed), settings.finalists)
    steps = SCALES["gpu"].warmup_steps + SCALES["gpu"].measured_steps
    spent += settings.repeats * sum(FIXED_SEC + steps * world[candidate.key].step_sec for candidate in chosen)
    exhaustive = sum(FIXED_SEC + steps * world[candidate.key].step_sec for candidate in fitting)
    full = {
        candidate.key: world[candidate.key].rate * math.exp(noise.gauss(0.0, FULL_NOISE / math.sqrt(settings.repeats)))
        for candidate in chosen
        if world[candidate.key].peak_bytes <= limit_bytes
    }
    answer = max(full, key=full.__getitem__)
    best = max(world[candidate.key].rate for candidate in fitting)
    return 100.0 * world[answer].rate / best, 100.0 * spent / exhaustive, len(outcomes), len(fitting)


KEPT = (
    *("recipe", "layout", "max_seq_len", "micro_batch_size", "optimizer", "lora_rank"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints"),
)


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


def memory_figures() -> list[Figure]:
    """Make the figures of fitted and held-out points: as predicted before measuring, and by today's model."""
    figures = [_memory_figure("points of the grid", memory_ratios(GRID))]
    for file in HELD_OUT:
        beforehand = [row["predicted_bytes"] / row["peak_bytes"] for row in read(file)]
        figures.append(_memory_figure(f"points of {file.name}, beforehand", beforehand))
        figures.append(_memory_figure("the same, since then", memory_ratios(file)))
    return figures


def _memory_figure(name: str, ratios: list[float]) -> Figure:
    errors = [100.0 * abs(ratio - 1.0) for ratio in ratios]
    return Figure(
        name=f"predicted peak memory, {len(errors)} {name}",
        value=f"median error {statistics.median(errors):.2f} %, worst {max(errors):.1f} %",
        goal="<= 3 %, <= 8 %",
    )


if __name__ == "__main__":
    print_figures(main())
