"""Simulated GPUs for replaying a search: speed and memory of every candidate of `inv tune`.

`measured()` is one H200, from the points of grid_h200.jsonl. The grid has 60 points and a search chooses from 189, so
what lies between is filled in: for each recipe and way to recompute, a step's time is interpolated over positions, in
proportion to them above the largest measured and constant below the smallest, where launches bound it; samples kept
apart take as much longer as the recipe's did where both were measured, in proportion to the row where a mask keeps them
apart (stock at 20,480 positions: 5.1 s filled in, 4.85 s measured by `inv tune`); a bucketed batch is a padded one of
as many positions as it has. A value without any point is taken from its neighbours: every-2 lies halfway between
every-4 and all. Lengths are those of a survey: log-normal, 94 tokens in the mean, cut at 640.

`changed()` makes imaginary GPUs on which a survey's predictions mislead.
"""

import functools
import json
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.predict import memory, throughput
from bench.records.validation import ATTENTION_PROJECTIONS
from tasks.tuning.space import RECOMPUTE, Candidate, candidates, with_predictions
from tests.model_shapes import MISTRAL_7B as CONFIG

GRID = Path(__file__).with_name("grid_h200.jsonl")
RECIPES = ("reference", "stock", "fast")
LONGEST, SAMPLES, MEAN, SPREAD = 640, 4096, 94.0, 0.75
MASKED_ROW = 4096  # positions of the rows whose mask the grid measured
SCATTER = 0.03  # standard deviation of log step time that no formula explains


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Cost of a candidate's trial on a GPU. `useful` is a step's tokens without padding."""

    step_sec: float
    useful: float
    peak_bytes: int

    @property
    def rate(self) -> float:
        return self.useful / self.step_sec


Scenario = Mapping[str, Truth]  # key: a candidate's
Times = list[tuple[float, float]]  # padded batches: (positions, seconds a step), ascending


@functools.cache
def space(steps: tuple[int, int]) -> list[Candidate]:
    """Return the candidates as `inv tune` gets them, with predictions."""
    sizes = lengths()
    space = candidates(
        model="models/m",
        data="data/d.jsonl",
        profile="gpu",
        recipes=RECIPES,
        longest=LONGEST,
        lora={"lora_rank": 16, "lora_alpha": 32, "lora_targets": ATTENTION_PROJECTIONS},
        steps=steps,
        seed=1,
        samples=10_000,
        data_options=None,
    )
    return with_predictions(space, [throughput.predict_trial(CONFIG, candidate.trial, sizes) for candidate in space])


def lengths() -> list[int]:
    chooser = random.Random(5)
    middle = math.log(MEAN) - SPREAD**2 / 2
    return [max(8, round(chooser.lognormvariate(middle, SPREAD))) for _ in range(SAMPLES)]


def points() -> list[dict[str, Any]]:
    """Return the grid's rows of length 512 with attention's four adapters."""
    rows = [json.loads(line) for line in GRID.read_text(encoding="utf-8").splitlines()[1:]]
    return [row for row in rows if row["max_seq_len"] == 512 and row["targets"] == 4 and row["lora_rank"] == 16]


def measured(space: Sequence[Candidate], *, seed: int = 0) -> dict[str, Truth]:
    """Return the H200's values, each candidate with its own scatter."""
    times, apart = _times(points())
    chooser = random.Random(seed)
    world = {}
    for candidate in space:
        recipe, recompute = candidate.choice["recipe"], candidate.choice["recompute"]
        whole = candidate.choice["micro_batch_size"] * LONGEST
        useful = _useful(candidate) * whole
        positions = useful / candidate.useful_share
        seconds = between(times[recipe, recompute], positions)
        if candidate.choice["layout"] == "varlen":
            seconds *= 1.0 + apart[recipe] * (1.0 if recipe == "fast" else positions / MASKED_ROW)
        peak = memory.peak_bytes(CONFIG, candidate.trial) * chooser.gauss(1.0, 0.01)
        step_sec = seconds * math.exp(chooser.gauss(0.0, SCATTER))
        world[candidate.key] = Truth(step_sec=step_sec, useful=useful, peak_bytes=round(peak))
    return world


def _useful(candidate: Candidate) -> float:
    """Return real tokens per position of the full micro-batch. A bucketed batch has fewer positions and as many real
    tokens as a padded one."""
    if candidate.choice["layout"] == "varlen":
        return candidate.useful_share
    return sum(min(length, LONGEST) for length in lengths()) / (SAMPLES * LONGEST)


def _times(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[tuple[str, str], Times], dict[str, float]]:
    """Return step times by recipe and recomputation, and by recipe the extra share of separated samples."""
    padded: dict[tuple[str, str], Times] = {}
    for row in rows:
        if row["layout"] == "pad":
            group = padded.setdefault((row["recipe"], recompute_of(row)), [])
            group.append((512.0 * row["micro_batch_size"], row["step_time_sec"]))
    times = {way: sorted(pairs) for way, pairs in padded.items()}
    partly, wholly = times["fast", "every-4"], times["fast", "all"]
    times["fast", "every-2"] = [(x, (y + between(wholly, x)) / 2) for x, y in partly]
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["layout"] == "varlen":
            separate_sec = between(times[row["recipe"], recompute_of(row)], 512.0 * row["micro_batch_size"])
            ratios.setdefault(row["recipe"], []).append(row["step_time_sec"] / separate_sec)
    return times, {recipe: statistics.median(each) - 1.0 for recipe, each in ratios.items()}


def between(times: Times, positions: float) -> float:
    """Interpolate the seconds of a step at this many positions."""
    for (x, y), (next_x, next_y) in pairwise(times):
        if x <= positions <= next_x:
            return y + (next_y - y) * (positions - x) / (next_x - x)
    (first, least), (last, most) = times[0], times[-1]
    return least if positions < first else most * positions / last


def recompute_of(row: Mapping[str, Any]) -> str:
    plain = {"checkpoint_every": 1, "offload_checkpoints": False}
    wanted = {name: row[name] for name in ("gradient_checkpointing", *plain)}
    return next(name for name, fields in RECOMPUTE.items() if plain | fields == wanted)


def changed(space: Sequence[Candidate], world: Scenario) -> dict[str, dict[str, Truth]]:
    """Return scenarios by their difference to the H200, in which the same predictions mislead."""

    def slower(factor: Callable[[Mapping[str, Any]], float]) -> dict[str, Truth]:
        return {
            candidate.key: replace(
                world[candidate.key], step_sec=world[candidate.key].step_sec * factor(candidate.choice)
            )
            for candidate in space
        }

    undone = {"none": 1.0, "every-4": 1 / 1.08, "every-2": 1 / 1.16, "all": 1 / 1.36, "offload": 1 / 1.36}
    return {
        "recomputing costs nothing": slower(lambda c: undone[c["recompute"]]),
        "stock is the fastest": slower(lambda c: 0.4 if c["recipe"] == "stock" else 1.0),
        "reference is the fastest": slower(lambda c: 0.3 if c["recipe"] == "reference" else 1.0),
        "samples kept apart are slow": slower(lambda c: 8.0 if c["layout"] == "varlen" else 1.0),
        "large batches are slow": slower(lambda c: c["micro_batch_size"] ** 0.25),
        "offloading is slow": slower(lambda c: 3.0 if c["recompute"] == "offload" else 1.0),
    }
