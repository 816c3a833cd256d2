"""Settings of a training that follow from its data where the user has set none.

Each attempt derives them on its machines, where the data are; the plan only says which. Equal data give equal values,
and a training's attempts refuse other data. A worker's forecast derives them by the same function.
"""

import math
import time
from dataclasses import replace
from pathlib import Path

from bench.data import dataset
from bench.records import Trial
from bench.records.training import DataReport, DerivedSettings
from bench.workloads.finetune.score import Scoring
from bench.workloads.finetune.training_set import TrainingSet, load_data, training_of

HELD_OUT_LINES = 30  # expected: hardly ever fewer than 20 are then chosen
MAX_HELD_OUT_SHARE, MAX_HELD_OUT_LINES = 0.2, 2000  # limits for few and for many lines: evaluations read them
ENOUGH_STEPS = 100
WARMUP_STEPS, MAX_WARMUP_SHARE = 10, 0.1


def validation_share(lines: int, usual: float) -> float:
    """Return the fraction of the lines to hold out: enough to show a difference, few to lose or to evaluate."""
    share = max(usual, min(MAX_HELD_OUT_SHARE, HELD_OUT_LINES / lines))
    return float(f"{min(share, MAX_HELD_OUT_LINES / lines):.2g}")


def rows_per_step(rows: float, workers: int, usual: int) -> int:
    """Return the rows of a step of a training over so many rows: at least one a worker, few for little data."""
    count = max(1, min(usual, math.floor(rows / ENOUGH_STEPS)))
    return math.ceil(count / workers) * workers


def warmup_share(steps: int, usual: float) -> float:
    """Return the fraction of the steps for warm-up: some steps also of a short training."""
    return float(f"{max(usual, min(MAX_WARMUP_SHARE, WARMUP_STEPS / steps)):.2g}")


def derive(
    trial: Trial, cache_folder: Path | None, fitted: DerivedSettings
) -> tuple[TrainingSet, DerivedSettings, DataReport]:
    """Load the training set with the derived settings; return it, them, and the report on its data.

    `fitted` are those from the GPU's memory: a row's length decides how many rows there are.

    Raises InputRejected for other data than planned, and InputError, also for a score file or pattern that cannot be
    used.
    """
    start, trial = time.monotonic(), replace(trial, **fitted.values)
    training, files, values = training_of(trial), None, fitted.values
    Scoring.load(training)
    if "validation_share" in trial.derive:
        files = dataset.read(training.data)
        share = validation_share(sum(file.lines for file in files[0]), training.data.validation_share)
        values["validation_share"] = share
        training = replace(training, data=replace(training.data, validation_share=share))
    material, was_cached = load_data(replace(trial, training=training), cache_folder, files)
    if "rows_per_step" in trial.derive:
        rows = len(material.sampling_plan.rows(0)) * training.epochs
        values["rows_per_step"] = rows_per_step(rows, trial.world_size, training.rows_per_step)
        material = replace(material, training=replace(training, rows_per_step=values["rows_per_step"]))
    if "warmup_share" in trial.derive:
        values["warmup_share"] = warmup_share(material.steps(), training.warmup_share)
    seconds = time.monotonic() - start
    shape = material.row_tokens, material.separation
    report = dataset.summarize(training.data, material.data, *shape, was_cached=was_cached, seconds=seconds)
    return material, DerivedSettings(**values), report
