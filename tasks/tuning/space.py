"""The search space: all candidate configurations as trials, and their predicted memory, corrected by measured peaks.

Recipe, layout, micro batch and recomputation vary; they do not change what is trained. Adapters, data and the length at
which samples are cut are the user's and stay fixed. The number of held layers is not searched, because more are always
faster: the fastest configuration is also measured with as many as fit into memory (`with_held_layers`).
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.records import Trial
from bench.records.training import DataOptions
from bench.records.trial import SCALES
from tasks.settings.load import Settings

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
MAX_MICRO_BATCH = {"gpu": 64, "tiny": 8}
LAYOUTS = ("pad", "bucket", "varlen")
LENGTH_MULTIPLE = {"gpu": 64, "tiny": 8}
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
RECOMPUTED_SHARE = {"none": 0.0, "every-4": 0.25, "every-2": 0.5, "all": 1.0, "offload": 1.0}
COMMON_RECOMPUTE = ("none", "all")  # supported by every recipe; the others only by `fast`
DIMENSIONS = ("recipe", "layout", "micro_batch_size", "recompute")
_PREDICTED_FIELDS = ("peak_bytes", "layer_bytes", "useful_share", "score")


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One configuration. `peak_bytes` is the predicted peak, None if unknown; `layer_bytes` is what each held layer
    adds to it; `score` is the predicted rate in arbitrary units."""

    choice: dict[str, Any]
    trial: Trial
    peak_bytes: int | None = None
    layer_bytes: int = 0
    useful_share: float = 1.0
    score: float = 0.0

    @property
    def key(self) -> str:
        return self.trial.trial_id

    def full_trial(self, settings: Settings) -> Trial:
        """Return the trial with as many steps as in a suite."""
        scale = SCALES[self.trial.profile]
        bench = settings.bench
        return replace(
            self.trial,
            reason="a finalist of the search",
            warmup_steps=scale.warmup_steps if bench.warmup_steps is None else bench.warmup_steps,
            measured_steps=scale.measured_steps if bench.measured_steps is None else bench.measured_steps,
        )


def max_seq_len(percentiles: Mapping[str, int], length_percentile: int, profile: str, positions: int) -> int:
    """Return the shortest row that fits `length_percentile` percent of the samples, rounded up to LENGTH_MULTIPLE."""
    multiple = LENGTH_MULTIPLE[profile]
    scaled = percentiles[str(length_percentile)] / SCALES[profile].seq_divisor
    return max(multiple, min(positions, math.ceil(scaled / multiple) * multiple))


def candidates(
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
) -> list[Candidate]:
    """List all configurations for `samples` samples cut at `longest` tokens; `steps` is (warm-up, measured)."""
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
                data_options=data_options,
                max_seq_len=longest,
                learning_rate=scale.learning_rate,
                warmup_steps=steps[0],
                measured_steps=steps[1],
                seed=seed,
                deadline_sec=scale.deadline_sec,
                layout=choice["layout"],
                micro_batch_size=choice["micro_batch_size"],
                **RECIPES[choice["recipe"]],
                **RECOMPUTE[choice["recompute"]],
                **lora,
            ),
        )
        for choice in _choices(recipes)
        if choice["micro_batch_size"] <= min(samples, MAX_MICRO_BATCH[profile])
    ]


def _choices(recipes: Sequence[str]) -> Iterator[dict[str, Any]]:
    for recipe in recipes:
        for layout in LAYOUTS:
            for micro_batch_size in MICRO_BATCHES:
                for recompute in RECOMPUTE if RECIPES[recipe]["recipe"] == "fast" else COMMON_RECOMPUTE:
                    yield dict(zip(DIMENSIONS, (recipe, layout, micro_batch_size, recompute), strict=True))


def with_predictions(candidates: Sequence[Candidate], predicted: Sequence[Mapping[str, Any]]) -> list[Candidate]:
    """Return the candidates with a survey's predictions, which have the same order."""
    return [
        replace(candidate, **{name: prediction[name] for name in _PREDICTED_FIELDS})
        for candidate, prediction in zip(candidates, predicted, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class TrialObservation:
    """A trial's measured peak of memory, or None if it ran out of memory."""

    candidate: Candidate
    peak_bytes: int | None


class MemoryLimit:
    """A memory limit that predicts which candidates fit, corrected by observations.

    A recipe's predictions are multiplied by the median of measured over predicted peaks. A trial that ran out of memory
    needed more than the limit: its recipe's factor is raised until the corrected prediction reaches the limit.
    """

    MARGIN = 1.03

    def __init__(self, limit_bytes: int | None, observed: Sequence[TrialObservation] = ()) -> None:
        self.limit_bytes = limit_bytes
        self.factors: dict[str, float] = {}
        for recipe in {str(observation.candidate.choice["recipe"]) for observation in observed}:
            self.factors[recipe] = self._factor(
                [observation for observation in observed if observation.candidate.choice["recipe"] == recipe]
            )

    def corrected_peak(self, candidate: Candidate) -> int | None:
        """Return the corrected prediction of the peak in bytes; None without a prediction."""
        if candidate.peak_bytes is None:
            return None
        return round(candidate.peak_bytes * self.factors.get(str(candidate.choice["recipe"]), 1.0))

    def fits(self, candidate: Candidate) -> bool:
        """Check that the corrected prediction is within the limit; True without a limit or a prediction."""
        predicted = self.corrected_peak(candidate)
        return self.limit_bytes is None or predicted is None or predicted * self.MARGIN <= self.limit_bytes

    def _factor(self, observed: Sequence[TrialObservation]) -> float:
        measured = [
            observation.peak_bytes / observation.candidate.peak_bytes
            for observation in observed
            if observation.peak_bytes is not None and observation.candidate.peak_bytes
        ]
        factor = statistics.median(measured) if measured else 1.0
        too_large = [observation.candidate for observation in observed if observation.peak_bytes is None]
        for candidate in too_large:
            if candidate.peak_bytes and self.limit_bytes is not None:
                factor = max(factor, self.limit_bytes / candidate.peak_bytes)
        return factor


def with_held_layers(candidate: Candidate, limit: MemoryLimit, depth: int) -> Candidate | None:
    """Return the candidate with as many of its `depth` layers held as fit the limit; None if not one fits."""
    if limit.limit_bytes is None or candidate.peak_bytes is None or not candidate.layer_bytes:
        return None
    for count in range(depth, 0, -1):
        trial = replace(candidate.trial, name=f"{candidate.trial.name}-held-{count}", held_layers=count)
        held = replace(candidate, trial=trial, peak_bytes=candidate.peak_bytes + count * candidate.layer_bytes)
        if limit.fits(held):
            return held
    return None
