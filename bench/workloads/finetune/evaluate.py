"""The held-out loss with its interval.

The loss is the sum over all targets of the held-out examples, divided by their number. Its interval is over examples:
a ratio of two sums over n examples, sum(l) / sum(t), varies by sqrt(n / (n - 1) sum((l - ratio t)^2)) / sum(t), which
Student's t with n - 1 degrees of freedom turns into 95 %. A later loss is compared with the first one example by
example: the same formula for the differences.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.kernels.loss import CHUNK_TOKENS, IGNORED, token_losses
from bench.qlora.step import TrainingStep
from bench.records import student
from bench.records.training import Evaluation
from bench.workloads.finetune.training_set import RowCollator, TrainingSet
from bench.workloads.ranks.process import RankGroup


def example_losses(
    torch: Any,
    step: TrainingStep,
    training_set: TrainingSet,
    collate: RowCollator,
    group: RankGroup,
    on_progress: Callable[[int], None],
) -> list[float]:
    """Return the summed loss of each held-out example, on every rank; each rank computes its share of the rows."""
    all_rows = training_set.validation_rows()
    totals = torch.zeros(len(training_set.data.validation), dtype=torch.float64)
    with evaluation_mode(torch, step.model):
        for number, indices in enumerate(all_rows[group.rank :: group.world_size], 1):
            on_progress(number)
            batch = collate([training_set.data.validation[index] for index in indices])
            losses = _position_losses(torch, step, batch).double().cpu()
            for example, (first, last) in zip(indices, batch.spans(), strict=False):
                totals[example] = losses[first:last].sum()
    return list(map(float, sum(group.gather_objects(totals))))


@contextlib.contextmanager
def evaluation_mode(torch: Any, model: Any) -> Iterator[None]:
    """Disable gradients and dropout inside the context."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def _position_losses(torch: Any, step: TrainingStep, batch: Any) -> Any:
    """Compute the next-token cross-entropy of each position, the batch's rows end to end; 0 at masked positions."""
    inputs = step.inputs(batch)
    with step.autocast():
        if hasattr(step.model, "token_losses"):
            return step.model.token_losses(**inputs)
        labels = inputs.pop("labels")
        logits = step.model(**inputs).logits
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    parts = zip(logits.flatten(0, 1).split(CHUNK_TOKENS), targets.flatten().split(CHUNK_TOKENS), strict=True)
    return torch.cat([token_losses(*part) for part in parts])


def make_evaluation(step: int, losses: Sequence[float], first: Sequence[float], targets: Sequence[int]) -> Evaluation:
    """Summarize the losses after `step` steps; `first` are the losses before training, empty at step 0."""
    loss, low, high = ratio(losses, targets)
    changes = [now - then for now, then in zip(losses, first, strict=True)] if first else []
    change, change_low, change_high = ratio(changes, targets) if changes else (None, None, None)
    return Evaluation(
        step=step,
        loss=loss,
        low=low,
        high=high,
        rows=len(losses),
        targets=sum(targets),
        is_best=False,
        change=change,
        change_low=change_low,
        change_high=change_high,
    )


def ratio(sums: Sequence[float], counts: Sequence[int]) -> tuple[float, float | None, float | None]:
    """Return (sum of sums / sum of counts, and the ends of its 95 % interval, None for one example)."""
    n, total = len(sums), sum(counts)
    middle = math.fsum(sums) / total
    if n < 2:
        return middle, None, None
    spread = math.fsum((each - middle * count) ** 2 for each, count in zip(sums, counts, strict=True))
    half = student.quantile(0.95, n - 1) * math.sqrt(spread * n / (n - 1)) / total
    return middle, middle - half, middle + half
