"""Candidates of a search with plausible predictions, and the plan of its short trials."""

import dataclasses
from typing import Any

from bench.records import Trial
from bench.records.run import RunRecord
from bench.records.validation import ALL_LINEAR
from tasks.tuning import space
from tasks.tuning.space import Candidate, Prediction
from tests.support.reports import synthetic

GIB = 2**30


def make_trials(**changes: Any) -> list[Trial]:
    fields: dict[str, Any] = {
        "model": "models/m",
        "data": "data/d.jsonl",
        "data_options": None,
        "profile": "gpu",
        "recipes": ("reference", "stock", "fast"),
        "longest": 512,
        "lora": {"lora_rank": 16, "lora_alpha": 32, "lora_targets": ALL_LINEAR},
        "steps": (3, 6),
        "seed": 1,
        "samples": 10_000,
    }
    return space.trials(**(fields | changes))


def predicted_candidates(**changes: Any) -> list[Candidate]:
    """Return candidates with plausible predictions: memory grows with the batch, the fast recipe needs least."""
    row_gib = {"reference": 1.0, "stock": 0.5, "fast": 0.4}
    share = {"none": 1.0, "4": 0.8, "2": 0.6, "all": 0.2, "offload": 0.1}
    speed = {"reference": 1.0, "stock": 2.0, "fast": 2.6}
    layouts = {"pad": 0.4, "bucket": 0.8, "varlen": 1.0}
    candidates = []
    for trial in make_trials(**changes):
        recomputed, size = share[trial.name.rpartition("-")[2]], trial.micro_batch_size
        score = speed[trial.recipe] * layouts[trial.layout] * size / (size + 2) * (0.7 + 0.3 * recomputed)
        predicted = Prediction(
            peak_bytes=round((5.0 + row_gib[trial.recipe] * size * recomputed) * GIB),
            layer_bytes=round(0.4 * GIB) if trial.recipe == "fast" else 0,
            useful_share=1.0,
            score=score,
        )
        candidates.append(Candidate(trial=trial, predicted=predicted))
    return candidates


def make_search(*trials: Trial, limit_bytes: int | None = 20 * GIB) -> RunRecord:
    """Return the plan of a search's short trials on an A10."""
    inputs = {"model": {"sha256": "m"}, "data": {"sha256": "d"}, "gpu": "NVIDIA A10", "limit_bytes": limit_bytes}
    run = synthetic.record(trials, workers=1)
    return dataclasses.replace(run, run_id="20261121-000000-tune", suite="tune", provenance={"inputs": inputs})
