"""How a trial ends early: signals and the deadline raise one exception; exceptions become an End.

Standard library alone: the handlers are set before torch is imported, which takes seconds.

Not covered: a call into a library that never returns. Python runs signal handlers between its own instructions, so
such a trial is ended by SIGKILL and leaves no result.
"""

import contextlib
import errno
import re
import signal
from collections.abc import Iterator
from types import FrameType

from bench.harness import out_of_memory
from bench.harness.record import Record, peak_rss_bytes
from bench.records.result import TrialStatus

EXIT_CODES = {TrialStatus.SUCCEEDED: 0, TrialStatus.CANCELLED: 130, TrialStatus.PREEMPTED: 143}
EXIT_BAD_INPUT = 2
EXIT_REFUSED = 4
EXIT_NOBODY_READS = 141  # as of a program that SIGPIPE ended: `list | head`

# Messages of allocators that raise a plain RuntimeError: torch, CUDA's libraries and bitsandbytes.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)


class Stopped(BaseException):
    """The trial was told to stop. A BaseException, so that no library handles it as a failure."""

    def __init__(self, end: TrialStatus, reason: str) -> None:
        super().__init__(reason)
        self.end, self.reason = end, reason


class WorkerGone(RuntimeError):
    """A machine of the trial is gone: the trial is not at fault, and is tried again."""


class NonFiniteLoss(ArithmeticError):
    """The loss is no longer a number: every later step would be worthless."""


class Stops:
    """Raises Stopped in the main thread, once: on SIGINT, on SIGTERM and when the deadline passes."""

    def __init__(self) -> None:
        # The stop that came. The interrupted code may have turned it into another error, as imports do.
        self.stopped: Stopped | None = None
        self._listening, self._is_later = True, False
        self._deadline = 0.0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._on_signal)

    def set_deadline(self, seconds: float) -> None:
        self._deadline = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    @contextlib.contextmanager
    def later(self) -> Iterator[None]:
        """A stop that comes inside is raised at the end: what is done there, in moments, is done whole."""
        self._is_later = True
        try:
            yield
        finally:
            self._is_later = False
        self.check()

    def check(self) -> None:
        """Raise Stopped again: a destructor or a bare `except:` can swallow the first one."""
        if self._listening and self.stopped is not None:
            raise self.stopped

    def close(self) -> None:
        """Ignore all later signals: the process writes its result, which takes milliseconds."""
        self._listening = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._listening or self.stopped is not None:
            return
        if number == signal.SIGALRM:
            self.stopped = Stopped(TrialStatus.TIMED_OUT, f"the deadline of {self._deadline:g} s passed")
        elif number == signal.SIGTERM:
            self.stopped = Stopped(TrialStatus.PREEMPTED, "stopped by SIGTERM")
        else:
            self.stopped = Stopped(TrialStatus.CANCELLED, "stopped by SIGINT")
        if not self._is_later:
            raise self.stopped


def end_of(error: BaseException, record: Record | None = None) -> tuple[TrialStatus, str]:
    """The End of an exception, and a reason of one line; with the trial's record, the reason says what to try next."""
    if isinstance(error, Stopped):
        return error.end, error.reason
    words = " ".join(str(error).split()) or "no message"
    if isinstance(error, WorkerGone):
        return TrialStatus.LOST, words[:300]
    if is_out_of_memory(error):
        return TrialStatus.OUT_OF_MEMORY, words[:300] if record is None else _out_of_memory(words, record)
    return TrialStatus.FAILED, f"{type(error).__name__}: {words}"[:300]


def _out_of_memory(words: str, record: Record) -> str:
    vram = record.peak_vram_bytes
    peak = (record.peak_rss_bytes or peak_rss_bytes(), "RSS") if vram is None else (vram, "VRAM")
    return out_of_memory.explain(record.trial, record.phase, words, *peak)


def is_out_of_memory(error: BaseException) -> bool:
    """True where CUDA, the CPU allocator or the system reports that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
