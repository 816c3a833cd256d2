"""`inv tune`'s search against an exhaustive grid: the best it finds, and what part of the grid's GPU time it takes.

Replayed, not run: `grid_h200.jsonl` holds what each configuration of `_memory_grid` took on a real GPU, and the search
asks that table instead of a fleet. Its parts are the real ones: `bench.footprint` says what fits, `bench.survey` orders
the first wave, Optuna chooses the rest. A trial costs its steps and FIXED_SEC for starting, importing and loading.

The memory errors are over the same 60 points that `bench.footprint` was fitted to.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import footprint, survey
from bench.trial import ATTENTION_PROJECTIONS, SCALES, Trial
from tasks.tune import SHORT_STEPS
from tasks.tuning.search import Search, finalists, goes_on, promising
from tasks.tuning.space import CHOICES, RECOMPUTE, Candidate, MemoryLimit, Observation
from tests.benchmarks import Figure

GRID = Path(__file__).with_name("grid_h200.jsonl")
FIXED_SEC = 20.0
WORKERS, WAVES, FINALISTS = 4, 4, 3
SEEDS = range(20)
LIMITS_GIB = (21.5, 12.0)
RECIPES = ("reference", "stock", "fast")
MISTRAL: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32768,
}


def main() -> list[Figure]:
    about, points = read(GRID)
    figures = [memory_figure(points)]
    for limit_gib in LIMITS_GIB:
        found, costs, tried = zip(*(replay(points, limit_gib, seed) for seed in SEEDS), strict=True)
        figures += [
            Figure(
                name=f"tune within {limit_gib} GiB, against the best of the grid ({about['gpu']})",
                value=f"median {statistics.median(found):.1f} %, worst {min(found):.1f} % of {len(SEEDS)} searches",
                goal=">= 98 %",
            ),
            Figure(
                name=f"tune within {limit_gib} GiB, GPU time against the grid's",
                value=f"median {statistics.median(costs):.0f} %, {statistics.median(tried):.0f} configurations tried",
                goal="<= 15 %",
            ),
        ]
    return figures


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the grid ran on, and its points, each with its `trial`."""
    about, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        everywhere = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")
        row["trial"] = Trial(
            name="-".join(str(row[name]) for name in ("recipe", "layout", "max_seq_len", "micro_batch_size")),
            reason="a point of the grid",
            suite="grid",
            profile="gpu",
            model="models/mistral",
            data="data/d.jsonl",
            lora_alpha=2 * row["lora_rank"],
            lora_targets=everywhere[: row["targets"]],
            **{name: row[name] for name in KEPT},
        )
    return about, rows


KEPT = (
    *("recipe", "layout", "max_seq_len", "micro_batch_size", "optimizer", "lora_rank"),
    *("gradient_checkpointing", "checkpoint_every", "offload_checkpoints"),
)


def memory_figure(points: list[dict[str, Any]]) -> Figure:
    errors = [abs(100.0 * (footprint.peak_bytes(MISTRAL, row["trial"]) / row["peak_bytes"] - 1.0)) for row in points]
    return Figure(
        name=f"predicted peak memory, {len(errors)} configurations",
        value=f"median error {statistics.median(errors):.2f} %, worst {max(errors):.1f} %",
        goal="<= 3 %, <= 8 %",
    )


def replay(points: list[dict[str, Any]], limit_gib: float, seed: int) -> tuple[float, float, int]:
    """One search: (% of the best rate in the grid, % of the grid's GPU time, configurations tried)."""
    limit = MemoryLimit(round(limit_gib * 2**30))
    table = {_choice(row): row for row in points if row["max_seq_len"] == 512 and row["targets"] == 4}
    candidates = [_candidate(choice, row) for choice, row in table.items()]
    fitting = [row for row in table.values() if row["peak_bytes"] <= (limit.limit_bytes or 0)]
    best = max(row["useful_tokens_per_sec"] for row in fitting)
    observed: list[Observation] = []
    spent = 0.0
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder) / "journal.log", candidates, recipes=RECIPES, seed=seed)
        for number in range(WAVES):
            limit = MemoryLimit(limit.limit_bytes, observed)
            wave = promising(candidates, limit, WORKERS) if number == 0 else search.next(limit, WORKERS)
            before = search.best
            for one in wave:
                row = table[tuple(one.choice[name] for name in CHOICES)]
                fits = row["peak_bytes"] <= (limit.limit_bytes or 0)
                observed.append(Observation(candidate=one, peak_bytes=row["peak_bytes"] if fits else None))
                search.tell(one, row["useful_tokens_per_sec"] if fits else None)
                spent += _seconds(row, sum(SHORT_STEPS["gpu"]))
            if not wave or (number > 0 and not goes_on(before, search.best)):
                break
        rates = {key: rate for key, rate in search.results.items() if rate is not None}
        tried = len(search.results)
    chosen = [one.key for one in finalists(candidates, rates, FINALISTS)]
    by_key = {one.key: table[tuple(one.choice[name] for name in CHOICES)] for one in candidates}
    steps = SCALES["gpu"].warmup_steps + SCALES["gpu"].measured_steps
    spent += sum(_seconds(by_key[key], steps) for key in chosen)
    exhaustive = sum(_seconds(row, steps) for row in fitting)
    found = max(by_key[key]["useful_tokens_per_sec"] for key in chosen)
    return 100.0 * found / best, 100.0 * spent / exhaustive, tried


def _choice(row: dict[str, Any]) -> tuple[Any, ...]:
    wanted = {name: row[name] for name in ("gradient_checkpointing", "checkpoint_every", "offload_checkpoints")}
    plain = {"checkpoint_every": 1, "offload_checkpoints": False}
    recompute = next(name for name, fields in RECOMPUTE.items() if plain | fields == wanted)
    return row["recipe"], row["layout"], row["micro_batch_size"], recompute


def _candidate(choice: tuple[Any, ...], row: dict[str, Any]) -> Candidate:
    trial: Trial = row["trial"]
    positions = trial.max_seq_len * trial.micro_batch_size
    share = row["useful_tokens_per_sec"] * row["step_time_sec"] / positions
    return Candidate(
        choice=dict(zip(CHOICES, choice, strict=True)),
        trial=Trial.from_json({**trial.to_json(), "name": "-".join(str(value) for value in choice)}),
        peak_bytes=footprint.peak_bytes(MISTRAL, trial),
        useful_share=share,
        score=survey.rate(MISTRAL, trial) * share,
    )


def _seconds(row: dict[str, Any], steps: int) -> float:
    return FIXED_SEC + steps * float(row["step_time_sec"])
