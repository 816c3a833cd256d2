"""Offloading to host memory: layer inputs between forward and backward, and the embeddings and the head.

With every layer recomputed, one input per layer stays on the GPU between forward and backward: 1.07 GB at 32 layers of
4096 x 4096 in bf16. Copying one takes less time than its layer computes (34 MB: 0.6 ms over PCIe 5, a layer's forward 3
ms on an H200; an A10 is slower at both), so copies on a separate stream overlap the computation.
On a CPU nothing is moved.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.kernels.pinned_gather import gather_rows


class OffloadedTables:
    """The embeddings and the head of a base model.

    `offloaded`: their weights move to the host: 0.5 GiB of the 7B shape, 2 GiB for a vocabulary of 128,000. The device
    then reads the rows of a micro-batch's tokens from there, and holds a copy of the head while computing the loss.
    """

    def __init__(self, base: Any, *, offloaded: bool) -> None:
        self._embedding, self._head = base.model.embed_tokens, base.lm_head
        self._device = self._head.weight.device
        self._is_offloaded = offloaded and self._device.type == "cuda"
        if self._is_offloaded:
            self._move(_copy_to_pinned)

    def embed(self, ids: Any) -> Any:
        """Return the embeddings (T, H) of `ids` (T,)."""
        return gather_rows(self._embedding.weight, ids) if self._is_offloaded else self._embedding(ids)

    def head(self) -> Any:
        """Return the head's weight (V, H), on the device."""
        return self._head.weight.to(self._device, non_blocking=True)

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """Hold all weights on the device inside the context, for code that uses the model itself."""
        if not self._is_offloaded:
            yield
            return
        self._is_offloaded = False
        try:
            self._move(lambda weight: weight.to(self._device))
            yield
        finally:
            self._move(_copy_to_pinned)
            self._is_offloaded = True

    def _move(self, move: Callable[[Any], Any]) -> None:
        for parameter in {self._embedding.weight, self._head.weight}:  # a single one if they are tied
            parameter.data = move(parameter.data)


def _copy_to_pinned(weight: Any) -> Any:
    return torch.empty(weight.shape, dtype=weight.dtype, pin_memory=True).copy_(weight)


class Offload:
    """The offloaded layer inputs, by layer index.

    Streams wait for each other and never for the host, and memory is allocated and freed only on the current stream, so
    a step with all its copies can be captured as a graph.
    """

    def __init__(self) -> None:
        self._host: dict[int, Any] = {}  # pinned buffers, allocated once and reused in every step
        self._on_device: dict[int, Any] = {}  # on the device or being copied there; on a CPU all inputs
        self._outgoing: Any = None
        self._stream: Any = None
        self._has_pending_copies = False  # the current stream does not wait for the copies yet

    def put(self, index: int, x: Any) -> None:
        """Store `x`, which must not change until `pop`. Call `finish_put` before the next `put`."""
        if not x.is_cuda:
            self._on_device[index] = x
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        buffer = self._host.get(index)
        if buffer is None or buffer.shape != x.shape or buffer.dtype != x.dtype:
            buffer = self._host[index] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self._on_device.pop(index, None)  # left by an unfinished backward
        self._outgoing = x
        with self._copy_stream():
            buffer.copy_(x, non_blocking=True)

    def finish_put(self) -> None:
        """Order the copy of the last `put` before all work queued from now on, and release its device memory."""
        self.join()
        self._outgoing = None

    def prefetch(self, index: int) -> None:
        """Start copying an input to the device, if one is stored, after the work queued so far."""
        if index in self._on_device or index not in self._host:
            return
        x = self._on_device[index] = torch.empty_like(self._host[index], device="cuda")
        with self._copy_stream():
            x.copy_(self._host[index], non_blocking=True)

    def pop(self, index: int) -> Any:
        """Return the input of layer `index` on the device, and forget it."""
        self.prefetch(index)
        self.join()
        return self._on_device.pop(index)

    def join(self) -> None:
        """Make all work queued from now on wait for all copies."""
        if self._has_pending_copies:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._has_pending_copies = False

    def _copy_stream(self) -> Any:
        """Return the copy stream's context; the stream first waits for the work queued on the current one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        self._has_pending_copies = True
        return torch.cuda.stream(self._stream)
