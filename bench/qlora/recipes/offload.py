"""Keeps in the host's memory what a step needs only for a moment: layer inputs between forward and backward, and the
embeddings and the head.

With every layer recomputed, one input a layer stays on the GPU between forward and backward: 1.07 GB at 32 layers of
4096 x 4096 in bf16. Copying one takes less time than its layer computes (34 MB: 0.6 ms over PCIe 5, a layer's forward 3
ms on an H200; an A10 is slower at both), so copies overlap the computation, on a stream of their own.
On a CPU everything stays where it is.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bench.kernels.pinned_gather import rows_of


class OffloadedTables:
    """The embeddings and the head of a base model.

    `offloaded`: their weights move to the host, 0.5 GiB of the 7B shape and 2 GiB where there are 128,000 words. The
    device then reads the rows of a micro-batch's words there, and has a copy of the head while the loss is computed.
    """

    def __init__(self, base: Any, *, offloaded: bool) -> None:
        self._words, self._head = base.model.embed_tokens, base.lm_head
        self._device = self._head.weight.device
        self._is_away = offloaded and self._device.type == "cuda"
        if self._is_away:
            self._move(_pinned)

    def embed(self, ids: Any) -> Any:
        """The embeddings (T, H) of `ids` (T,)."""
        return rows_of(self._words.weight, ids) if self._is_away else self._words(ids)

    def head(self) -> Any:
        """The head's weight (V, H), on the device."""
        return self._head.weight.to(self._device, non_blocking=True)

    @contextlib.contextmanager
    def on_device(self) -> Iterator[None]:
        """Inside, all weights are on the device, for code that computes with the model itself."""
        if not self._is_away:
            yield
            return
        self._is_away = False
        try:
            self._move(lambda weight: weight.to(self._device))
            yield
        finally:
            self._move(_pinned)
            self._is_away = True

    def _move(self, where: Callable[[Any], Any]) -> None:
        for parameter in {self._words.weight, self._head.weight}:  # one where they are tied
            parameter.data = where(parameter.data)


def _pinned(weight: Any) -> Any:
    return torch.empty(weight.shape, dtype=weight.dtype, pin_memory=True).copy_(weight)


class Offload:
    """Layer inputs by index.

    The streams wait for each other, never the host, and memory is asked for and given back on the current stream alone:
    so a step with all its copies can be captured as a graph.
    """

    def __init__(self) -> None:
        self._host: dict[int, Any] = {}  # pinned buffers, made once and reused in every step
        self._here: dict[int, Any] = {}  # on the device, or on the way there; on a CPU all of them
        self._leaving: Any = None
        self._stream: Any = None
        self._is_ahead = False  # of the current stream, which does not wait for it yet

    def put(self, index: int, x: Any) -> None:
        """Keep `x`, which must not change until it is taken. `settle` before the next one."""
        if not x.is_cuda:
            self._here[index] = x
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        buffer = self._host.get(index)
        if buffer is None or buffer.shape != x.shape or buffer.dtype != x.dtype:
            buffer = self._host[index] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
        self._here.pop(index, None)  # of a backward that came to no end
        self._leaving = x
        with self._behind():
            buffer.copy_(x, non_blocking=True)

    def settle(self) -> None:
        """What was put is in the host's memory before anything that is queued from now on: its room is free."""
        self.join()
        self._leaving = None

    def begin(self, index: int) -> None:
        """Start to fetch this input, where there is one, behind what is queued so far."""
        if index in self._here or index not in self._host:
            return
        x = self._here[index] = torch.empty_like(self._host[index], device="cuda")
        with self._behind():
            x.copy_(self._host[index], non_blocking=True)

    def take(self, index: int) -> Any:
        """The input of layer `index`, on the device."""
        self.begin(index)
        self.join()
        return self._here.pop(index)

    def join(self) -> None:
        """What is queued from now on waits for all copies."""
        if self._is_ahead:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._is_ahead = False

    def _behind(self) -> Any:
        """The stream of the copies, behind what is queued on the current one."""
        self._stream.wait_stream(torch.cuda.current_stream())
        self._is_ahead = True
        return torch.cuda.stream(self._stream)
