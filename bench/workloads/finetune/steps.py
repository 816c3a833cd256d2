"""One optimizer step over a global batch: the gradient of the sum of all its targets' losses, divided by their number.

Every rank knows the number of targets of the whole global batch before the step, so each row's mean loss is scaled by
the row's share of all targets. The sum over rows and ranks is then the same gradient for any division into
micro-batches and ranks. Dropout depends only on the seed, the step and the row's index in the global batch.

The gradients of the adapters are in flat buckets, summed over ranks while the backward pass runs. Parameters are put
into buckets from the last layer down, in the order in which backward reaches them. Each `grad` is a view of its bucket.
In the last micro-batch of a step, a bucket is sent as soon as all its gradients are computed and the previous bucket
has been sent: the backends need the same order on every rank. The buckets are sent in float32 or rounded to bf16.

A backward pass that is replayed from a CUDA graph runs no hooks. When it is captured, they record an event for each
bucket inside the graph; after a replay is launched, each bucket is sent on its own stream as soon as its event is
reached, while the graph still runs.

Not covered: parameters of several dtypes.
"""

import contextlib
import hashlib
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from bench.data.collate import Batch
from bench.qlora.step import TrainingStep
from bench.records.training import Training
from bench.torch_stack import DeviceClock
from bench.workloads.ranks.process import RankGroup

BUCKET_BYTES = 8 << 20


class GradientBucket:
    """The concatenated gradients of several parameters."""

    def __init__(self, torch: Any, parameters: Sequence[Any], wire_dtype: Any) -> None:
        self.parameters = tuple(parameters)
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(size, dtype=parameters[0].dtype, device=parameters[0].device)
        self.rounded = None if wire_dtype == self.flat.dtype else torch.empty_like(self.flat, dtype=wire_dtype)
        self.missing, self.work = 0, None
        self.uncaptured = len(self.parameters)
        self.computed: Any = None
        start = 0
        for parameter in parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def capture(self, torch: Any) -> None:
        """Count a parameter's gradient in a backward pass that is being captured; record `computed` at the last one."""
        self.uncaptured -= 1
        if not self.uncaptured:
            self.uncaptured = len(self.parameters)
            self.computed = torch.cuda.Event(external=True)
            self.computed.record()

    def send(self, group: RankGroup) -> None:
        if self.rounded is not None:
            self.rounded.copy_(self.flat)
        self.work = group.all_reduce_async(self.flat if self.rounded is None else self.rounded)

    def receive(self) -> None:
        if self.work is not None:
            self.work.wait()
        if self.rounded is not None:
            self.flat.copy_(self.rounded)
        self.work = None


