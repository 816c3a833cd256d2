"""`inv tune`'s search against an exhaustive grid: the best it finds, and what part of the grid's GPU time it takes.

Replayed, not run: how fast each configuration is comes from a table (`_tune_worlds`), and the search asks that table
instead of a fleet. Its parts are the real ones: `bench.predict.memory` says what fits, `bench.predict.throughput`
predicts rates, `tasks.tuning.search` chooses. Every world is searched many times, with other scatter and noise each
time.

GPU time is what processes hold a GPU for: each one's start, FIXED_SEC for importing, loading and measuring ceilings,
and its steps. The search pays for every short trial, those that run out of memory included (their start alone), and for
each finalist as many full processes as the settings say; the grid for one full process of every candidate that fits.

The memory errors are over the 60 points that `bench.predict.memory` was fitted to, and over those of three files
that were predicted before they were measured (HELD_OUT), each after what the one before it taught had been mended.
"""

import json
import math
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.predict import flops, memory
from bench.records import ALL_LINEAR, SCALES, Trial
from tasks.settings.schema import TuneSection
from tasks.tuning.planning import SHORT_STEPS
from tasks.tuning.search import Search
from tasks.tuning.space import DIMENSIONS, Candidate, MemoryLimit, TrialObservation
from tests.benchmarks import Figure
from tests.benchmarks._tune_scenarios import GRID, RECIPES, World, changed, measured, points, recompute_of, space
from tests.mistral_7b import CONFIG

HELD_OUT = tuple(GRID.with_name(f"{name}_h200.jsonl") for name in ("held_out", "held_out_2", "no_dropout"))
FIXED_SEC = 20.0
SEEDS = range(10)
LIMITS_GIB = (21.5, 12.0)
WORKERS = (1, 4, 8)
NOISE = {"pad": 0.015, "varlen": 0.015, "bucket": 0.04}  # of a short trial's log rate; buckets differ in length
FULL_NOISE = 0.007  # of a full trial's, between processes (docs/measurements.md)


def main() -> list[Figure]:
    found = space(SHORT_STEPS["gpu"])
    known = {(row["recipe"], row["layout"], row["micro_batch_size"], recompute_of(row)) for row in points()}
    on_grid = [one for one in found if tuple(one.choice[name] for name in DIMENSIONS) in known]
    figures = memory_figures()
    for limit_gib in LIMITS_GIB:
        figures.append(_replayed(on_grid, limit_gib, "the grid's own points alone"))
        figures += [_replayed(found, limit_gib, f"the whole space over {count}", workers=count) for count in WORKERS]
        figures += [_replayed(found, limit_gib, name, unlike=name) for name in changed(found, measured(found))]
    return figures


def _replayed(
    found: Sequence[Candidate], limit_gib: float, name: str, *, workers: int = 4, unlike: str | None = None
) -> Figure:
    """One figure of as many searches as there are seeds; in the world that is `unlike` the measured one in this way."""
    rows = []
    for seed in SEEDS:
        world = measured(found, seed=seed)
        rows.append(replay(found, changed(found, world)[unlike] if unlike else world, limit_gib, workers, seed))
    quality, cost, tried, fitting = zip(*rows, strict=True)
    value = (
        f"best found: median {statistics.median(quality):.1f} %, worst {min(quality):.1f} %; GPU time: median "
        f"{statistics.median(cost):.1f} %, worst {max(cost):.1f} % of the grid's; "
        f"{statistics.median(tried):.0f} of {statistics.median(fitting):.0f} tried"
    )
    return Figure(name=f"tune, {name}, within {limit_gib} GiB", value=value, goal=">= 98 %, <= 15 %")


