"""The learning rate of each step, as a share of its peak: a function only of the step's number."""

import math

from bench.records.training import Training


def learning_rate_factor(training: Training, step: int, steps: int) -> float:
    """Return the share of the peak at `step`, which counts from 1, of `steps`: linear warm-up, then the schedule.

    The first step after the warm-up is at the peak; linear and cosine reach 0 one step after the last.
    """
    warmup = math.ceil(training.warmup_share * steps)
    if step <= warmup:
        return step / (warmup + 1)
    done = (step - warmup - 1) / max(1, steps - warmup)
    if training.schedule == "linear":
        return 1.0 - done
    if training.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0
