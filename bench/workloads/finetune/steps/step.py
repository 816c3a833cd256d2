"""One optimizer step over a global batch: the gradient of the sum of all its targets' losses, divided by their number.

Every rank knows the number of targets of the whole global batch before the step, so each row's mean loss is scaled by
the row's share of all targets. The sum over rows and ranks is then the same gradient for any division into
micro-batches and ranks. Dropout depends only on the seed, the step and the row's index in the global batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.data.collate import Batch
from bench.qlora.step import TrainingStep
from bench.workloads.finetune.steps.gradients import Gradients


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One row of a step: its index in the global batch, its tensors and its number of targets."""

    index: int
    batch: Batch
    targets: int


class GlobalStep:
    """The model, its optimizer and its gradients. `scalars` holds (loss, extra sums over ranks) of the last step."""

    def __init__(
        self, torch: Any, step: TrainingStep, gradients: Gradients, *, seed: int, max_norm: float, extra_sums: int = 0
    ) -> None:
        self.step, self.gradients = step, gradients
        self._torch, self._seed, self._max_norm = torch, seed, max_norm
        self._peaks = [float(group["lr"]) for group in step.optimizer.param_groups]
        device = gradients.buckets[0].flat.device
        self.scalars = torch.zeros(1 + extra_sums, dtype=torch.float64, device=device)
        self.losses: list[Any] = []
        self._norm = torch.zeros((), device=device)

    def forward_backward(
        self, number: int, rows: Sequence[StepRow], targets: int, extra_sums: Sequence[float] = ()
    ) -> None:
        """Compute the global batch's gradient in every `grad`. `rows` are this rank's, `targets` the global number."""
        self.gradients.clear()
        self.scalars.zero_()
        if any(extra_sums):
            self.scalars[1:] = self._torch.tensor(list(extra_sums), dtype=self._torch.float64)
        self.losses = []
        self.step.clock.begin()
        for row in rows:
            self._torch.manual_seed(row_seed(self._seed, number, row.index))
            if row is rows[-1]:
                self.gradients.begin_last_backward()
            share = row.targets / targets
            mean = self.step.forward_backward(self.step.inputs(row.batch), share)
            self.losses.append(mean)
            self.scalars[0] += mean * share
        self.gradients.finish(self.scalars)

    def update(self, factor: float) -> None:
        """Clip the gradients and update the weights at `factor` times the peak learning rates."""
        self._norm = self.gradients.norm()
        self.gradients.scale_((self._max_norm / (self._norm + 1e-6)).clamp(max=1.0))
        for group, peak in zip(self.step.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * factor
        self.step.optimizer.step()

    def read(self) -> tuple[float, float, list[float]]:
        """Return (loss, gradient norm before clipping, extra sums) of the last step; waits for the device."""
        loss, *extra_sums = self.scalars.tolist()
        return loss, float(self._norm), extra_sums


def row_seed(seed: int, step: int, row: int) -> int:
    """Return the seed of a row's forward pass."""
    return int.from_bytes(hashlib.sha256(f"dropout/{seed}/{step}/{row}".encode()).digest()[:7], "big")
