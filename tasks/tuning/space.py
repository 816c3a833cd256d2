"""All configurations that a search may choose, as trials; and predicted memory, corrected by measured peaks.

Recipe, layout, micro batch and recomputation vary; they do not change what is trained. Adapters, data and the length at
which samples are cut are the user's and stay as they are. How many layers are held is not searched, because more are
always faster: the fastest is measured with as many as memory has room for, too (`holding`).
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.records import SCALES, Trial
from tasks.settings.load import Settings

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
LARGEST_MICRO_BATCH = {"gpu": 64, "tiny": 8}
LAYOUTS = ("pad", "bucket", "varlen")
LENGTH_MULTIPLE = {"gpu": 64, "tiny": 8}
# By name: how much of the forward pass backward computes again. Fields of a Trial.
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {"gradient_checkpointing": False},
    "every-4": {"gradient_checkpointing": True, "checkpoint_every": 4},
    "every-2": {"gradient_checkpointing": True, "checkpoint_every": 2},
    "all": {"gradient_checkpointing": True},
    "offload": {"gradient_checkpointing": True, "offload_checkpoints": True},
}
# What `tune.recipes` may name: the fields of a Trial. In 8 bits a step is faster and its gradient less exact.
WAYS: dict[str, dict[str, Any]] = {
    "reference": {"recipe": "reference", "optimizer": "paged_adamw_8bit"},
    "stock": {"recipe": "stock", "optimizer": "adamw_torch"},
    "fast": {"recipe": "fast", "optimizer": "adamw_torch"},
    "fast-eight-backward": {"recipe": "fast", "optimizer": "adamw_torch", "products": "eight_backward"},
    "fast-eight": {"recipe": "fast", "optimizer": "adamw_torch", "products": "eight"},
}
RECOMPUTED_SHARE = {"none": 0.0, "every-4": 0.25, "every-2": 0.5, "all": 1.0, "offload": 1.0}
OF_EVERY_RECIPE = ("none", "all")
CHOICES = ("recipe", "layout", "micro_batch_size", "recompute")
_PREDICTED = ("peak_bytes", "layer_bytes", "useful_share", "score")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration. `peak_bytes` is predicted, None where nothing can be, and so is `layer_bytes`, what each held
    layer would add; `score` orders what is tried first."""

    choice: dict[str, Any]
    trial: Trial
    peak_bytes: int | None = None
    layer_bytes: int = 0
    useful_share: float = 1.0
    score: float = 0.0

    @property
    def key(self) -> str:
        return self.trial.trial_id

    def full(self, settings: Settings) -> Trial:
        """The trial with as many steps as a suite's."""
        scale = SCALES[self.trial.profile]
        bench = settings.bench
        return replace(
            self.trial,
            reason="a finalist of the search",
            warmup_steps=scale.warmup_steps if bench.warmup_steps is None else bench.warmup_steps,
            measured_steps=scale.measured_steps if bench.measured_steps is None else bench.measured_steps,
        )


def max_seq_len(percentiles: Mapping[str, int], keep_percent: int, profile: str, positions: int) -> int:
    """The shortest row that holds `keep_percent` of the samples whole, rounded up to LENGTH_MULTIPLE."""
    multiple = LENGTH_MULTIPLE[profile]
    scaled = percentiles[str(keep_percent)] / SCALES[profile].seq_divisor
    return max(multiple, min(positions, math.ceil(scaled / multiple) * multiple))


