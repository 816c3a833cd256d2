"""GPUs that a search can be replayed on: how fast every candidate of `inv tune` is there, and how much memory it takes.

`measured()` is one H200, from the points of grid_h200.jsonl. The grid has 60 points and a search chooses from 189, so
what lies between is filled in: for each recipe and way to recompute, a step's time is interpolated over positions, in
proportion to them above the largest measured and constant below the smallest, where launches bound it; samples kept
apart take as much longer as the recipe's did where both were measured, in proportion to the row where a mask keeps them
apart (stock at 20,480 positions: 5.1 s filled in, 4.85 s measured by `inv tune`); a bucketed batch is a padded one of
as many positions as it has. What no point says anything of is taken from its neighbours: every-2 lies halfway between
every-4 and all. Lengths are of the survey's kind: log-normal, 94 tokens in the mean, cut at 640.

`changed()` are GPUs that are not there, on which what a survey predicts is wrong in a way that it would mislead by.
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
from bench.records import ATTENTION_PROJECTIONS
from tasks.tuning.space import RECOMPUTE, Candidate, candidates, with_predictions
from tests.mistral_7b import CONFIG

GRID = Path(__file__).with_name("grid_h200.jsonl")
RECIPES = ("reference", "stock", "fast")
LONGEST, SAMPLES, MEAN, SPREAD = 640, 4096, 94.0, 0.75
MASKED_ROW = 4096  # positions of the rows whose mask the grid measured
SCATTER = 0.03  # standard deviation of log step time: what no formula says of a candidate


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What a trial of a candidate takes on a GPU. `useful` is tokens without padding in a step."""

    step_sec: float
    useful: float
    peak_bytes: int

    @property
    def rate(self) -> float:
        return self.useful / self.step_sec


World = Mapping[str, Truth]  # by a candidate's key
Times = list[tuple[float, float]]  # of padded batches: (positions, seconds a step), ascending


@functools.cache
def space(steps: tuple[int, int]) -> list[Candidate]:
    """The candidates as a survey hands them to `inv tune`, predictions included."""
    sizes = lengths()
    found = candidates(
        model="models/m",
        data="data/d.jsonl",
        profile="gpu",
        recipes=RECIPES,
        longest=LONGEST,
        lora={"lora_rank": 16, "lora_alpha": 32, "lora_targets": ATTENTION_PROJECTIONS},
        steps=steps,
        seed=1,
        samples=10_000,
    )
    return with_predictions(found, [throughput.predicted(CONFIG, one.trial, sizes) for one in found])


def lengths() -> list[int]:
    chooser = random.Random(5)
    middle = math.log(MEAN) - SPREAD**2 / 2
    return [max(8, round(chooser.lognormvariate(middle, SPREAD))) for _ in range(SAMPLES)]


def points() -> list[dict[str, Any]]:
    """The grid's rows with 512 to a row and attention's four adapters."""
    rows = [json.loads(line) for line in GRID.read_text(encoding="utf-8").splitlines()[1:]]
    return [row for row in rows if row["max_seq_len"] == 512 and row["targets"] == 4 and row["lora_rank"] == 16]


def measured(found: Sequence[Candidate], *, seed: int = 0) -> dict[str, Truth]:
    """The H200, each candidate with a scatter of its own."""
    times, apart = _times(points())
    chooser = random.Random(seed)
    world = {}
    for one in found:
        recipe, recompute = one.choice["recipe"], one.choice["recompute"]
        whole = one.choice["micro_batch_size"] * LONGEST
        useful = _useful(one) * whole
        positions = useful / one.useful_share
        seconds = between(times[recipe, recompute], positions)
        if one.choice["layout"] == "varlen":
            seconds *= 1.0 + apart[recipe] * (1.0 if recipe == "fast" else positions / MASKED_ROW)
        peak = memory.peak_bytes(CONFIG, one.trial) * chooser.gauss(1.0, 0.01)
        step_sec = seconds * math.exp(chooser.gauss(0.0, SCATTER))
        world[one.key] = Truth(step_sec=step_sec, useful=useful, peak_bytes=round(peak))
    return world


def _useful(one: Candidate) -> float:
    """Real tokens per position of the micro-batch's full size. A bucketed batch has fewer positions, and as many real
    tokens as a padded one."""
    if one.choice["layout"] == "varlen":
        return one.useful_share
    return sum(min(length, LONGEST) for length in lengths()) / (SAMPLES * LONGEST)


def _times(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[tuple[str, str], Times], dict[str, float]]:
    """Step times by recipe and recomputation; by recipe, the part that samples kept apart take
    more."""
    padded: dict[tuple[str, str], Times] = {}
    for row in rows:
        if row["layout"] == "pad":
            place = padded.setdefault((row["recipe"], recompute_of(row)), [])
            place.append((512.0 * row["micro_batch_size"], row["step_time_sec"]))
    times = {way: sorted(pairs) for way, pairs in padded.items()}
    partly, wholly = times["fast", "every-4"], times["fast", "all"]
    times["fast", "every-2"] = [(x, (y + between(wholly, x)) / 2) for x, y in partly]
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row["layout"] == "varlen":
            alone = between(times[row["recipe"], recompute_of(row)], 512.0 * row["micro_batch_size"])
            ratios.setdefault(row["recipe"], []).append(row["step_time_sec"] / alone)
    return times, {recipe: statistics.median(each) - 1.0 for recipe, each in ratios.items()}


def between(times: Times, positions: float) -> float:
    """Seconds a step at this many positions."""
    for (x, y), (next_x, next_y) in pairwise(times):
        if x <= positions <= next_x:
            return y + (next_y - y) * (positions - x) / (next_x - x)
    (first, least), (last, most) = times[0], times[-1]
    return least if positions < first else most * positions / last


def recompute_of(row: Mapping[str, Any]) -> str:
    plain = {"checkpoint_every": 1, "offload_checkpoints": False}
    wanted = {name: row[name] for name in ("gradient_checkpointing", *plain)}
    return next(name for name, fields in RECOMPUTE.items() if plain | fields == wanted)


def changed(found: Sequence[Candidate], world: World) -> dict[str, dict[str, Truth]]:
    """By what is unlike the H200, worlds in which the same predictions mislead."""

    def slower(factor: Callable[[Mapping[str, Any]], float]) -> dict[str, Truth]:
        return {
            one.key: replace(world[one.key], step_sec=world[one.key].step_sec * factor(one.choice)) for one in found
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
