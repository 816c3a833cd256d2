"""The time of a training step by phase: data, forward, backward, optimizer.

On CUDA by events that the device stamps: recording one costs the host a few microseconds and waits for nothing; they
are read after the step. On the CPU by the clock.

A step begins with an idle device, so `data` is the wait for the loader and the copy to the device. With several
micro-batches a step, a wait that overlaps a computation counts as that computation.
"""

import time
from typing import Any

PHASES = ("data", "forward", "backward", "optimizer")


class PhaseClock:
    """Stamps taken while a step runs: `begin()`, then `end(phase)` at the end of each, then `read()`."""

    def __init__(self, torch: Any, *, is_cuda: bool) -> None:
        self._torch, self._is_cuda = torch, is_cuda
        self._events: list[Any] = []  # CUDA's events, made once and recorded again in every step
        self._stamps: list[tuple[str, Any]] = []

    def begin(self) -> None:
        """The step begins here; earlier stamps are dropped."""
        self._stamps.clear()
        self._stamp("")

    def end(self, phase: str) -> None:
        """The time since the last stamp belongs to `phase`."""
        self._stamp(phase)

    def read(self) -> dict[str, float]:
        """Seconds of each phase in the step. On CUDA only after the device has reached the last stamp."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in zip(self._stamps, self._stamps[1:], strict=False):
            seconds[phase] += before.elapsed_time(after) / 1e3 if self._is_cuda else after - before
        return seconds

    def _stamp(self, phase: str) -> None:
        self._stamps.append((phase, self._recorded() if self._is_cuda else time.perf_counter()))

    def _recorded(self) -> Any:
        place = len(self._stamps)
        if place == len(self._events):
            self._events.append(self._torch.cuda.Event(enable_timing=True))
        self._events[place].record()
        return self._events[place]
