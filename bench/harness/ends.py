"""How a trial can end other than well: signals and the deadline made into one exception, exceptions made into an End.

Standard library alone: the handlers are in place before torch is imported, which takes seconds in which a trial can
be stopped like in any other.

Not covered: a call into a library that never returns. Python runs handlers between two of its own instructions, so
such a trial ends by SIGKILL, from whoever started it, and leaves no result.
"""

from __future__ import annotations

import errno
import re
import signal
from types import FrameType

from bench.harness import out_of_memory
from bench.harness.record import Record, peak_rss_bytes
from bench.records.result import End

EXIT_CODES = {End.SUCCEEDED: 0, End.CANCELLED: 130, End.PREEMPTED: 143}
EXIT_BAD_INPUT = 2

# What allocators that have no exception of their own say, in torch, CUDA's libraries and bitsandbytes.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)


class Stopped(BaseException):
    """The trial was told to stop. Like KeyboardInterrupt no Exception, so that no library takes it for a failure."""

    def __init__(self, end: End, reason: str) -> None:
        super().__init__(reason)
        self.end, self.reason = end, reason


class WorkerGone(RuntimeError):
    """Something took away a machine that the trial was running on: not the trial's doing, and worth another try."""


class NotFinite(ArithmeticError):
    """The loss is no longer a number, and every later step would be worthless."""


class Stops:
    """Raises Stopped in the main thread, once: on SIGINT, on SIGTERM and when the deadline passes."""

    def __init__(self) -> None:
        self._stopped: Stopped | None = None
        self._listening = True
        self._deadline = 0.0

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._on_signal)
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_signal)

    def set_deadline(self, seconds: float) -> None:
        self._deadline = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def check(self) -> None:
        """Raise what was raised before, in case it was lost: a destructor or a bare `except:` can swallow it."""
        if self._listening and self._stopped is not None:
            raise self._stopped

    @property
    def told(self) -> Stopped | None:
        """The stop that came, whatever the code that it broke into has made of it: an import ends in any error."""
        return self._stopped

    def close(self) -> None:
        """From here on nothing stops the process but SIGKILL: it is writing its result, which takes milliseconds."""
        self._listening = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._listening or self._stopped is not None:
            return
        if number == signal.SIGALRM:
            self._stopped = Stopped(End.TIMED_OUT, f"the deadline of {self._deadline:g} s passed")
        elif number == signal.SIGTERM:
            self._stopped = Stopped(End.PREEMPTED, "stopped by SIGTERM")
        else:
            self._stopped = Stopped(End.CANCELLED, "stopped by SIGINT")
        raise self._stopped


def end_of(error: BaseException, record: Record | None = None) -> tuple[End, str]:
    """The end an exception means, and a reason of one line. With the trial's record, one that says what to try next."""
    if isinstance(error, Stopped):
        return error.end, error.reason
    said = " ".join(str(error).split()) or "no message"
    if isinstance(error, WorkerGone):
        return End.LOST, said[:300]
    if is_out_of_memory(error):
        return End.OUT_OF_MEMORY, said[:300] if record is None else _out_of_memory(said, record)
    return End.FAILED, f"{type(error).__name__}: {said}"[:300]


def _out_of_memory(said: str, record: Record) -> str:
    if record.peak_vram_bytes is None:
        return out_of_memory.explain(record.trial, record.phase, said, record.peak_rss_bytes or peak_rss_bytes(), "RSS")
    return out_of_memory.explain(record.trial, record.phase, said, record.peak_vram_bytes)


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's, the CPU allocator's and the system's ways to say that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
