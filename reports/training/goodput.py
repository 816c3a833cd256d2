"""Paid worker time of a training by use: steps that count, and the causes of the rest.

Held time is from the ledger: from each attempt's start to its end, and the waits for a restart, times the workers. The
steps' time is that of the record, times the workers of the attempt that did them. Loading, evaluation and score are
seconds of a rank, times the workers; those of an attempt without a checkpoint are in the rest.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reports import formatting
from reports.read import attempts
from reports.read.attempts import AttemptSpan
from reports.training.training_facts import TrainingReport

STEPS, REST = "steps that count", "repeated steps, start and end of processes"


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of the paid time, in worker seconds, and its share of 1."""

    name: str
    seconds: float
    share: float


def uses(training: TrainingReport) -> list[Use]:
    """Divide the held time by use, the steps first; [] without a ledger. Uses of no time are left out."""
    spans = training.attempts
    now = time.time()
    total = attempts.held_sec(spans, now)
    if total <= 0.0:
        return []
    record = training.record
    workers = spans[-1].workers
    seconds = {STEPS: _steps_sec(training, spans)}
    if record.time is not None:
        seconds |= {
            "loading": record.time.loading_sec * workers,
            "evaluation": record.time.evaluation_sec * workers,
            "waiting for checkpoints": record.time.checkpoint_sec * workers,
            "answers and score": record.time.score_sec * workers,
        }
    seconds["waiting for a restart"] = total - attempts.worker_sec(spans, now)
    seconds[REST] = max(0.0, total - sum(seconds.values()))
    total = sum(seconds.values())
    return [Use(name=name, seconds=used, share=used / total) for name, used in seconds.items() if used > 0.0]


def _steps_sec(training: TrainingReport, spans: Sequence[AttemptSpan]) -> float:
    """Return the worker seconds of the steps: each one's time, times the workers of the attempt that did it."""
    steps = training.record.steps
    starts = [0 if span.step is None else span.step for span in spans]
    bounds = [*zip(starts, spans, strict=True), (max(steps.step, default=0), spans[-1])]
    total = 0.0
    for (first, span), (last, _) in pairwise(bounds):
        done = (sec for step, sec in zip(steps.step, steps.step_time_sec, strict=True) if first < step <= last)
        total += span.workers * sum(done)
    return total


def sentence(divided: Sequence[Use]) -> str:
    """Say what share of the paid time became steps that count."""
    share = next((use.share for use in divided if use.name == STEPS), 0.0)
    total = formatting.duration(sum(use.seconds for use in divided))
    return f"Of {total} of worker time, {share * 100:.0f} % became steps that count."
