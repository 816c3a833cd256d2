"""Time of a training step by phase: data, forward, backward, optimizer.

On CUDA it is measured by events with the device's timestamps: recording one costs the host a few microseconds without
synchronization; they are read after the step. On the CPU it is measured by the clock.

A step begins with an idle device, so `data` is the wait for the loader and the copy to the device. With several
micro-batches per step, a wait that overlaps a computation counts as that computation.
"""

import time
from typing import Any

PHASES = ("data", "forward", "backward", "optimizer")


class PhaseClock:
    """Timer of a step's phases: call `begin()`, then `end(phase)` at the end of each phase, then `read()`."""

    def __init__(self, torch: Any, *, is_cuda: bool) -> None:
        self._torch, self._is_cuda = torch, is_cuda
        self._events: list[Any] = []  # CUDA events, created once and reused in every step
        self._stamps: list[tuple[str, Any]] = []

    def begin(self) -> None:
        """Begin a step; drop earlier timestamps."""
        self._stamps.clear()
        self._stamp("")

    def end(self, phase: str) -> None:
        """Assign the time since the last timestamp to `phase`."""
        self._stamp(phase)

    def read(self) -> dict[str, float]:
        """Return the seconds of each phase in the step. On CUDA, synchronize first."""
        seconds = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in zip(self._stamps, self._stamps[1:], strict=False):
            seconds[phase] += before.elapsed_time(after) / 1e3 if self._is_cuda else after - before
        return seconds

    def _stamp(self, phase: str) -> None:
        self._stamps.append((phase, self._record_event() if self._is_cuda else time.perf_counter()))

    def _record_event(self) -> Any:
        index = len(self._stamps)
        if index == len(self._events):
            self._events.append(self._torch.cuda.Event(enable_timing=True))
        self._events[index].record()
        return self._events[index]
