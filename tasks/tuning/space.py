"""The space of a search: configurations as trials, what a survey predicts of them, and which are measured. Pure.

Recipe, layout, micro batch and recomputation vary; they do not change what is trained. Adapters, data and the length at
which samples are cut are the user's and stay fixed. The number of held layers is not searched, because more are always
faster: the fastest configuration is also measured with as many as fit into memory (`with_held_layers`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.records import Trial
from bench.records.training import DataOptions
from bench.records.trial import FAST_ONLY_FIELDS, SCALES

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAX_MICRO_BATCH = {"gpu": 64, "tiny": 8}
LAYOUTS = ("pad", "bucket", "varlen")
LENGTH_MULTIPLE = {"gpu": 64, "tiny": 8}
LENGTH_PERCENTILE = "99"  # percent; a row for the longest sample would be mostly padding
# How much of the forward pass is recomputed in backward: by name, the fields of a Trial.
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {"gradient_checkpointing": False},
    "every-4": {"gradient_checkpointing": True, "checkpoint_every": 4},
    "every-2": {"gradient_checkpointing": True, "checkpoint_every": 2},
    "all": {"gradient_checkpointing": True},
    "offload": {"gradient_checkpointing": True, "offload_checkpoints": True},
}
# Values of `tune.recipes`: by name, the fields of a Trial. In int8 a step is faster and its gradient less exact.
RECIPES: dict[str, dict[str, Any]] = {
    "reference": {"recipe": "reference", "optimizer": "paged_adamw_8bit"},
    "stock": {"recipe": "stock", "optimizer": "adamw_torch"},
    "fast": {"recipe": "fast", "optimizer": "adamw_torch"},
    "fast-int8-backward": {"recipe": "fast", "optimizer": "adamw_torch", "matmul": "int8_backward"},
    "fast-int8": {"recipe": "fast", "optimizer": "adamw_torch", "matmul": "int8"},
}
COMMON_RECOMPUTE = ("none", "all")  # supported by every recipe; the others only by `fast`
BASELINE_MICRO_BATCHES = (4, 2, 1)  # the published 4, or what fits
MARGIN = 1.03  # a predicted peak times this must be within the limit


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction of `python -m bench survey` for a trial.

    `layer_bytes` is what each held layer adds to the peak; `score` is the useful rate in arbitrary units.
    """

    peak_bytes: int
    layer_bytes: int
    useful_share: float
    score: float


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration with its prediction."""

    trial: Trial
    predicted: Prediction


def fits(peak_bytes: int, limit_bytes: int | None) -> bool:
    """Check that a predicted peak is within the limit; True without one."""
    return limit_bytes is None or peak_bytes * MARGIN <= limit_bytes


def max_seq_len(percentiles: Mapping[str, int], profile: str, positions: int) -> int:
    """Return the shortest row that fits LENGTH_PERCENTILE of the samples uncut, rounded up to LENGTH_MULTIPLE."""
    multiple = LENGTH_MULTIPLE[profile]
    scaled = percentiles[LENGTH_PERCENTILE] / SCALES[profile].seq_divisor
    return max(multiple, min(positions, math.ceil(scaled / multiple) * multiple))


def trials(
    *,
    model: str,
    data: str,
    data_options: DataOptions | None,
    profile: str,
    recipes: Sequence[str],
    longest: int,
    lora: Mapping[str, Any],
    steps: tuple[int, int],
    seed: int,
    samples: int,
) -> list[Trial]:
    """List all configurations for `samples` samples cut at `longest` tokens; `steps` is (warm-up, measured)."""
    scale = SCALES[profile]
    return [
        Trial(
            name=f"{recipe}-{layout}-{micro_batch_size}-{recompute}",
            reason="a candidate of the search",
            suite="tune",
            profile=profile,
            model=model,
            data=data,
            data_options=data_options,
            max_seq_len=longest,
            learning_rate=scale.learning_rate,
            warmup_steps=steps[0],
            measured_steps=steps[1],
            seed=seed,
            deadline_sec=scale.deadline_sec,
            layout=layout,
            micro_batch_size=micro_batch_size,
            **RECIPES[recipe],
            **RECOMPUTE[recompute],
            **lora,
        )
        for recipe, layout, micro_batch_size, recompute in _choices(recipes)
        if micro_batch_size <= min(samples, MAX_MICRO_BATCH[profile])
    ]


def _choices(recipes: Sequence[str]) -> Iterator[tuple[str, str, int, str]]:
    for recipe in recipes:
        for layout in LAYOUTS:
            for micro_batch_size in MICRO_BATCHES:
                for recompute in RECOMPUTE if RECIPES[recipe]["recipe"] == "fast" else COMMON_RECOMPUTE:
                    yield recipe, layout, micro_batch_size, recompute


def choose(candidates: Sequence[Candidate], limit_bytes: int | None, count: int) -> list[Candidate]:
    """Choose the candidates to measure, of those that fit, by predicted rate.

    The best of each recipe and of each layout come first, because a wrong prediction of all of them costs most.
    """
    fitting = [candidate for candidate in candidates if fits(candidate.predicted.peak_bytes, limit_bytes)]
    ranked = sorted(fitting, key=lambda candidate: -candidate.predicted.score)
    first: dict[tuple[str, ...], Candidate] = {}
    for candidate in ranked:
        first.setdefault((candidate.trial.recipe, candidate.trial.matmul), candidate)
        first.setdefault((candidate.trial.layout,), candidate)
    by_name = {candidate.trial.name: candidate for candidate in (*first.values(), *ranked)}
    return list(by_name.values())[:count]


def baselines(trial: Trial, samples: int) -> list[Trial]:
    """Return the published loop with a trial's rows and adapters, by falling micro batch."""
    fields = {name: getattr(Trial, name) for name in FAST_ONLY_FIELDS} | RECIPES["reference"] | RECOMPUTE["all"]
    fields |= {"reason": "the published loop on these data", "layout": "pad"}
    sizes = [size for size in BASELINE_MICRO_BATCHES if size <= samples]
    return [replace(trial, name=f"baseline-{size}", micro_batch_size=size, **fields) for size in sizes]


def with_held_layers(trial: Trial, predicted: Prediction, limit_bytes: int | None, depth: int) -> Trial | None:
    """Return the trial with as many of its `depth` layers held as fit the limit; None if not one fits."""
    if limit_bytes is None or not predicted.layer_bytes:
        return None
    counts = range(depth, 0, -1)
    fitting = (count for count in counts if fits(predicted.peak_bytes + count * predicted.layer_bytes, limit_bytes))
    count = next(fitting, None)
    return None if count is None else replace(trial, name=f"{trial.name}-held-{count}", held_layers=count)