def replay(
    found: Sequence[Candidate], world: World, limit_gib: float, workers: int, seed: int
) -> tuple[float, float, int, int]:
    """One search: (% of the best rate in the grid, % of the grid's GPU time, configurations tried, how many fit)."""
    settings, limit_bytes = TuneSection(), round(limit_gib * 2**30)
    noise = random.Random(1000 + seed)
    fitting = [one for one in found if world[one.key].peak_bytes <= limit_bytes]
    observed: list[TrialObservation] = []
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder) / "journal.log", found, recipes=RECIPES)
        while True:
            limit = MemoryLimit(limit_bytes, observed)
            wave = search.next_wave(limit, min(workers, settings.trials - len(search.results)))
            if not wave:
                break
            for one in wave:
                truth = world[one.key]
                fits = truth.peak_bytes <= limit_bytes
                observed.append(TrialObservation(candidate=one, peak_bytes=truth.peak_bytes if fits else None))
                rate = truth.rate * math.exp(noise.gauss(0.0, NOISE[one.choice["layout"]]))
                search.record(one, rate if fits else None, is_too_large=not fits)
                spent += FIXED_SEC + (sum(SHORT_STEPS["gpu"]) * truth.step_sec if fits else 0.0)
        tried = len(search.results)
        chosen = search.finalists(MemoryLimit(limit_bytes, observed), settings.finalists)
    steps = SCALES["gpu"].warmup_steps + SCALES["gpu"].measured_steps
    spent += settings.repeats * sum(FIXED_SEC + steps * world[one.key].step_sec for one in chosen)
    exhaustive = sum(FIXED_SEC + steps * world[one.key].step_sec for one in fitting)
    full = {
        one.key: world[one.key].rate * math.exp(noise.gauss(0.0, FULL_NOISE / math.sqrt(settings.repeats)))
        for one in chosen
        if world[one.key].peak_bytes <= limit_bytes
    }
    answer = max(full, key=full.__getitem__)
    best = max(world[one.key].rate for one in fitting)
    return 100.0 * world[answer].rate / best, 100.0 * spent / exhaustive, tried, len(fitting)


KEPT = (
    *("recipe", "layout", "max_seq_len", "micro_batch_size", "optimizer", "lora_rank"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints"),
)


def read() -> list[dict[str, Any]]:
    """The grid's points, each with its `trial`."""
    rows = [json.loads(line) for line in GRID.read_text(encoding="utf-8").splitlines()[1:]]
    for row in rows:
        row["trial"] = Trial(
            name="-".join(str(row[name]) for name in ("recipe", "layout", "max_seq_len", "micro_batch_size")),
            reason="a point of the grid",
            suite="grid",
            profile="gpu",
            model="models/mistral",
            data="data/d.jsonl",
            lora_alpha=2 * row["lora_rank"],
            lora_targets=ALL_LINEAR[: row["targets"]],
            **{name: row[name] for name in KEPT},
        )
    return rows


def fitted_ratios() -> list[float]:
    """Predicted over measured peak, of each point that the constants of `bench.predict.memory` were fitted to."""
    return [_ratio(row["trial"], row["peak_bytes"]) for row in read()]


def held_out(file: Path) -> list[dict[str, Any]]:
    """The points of a file that they were not fitted to, with what was predicted of each before it was measured."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    return [row for row in rows if row["peak_bytes"] and row["model"].startswith("Mistral")]


def held_out_ratios(file: Path) -> list[float]:
    """Predicted over measured peak of these, by `bench.predict.memory` as it is now."""
    ratios = []
    for row in held_out(file):
        trial = Trial.from_json({**row["trial"], "model": "models/m", "data": "data/d.jsonl"})
        ratios.append(_ratio(trial, row["peak_bytes"]))
    return ratios


def _ratio(trial: Trial, measured: int) -> float:
    """Embeddings and head are added to offloaded points: when these were measured, they still lay on the GPU."""
    tables = 2 * 2 * flops.head_weights(CONFIG) if trial.offload_checkpoints else 0
    return (memory.peak_bytes(CONFIG, trial, captured=False) + tables) / measured


def memory_figures() -> list[Figure]:
    """Of the points that the constants were fitted to, and of those that were not: as predicted before they were
    measured, and by the model as it is since."""
    figures = [_memory_figure("points of the grid", fitted_ratios())]
    for file in HELD_OUT:
        beforehand = [row["predicted_bytes"] / row["peak_bytes"] for row in held_out(file)]
        figures.append(_memory_figure(f"points of {file.name}, beforehand", beforehand))
        figures.append(_memory_figure("the same, since then", held_out_ratios(file)))
    return figures


def _memory_figure(name: str, ratios: list[float]) -> Figure:
    errors = [100.0 * abs(ratio - 1.0) for ratio in ratios]
    return Figure(
        name=f"predicted peak memory, {len(errors)} {name}",
        value=f"median error {statistics.median(errors):.2f} %, worst {max(errors):.1f} %",
        goal="<= 3 %, <= 8 %",
    )
