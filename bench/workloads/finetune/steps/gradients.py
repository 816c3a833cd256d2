"""The gradients of the adapters in flat buckets, added up over ranks while the backward pass still runs.

Parameters are put into buckets from the last layer down, the order in which backward reaches them. Each `grad` is a
view of its bucket. In the last micro-batch of a step, a bucket is sent as soon as all its gradients are there and the
one before it has been sent: the same order on every rank, as the backends need it. What travels is the sum, in float32
or rounded to bf16.

Not covered: parameters of several dtypes.
"""

import time
from collections.abc import Sequence
from typing import Any

from bench.workloads.finetune.steps.group import RankGroup

BUCKET_BYTES = 8 << 20


class GradientBucket:
    """Some parameters' gradients, one after the other."""

    def __init__(self, torch: Any, parameters: Sequence[Any], travels_as: Any) -> None:
        self.parameters = tuple(parameters)
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(size, dtype=parameters[0].dtype, device=parameters[0].device)
        self.rounded = None if travels_as == self.flat.dtype else torch.empty_like(self.flat, dtype=travels_as)
        self.missing, self.sent, self.work = 0, False, None
        start = 0
        for parameter in parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def send(self, group: RankGroup) -> None:
        self.sent = True
        if self.rounded is not None:
            self.rounded.copy_(self.flat)
        self.work = group.begin_sum(self.flat if self.rounded is None else self.rounded)

    def receive(self) -> None:
        if self.work is not None:
            self.work.wait()
        if self.rounded is not None:
            self.flat.copy_(self.rounded)
        self.work = None


class Gradients:
    """All adapters' gradients of one step: `clear`, backward passes with `last` before the last one, `finish`."""

    def __init__(
        self, torch: Any, parameters: Sequence[Any], group: RankGroup, *, travels: str, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._torch, self._group, self._armed, self._next = torch, group, False, 0
        dtype = torch.bfloat16 if travels == "bf16" and not group.is_alone else parameters[0].dtype
        self.buckets = [GradientBucket(torch, part, dtype) for part in _parts(list(reversed(parameters)), bucket_bytes)]
        self._is_cuda = bool(self.buckets[0].flat.is_cuda)
        self._stamps: tuple[Any, Any] = (0.0, 0.0)
        if not group.is_alone:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._arrived(bucket))

    @property
    def bytes(self) -> int:
        """What travels in a step."""
        sent = (bucket.flat if bucket.rounded is None else bucket.rounded for bucket in self.buckets)
        return sum(each.numel() * each.element_size() for each in sent)

    def clear(self) -> None:
        self._torch._foreach_zero_([bucket.flat for bucket in self.buckets])
        self._armed, self._next = False, 0
        for bucket in self.buckets:
            bucket.missing, bucket.sent = len(bucket.parameters), False

    def last(self) -> None:
        """The next backward pass is this rank's last one in the step."""
        self._armed = True

    def finish(self, scalars: Any) -> None:
        """Send what is left, and `scalars` with it; wait for all sums."""
        self._send(everything=True)
        work = self._group.begin_sum(scalars)
        start = self._stamp()
        for bucket in self.buckets:
            bucket.receive()
        if work is not None:
            work.wait()
        self._stamps = start, self._stamp()

    def waited_sec(self) -> float:
        """How long the last `finish` waited for the other ranks; on CUDA the device must have done it."""
        start, end = self._stamps
        return float(start.elapsed_time(end)) / 1e3 if self._is_cuda else end - start

    def norm(self) -> Any:
        """The norm of all gradients together, a scalar on the device."""
        return self._torch.linalg.vector_norm(
            self._torch.stack(self._torch._foreach_norm([bucket.flat for bucket in self.buckets]))
        )

    def scale_(self, factor: Any) -> None:
        self._torch._foreach_mul_([bucket.flat for bucket in self.buckets], factor)

    def _arrived(self, bucket: GradientBucket) -> Any:
        def hook(_parameter: Any) -> None:
            if self._armed:
                bucket.missing -= 1
                self._send()

        return hook

    def _send(self, *, everything: bool = False) -> None:
        while self._next < len(self.buckets) and (everything or not self.buckets[self._next].missing):
            self.buckets[self._next].send(self._group)
            self._next += 1

    def _stamp(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _parts(parameters: list[Any], most_bytes: int) -> list[list[Any]]:
    """Neighbours together, up to `most_bytes`, at least one each."""
    parts: list[list[Any]] = [[]]
    size = 0
    for parameter in parameters:
        more = parameter.numel() * parameter.element_size()
        if parts[-1] and size + more > most_bytes:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += more
    return parts
