"""The gradients of the adapters in flat buckets, summed over ranks while the backward pass runs.

Parameters are put into buckets from the last layer down, in the order in which backward reaches them. Each `grad` is a
view of its bucket. In the last micro-batch of a step, a bucket is sent as soon as all its gradients are computed and
the previous bucket has been sent: the backends need the same order on every rank. The buckets are sent in float32 or
rounded to bf16.

Not covered: parameters of several dtypes.
"""

import time
from collections.abc import Sequence
from typing import Any

from bench.workloads.finetune.steps.group import RankGroup

BUCKET_BYTES = 8 << 20


class GradientBucket:
    """The concatenated gradients of several parameters."""

    def __init__(self, torch: Any, parameters: Sequence[Any], wire_dtype: Any) -> None:
        self.parameters = tuple(parameters)
        size = sum(parameter.numel() for parameter in parameters)
        self.flat = torch.zeros(size, dtype=parameters[0].dtype, device=parameters[0].device)
        self.rounded = None if wire_dtype == self.flat.dtype else torch.empty_like(self.flat, dtype=wire_dtype)
        self.missing, self.sent, self.work = 0, False, None
        start = 0
        for parameter in parameters:
            parameter.grad = self.flat[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def send(self, group: RankGroup) -> None:
        self.sent = True
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
        self._stamps: tuple[Any, Any] = (0.0, 0.0)
        if not group.is_single:
            for bucket in self.buckets:
                for parameter in bucket.parameters:
                    parameter.register_post_accumulate_grad_hook(self._make_hook(bucket))

    @property
    def bytes(self) -> int:
        """The bytes that a rank sends in a step."""
        sent = (bucket.flat if bucket.rounded is None else bucket.rounded for bucket in self.buckets)
        return sum(each.numel() * each.element_size() for each in sent)

    def clear(self) -> None:
        self._torch._foreach_zero_([bucket.flat for bucket in self.buckets])
        self._is_last_backward, self._next = False, 0
        for bucket in self.buckets:
            bucket.missing, bucket.sent = len(bucket.parameters), False

    def begin_last_backward(self) -> None:
        """Announce this rank's last backward pass of the step, during which buckets are sent."""
        self._is_last_backward = True

    def finish(self, scalars: Any) -> None:
        """Send the remaining buckets and `scalars`; wait for all sums."""
        self._send(flush=True)
        work = self._group.all_reduce_async(scalars)
        start = self._stamp()
        for bucket in self.buckets:
            bucket.receive()
        if work is not None:
            work.wait()
        self._stamps = start, self._stamp()

    def waited_sec(self) -> float:
        """Return how long the last `finish` waited for the other ranks; on CUDA the device must have completed it."""
        start, end = self._stamps
        return float(start.elapsed_time(end)) / 1e3 if self._is_cuda else end - start

    def norm(self) -> Any:
        """Compute the norm of all gradients together, a scalar on the device."""
        return self._torch.linalg.vector_norm(
            self._torch.stack(self._torch._foreach_norm([bucket.flat for bucket in self.buckets]))
        )

    def scale_(self, factor: Any) -> None:
        self._torch._foreach_mul_([bucket.flat for bucket in self.buckets], factor)

    def _make_hook(self, bucket: GradientBucket) -> Any:
        def hook(_parameter: Any) -> None:
            if self._is_last_backward:
                bucket.missing -= 1
                self._send()

        return hook

    def _send(self, *, flush: bool = False) -> None:
        while self._next < len(self.buckets) and (flush or not self.buckets[self._next].missing):
            self.buckets[self._next].send(self._group)
            self._next += 1

    def _stamp(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event


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
