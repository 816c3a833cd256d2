"""One optimizer step over a global batch: the gradient of the sum of all its targets' losses, divided by their number.

The number of targets of the whole global batch is known on every rank before the step, so each row's mean is scaled by
its targets' share of it. Sums over rows and ranks then give one gradient, however rows are divided among micro-batches
and ranks. Dropout follows from the seed, the step and the row's place in the global batch alone.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.data.collate import Batch
from bench.qlora.step import TrainingStep
from bench.workloads.finetune.steps.gradients import Gradients


@dataclass(frozen=True, kw_only=True)
class RowOfStep:
    """One row of a step: its place in the global batch, its tensors, and how many of its tokens are targets."""

    place: int
    batch: Batch
    targets: int


class GlobalStep:
    """The model, its optimizer and its gradients. `scalars` holds (loss, further sums over ranks) of the last step."""

    def __init__(
        self, torch: Any, step: TrainingStep, gradients: Gradients, *, seed: int, most_norm: float, further: int = 0
    ) -> None:
        self.step, self.gradients = step, gradients
        self._torch, self._seed, self._most_norm = torch, seed, most_norm
        self._peaks = [float(group["lr"]) for group in step.optimizer.param_groups]
        device = gradients.buckets[0].flat.device
        self.scalars = torch.zeros(1 + further, dtype=torch.float64, device=device)
        self.losses: list[Any] = []
        self._norm = torch.zeros((), device=device)

    def gradient(self, number: int, rows: Sequence[RowOfStep], targets: int, further: Sequence[float] = ()) -> None:
        """Leave the global batch's gradient in every `grad`. `rows` are this rank's, `targets` the global batch's."""
        self.gradients.clear()
        self.scalars.zero_()
        if any(further):
            self.scalars[1:] = self._torch.tensor(list(further), dtype=self._torch.float64)
        self.losses = []
        self.step.clock.begin()
        for row in rows:
            self._torch.manual_seed(seed_of(self._seed, number, row.place))
            if row is rows[-1]:
                self.gradients.last()
            share = row.targets / targets
            mean = self.step.gradient(self.step.inputs(row.batch), share)
            self.losses.append(mean)
            self.scalars[0] += mean * share
        self.gradients.finish(self.scalars)

    def update(self, factor: float) -> None:
        """Clip, and change the weights at this share of the peak learning rates."""
        self._norm = self.gradients.norm()
        self.gradients.scale_((self._most_norm / (self._norm + 1e-6)).clamp(max=1.0))
        for group, peak in zip(self.step.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.step.optimizer.step()

    def read(self) -> tuple[float, float, list[float]]:
        """(loss, gradient norm before clipping, further sums) of the last step; waits for the device."""
        loss, *further = self.scalars.tolist()
        return loss, float(self._norm), further


def seed_of(seed: int, step: int, row: int) -> int:
    """The seed of a row's forward pass."""
    return int.from_bytes(hashlib.sha256(f"dropout/{seed}/{step}/{row}".encode()).digest()[:7], "big")
