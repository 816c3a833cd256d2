"""Candidates of a search with plausible predictions, their results, and the record of a search."""

import dataclasses
from typing import Any

from bench.records import Trial
from bench.records.result import Steps, TrialResult
from bench.records.run import PlannedTrial
from bench.records.status import TrialStatus
from bench.records.validation import ALL_LINEAR
from tasks.tuning import pareto, search_state, space
from tasks.tuning.space import Candidate
from tests.support.reports import synthetic

GIB = 2**30
RECIPES = ("reference", "stock", "fast")


def make_candidates(**changes: Any) -> list[Candidate]:
    fields: dict[str, Any] = {
        "model": "models/m",
        "data": "data/d.jsonl",
        "data_options": None,
        "profile": "gpu",
        "recipes": RECIPES,
        "longest": 512,
        "lora": {"lora_rank": 16, "lora_alpha": 32, "lora_targets": ALL_LINEAR},
        "steps": (3, 6),
        "seed": 1,
        "samples": 10_000,
    }
    return space.candidates(**(fields | changes))


def predicted_candidates() -> list[Candidate]:
    """Return candidates with plausible predictions: memory grows with the batch, the fast recipe needs least."""
    base = {"reference": 6.0, "stock": 5.0, "fast": 4.5}
    row_gib = {"reference": 1.0, "stock": 0.5, "fast": 0.4}
    share = {"none": 1.0, "every-4": 0.8, "every-2": 0.6, "all": 0.2, "offload": 0.1}
    speed = {"reference": 1.0, "stock": 2.0, "fast": 2.6}
    layouts = {"pad": 0.4, "bucket": 0.8, "varlen": 1.0}
    candidates = []
    for candidate in make_candidates():
        choice = candidate.choice
        gib = (
            base[choice["recipe"]] + row_gib[choice["recipe"]] * choice["micro_batch_size"] * share[choice["recompute"]]
        )
        batch = choice["micro_batch_size"] / (choice["micro_batch_size"] + 2)
        recompute_factor = 0.7 + 0.3 * share[choice["recompute"]]
        score = 1000.0 * speed[choice["recipe"]] * layouts[choice["layout"]] * batch * recompute_factor
        layer = round(0.4 * GIB) if choice["recipe"] == "fast" else 0
        candidates.append(dataclasses.replace(candidate, peak_bytes=round(gib * GIB), layer_bytes=layer, score=score))
    return candidates


BY_KEY = {candidate.key: candidate for candidate in predicted_candidates()}
STOCK = next(candidate for candidate in BY_KEY.values() if candidate.choice["recipe"] == "stock")


def find_fast(batch: int, recompute: str = "none") -> Candidate:
    choice = {"recipe": "fast", "layout": "pad", "micro_batch_size": batch, "recompute": recompute}
    return next(candidate for candidate in predicted_candidates() if candidate.choice == choice)


def result(trial: Trial, rate: float, peak: int | None, status: TrialStatus = TrialStatus.SUCCEEDED) -> TrialResult:
    steps = Steps(
        step_time_sec=[synthetic.OF_A_FINE_TIMER] * 2,
        samples=[1, 1],
        tokens=[2000, 2000],
        useful_tokens=[rate, rate],
        loss=[2.0, 1.0],
    )
    made = synthetic.result(PlannedTrial(trial_id=trial.trial_id, trial=trial), status=status)
    return dataclasses.replace(made, steps=steps, metrics=synthetic.metrics_of(steps, peak_vram_bytes=peak))


def measured_candidate(index: int, rate: float, gib: float) -> pareto.MeasuredCandidate:
    trial = predicted_candidates()[index].trial
    return pareto.summarize(trial, [result(trial, rate, round(gib * GIB))], None, 2.0)


def make_record() -> search_state.TuneRecord:
    return search_state.TuneRecord(
        tune_id="20261121-000000-tune",
        gpu="NVIDIA A10",
        model_sha256="m",
        data_sha256="d",
        longest=512,
        depth=32,
        limit_bytes=20 * GIB,
        settings={"fleet": {"size": 4}},
        candidates=predicted_candidates()[:3],
        inputs={},
    )