class Gradients:
    """All adapters' gradients of one step.

    Call `clear`, run the backward passes, with `begin_last_backward` before the last one, then call `finish`.
    """

    def __init__(
        self,
        torch: Any,
        parameters: Sequence[Any],
        group: RankGroup,
        *,
        wire_dtype: str,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._torch, self._group, self._is_last_backward, self._next = torch, group, False, 0
        dtype = torch.bfloat16 if wire_dtype == "bf16" and not group.is_single else parameters[0].dtype
        self.buckets = [
            GradientBucket(torch, part, dtype) for part in _split_into_buckets(list(reversed(parameters)), bucket_bytes)
        ]
        self._is_cuda = bool(self.buckets[0].flat.is_cuda)
        self._clock = DeviceClock(torch, is_cuda=self._is_cuda)
        self._stamps: tuple[Any, Any] | None = None
        self._sending: Any = torch.cuda.Stream() if self._is_cuda and not group.is_single else None
        if not group.is_single:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._make_hook(bucket))

    def clear(self) -> None:
        self._torch._foreach_zero_([bucket.flat for bucket in self.buckets])
        self._is_last_backward, self._next = False, 0
        for bucket in self.buckets:
            bucket.missing = bucket.uncaptured = len(bucket.parameters)

    def begin_last_backward(self) -> None:
        """Announce this rank's last backward pass of the step, during which buckets are sent."""
        self._is_last_backward = True

    def finish(self, scalars: Any) -> None:
        """Send the remaining buckets and `scalars`; wait for all sums."""
        self._send(flush=True)
        work = self._group.all_reduce_async(scalars)
        start = self._clock.stamp()
        for bucket in self.buckets:
            bucket.receive()
        if work is not None:
            work.wait()
        self._stamps = start, self._clock.stamp()

    def waited_sec(self) -> float:
        """Return how long the last `finish` waited for the other ranks."""
        return 0.0 if self._stamps is None else self._clock.seconds(*self._stamps)

    def norm(self) -> Any:
        """Compute the norm of all gradients together, a scalar on the device."""
        return self._torch.linalg.vector_norm(
            self._torch.stack(self._torch._foreach_norm([bucket.flat for bucket in self.buckets]))
        )

    def scale_(self, factor: Any) -> None:
        self._torch._foreach_mul_([bucket.flat for bucket in self.buckets], factor)

    def _make_hook(self, bucket: GradientBucket) -> Any:
        def hook(_parameter: Any) -> None:
            if self._is_cuda and self._torch.cuda.is_current_stream_capturing():
                bucket.capture(self._torch)
            elif self._is_last_backward:
                bucket.missing -= 1
                self._send()

        return hook

    def _send(self, *, flush: bool = False) -> None:
        while self._next < len(self.buckets) and (flush or not self.buckets[self._next].missing):
            bucket = self.buckets[self._next]
            with self._stream_of(bucket):
                bucket.send(self._group)
            self._next += 1

    def _stream_of(self, bucket: GradientBucket) -> AbstractContextManager[Any]:
        """Return the context in which a bucket is sent: after its event in a replayed graph, else after all so far."""
        is_replayed = self._is_last_backward and bucket.missing == len(bucket.parameters)
        if bucket.computed is None or not is_replayed:
            return nullcontext()
        self._sending.wait_event(bucket.computed)
        stream: AbstractContextManager[Any] = self._torch.cuda.stream(self._sending)
        return stream


def _split_into_buckets(parameters: list[Any], max_bytes: int) -> list[list[Any]]:
    """Group neighbouring parameters, up to `max_bytes` per bucket, but at least one parameter each."""
    buckets: list[list[Any]] = [[]]
    size = 0
    for parameter in parameters:
        parameter_bytes = parameter.numel() * parameter.element_size()
        if buckets[-1] and size + parameter_bytes > max_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += parameter_bytes
    return buckets


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One row of a step: its index in the global batch, its tensors and its number of targets."""

    index: int
    batch: Batch
    targets: int


class GlobalStep:
    """The model, its optimizer and its gradients. `scalars` holds the loss and two more sums of the last step."""

    def __init__(self, torch: Any, step: TrainingStep, gradients: Gradients, *, seed: int, max_norm: float) -> None:
        self.step, self.gradients = step, gradients
        self._torch, self._seed, self._max_norm = torch, seed, max_norm
        self._peaks = [float(group["lr"]) for group in step.optimizer.param_groups]
        device = gradients.buckets[0].flat.device
        self.scalars = torch.zeros(3, dtype=torch.float64, device=device)
        self.losses: list[Any] = []
        self._norm = torch.zeros((), device=device)

    def forward_backward(
        self, number: int, rows: Sequence[StepRow], targets: int, extra_sums: tuple[float, float] = (0.0, 0.0)
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


@contextlib.contextmanager
def deterministic(torch: Any, recipe: str) -> Iterator[None]:
    """Use kernels that add in a fixed order; those of `fast` always do where it matters."""
    if recipe.startswith("fast"):
        yield
        return
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def waited_percent(ranks: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the share of the median step spent waiting, from each rank's (waited, whole) seconds of each step.

    The rank that waits least in a step was the last one to compute, so it waited for the exchange only; the others
    waited for it, too. Medians, because the first steps wait for another rank's compilation and capture.
    """
    waited, whole = zip(*map(min, zip(*ranks, strict=True)), strict=True)
    return 100.0 * float(statistics.median(waited)) / float(statistics.median(whole))


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
