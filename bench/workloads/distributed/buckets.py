"""A clock of gradient bucket exchanges between ranks, inside a DDP communication hook."""

import time
from typing import Any


class BucketClock:
    """A DDP communication hook that averages over ranks, as DDP does, and times each bucket.

    A bucket's span is from its gradients to their mean: device events on CUDA, the host's clock elsewhere. `buckets`
    holds the bytes of each of the step's buckets.
    """

    def __init__(self, torch: Any, world_size: int, *, on_cuda: bool) -> None:
        self._torch, self._on_cuda = torch, on_cuda
        self._marks: list[tuple[Any, Any]] = []
        self._origin: Any = None
        self.buckets: list[int] = []

        def hook(_state: Any, bucket: Any) -> Any:
            start = self._mark()
            buffer = bucket.buffer().div_(world_size)
            self.buckets.append(buffer.numel() * buffer.element_size())

            def reduced(future: Any) -> Any:
                self._marks.append((start, self._mark()))
                return future.value()[0]

            return torch.distributed.all_reduce(buffer, async_op=True).get_future().then(reduced)

        hook.__annotations__ = {}  # DDP refuses annotations other than its own classes
        self.hook = hook

    def begin(self) -> None:
        """Begin a step: drop the last step's time stamps."""
        self._marks, self.buckets = [], []
        self._origin = self._mark()

    def spans(self) -> list[tuple[float, float]]:
        """Return each bucket's start and end in seconds since the step began. The step must be over."""
        if not self._on_cuda:
            return [(start - self._origin, end - self._origin) for start, end in self._marks]
        since = self._origin.elapsed_time
        return [(since(start) / 1000.0, since(end) / 1000.0) for start, end in self._marks]

    def _mark(self) -> Any:
        if not self._on_cuda:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()  # on the current stream, which in `reduced` waits for the all-reduce
        return event