def candidates(
    *,
    model: str,
    data: str,
    profile: str,
    recipes: Sequence[str],
    longest: int,
    lora: Mapping[str, Any],
    steps: tuple[int, int],
    seed: int,
    samples: int,
) -> list[Candidate]:
    """All configurations for `samples` samples cut at `longest` tokens, with `steps` (warm-up, measured) each."""
    scale = SCALES[profile]
    return [
        Candidate(
            choice=choice,
            trial=Trial(
                name="-".join(str(value) for value in choice.values()),
                reason="a candidate of the search",
                suite="tune",
                profile=profile,
                model=model,
                data=data,
                max_seq_len=longest,
                learning_rate=scale.learning_rate,
                warmup_steps=steps[0],
                measured_steps=steps[1],
                seed=seed,
                deadline_sec=scale.deadline_sec,
                layout=choice["layout"],
                micro_batch_size=choice["micro_batch_size"],
                **WAYS[choice["recipe"]],
                **RECOMPUTE[choice["recompute"]],
                **lora,
            ),
        )
        for choice in _choices(recipes)
        if choice["micro_batch_size"] <= min(samples, LARGEST_MICRO_BATCH[profile])
    ]


def _choices(recipes: Sequence[str]) -> Iterator[dict[str, Any]]:
    for recipe in recipes:
        for layout in LAYOUTS:
            for micro_batch_size in MICRO_BATCHES:
                for recompute in RECOMPUTE if WAYS[recipe]["recipe"] == "fast" else OF_EVERY_RECIPE:
                    yield dict(zip(CHOICES, (recipe, layout, micro_batch_size, recompute), strict=True))


def with_predictions(found: Sequence[Candidate], predicted: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """Candidates with what a survey predicts for each, in the same order."""
    return [
        replace(one, **{name: prediction[name] for name in _PREDICTED})
        for one, prediction in zip(found, predicted, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class TrialObservation:
    """What a trial taught about memory: its measured peak, or None where it ran out of it."""

    candidate: Candidate
    peak_bytes: int | None


class MemoryLimit:
    """Which candidates fit, by prediction, corrected by what was observed.

    A recipe's predictions are multiplied by the median of measured over predicted. A trial that ran out of memory
    needed more than the limit, whatever was predicted: the factor of its recipe is raised until the prediction says so.
    """

    MARGIN = 1.03

    def __init__(self, limit_bytes: int | None, observed: Sequence[TrialObservation] = ()) -> None:
        self.limit_bytes = limit_bytes
        self.factors: dict[str, float] = {}
        for recipe in {str(one.candidate.choice["recipe"]) for one in observed}:
            self.factors[recipe] = self._factor([one for one in observed if one.candidate.choice["recipe"] == recipe])

    def corrected(self, candidate: Candidate) -> int | None:
        """The predicted peak in bytes."""
        if candidate.peak_bytes is None:
            return None
        return round(candidate.peak_bytes * self.factors.get(str(candidate.choice["recipe"]), 1.0))

    def fits(self, candidate: Candidate) -> bool:
        """False where the corrected prediction exceeds the limit; True without a limit or a prediction."""
        predicted = self.corrected(candidate)
        return self.limit_bytes is None or predicted is None or predicted * self.MARGIN <= self.limit_bytes

    def _factor(self, observed: Sequence[TrialObservation]) -> float:
        measured = [
            one.peak_bytes / one.candidate.peak_bytes
            for one in observed
            if one.peak_bytes is not None and one.candidate.peak_bytes
        ]
        factor = statistics.median(measured) if measured else 1.0
        for one in observed:
            if one.peak_bytes is None and one.candidate.peak_bytes and self.limit_bytes is not None:
                factor = max(factor, self.limit_bytes / one.candidate.peak_bytes)
        return factor


def holding(one: Candidate, limit: MemoryLimit, depth: int) -> Candidate | None:
    """The same with as many of its `depth` layers' weights held as fit within the limit; None where none does."""
    if limit.limit_bytes is None or one.peak_bytes is None or not one.layer_bytes:
        return None
    for count in range(depth, 0, -1):
        trial = replace(one.trial, name=f"{one.trial.name}-held-{count}", held_layers=count)
        held = replace(one, trial=trial, peak_bytes=one.peak_bytes + count * one.layer_bytes)
        if limit.fits(held):
            return held
    return None
