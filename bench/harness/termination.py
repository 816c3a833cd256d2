"""Early end of a trial: signals and the deadline raise one exception; exceptions become an Outcome.

Only the standard library: the handlers are installed before torch is imported, which takes seconds.

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
from bench.records.status import Outcome, ReasonCode

# Messages of allocators that raise a plain RuntimeError: torch, CUDA's libraries and bitsandbytes.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)


# Messages of gloo, NCCL, torch's store and torchrun's rendezvous for a broken connection between ranks.
_CONNECTION_LOST = re.compile(
    r"gloo/transport|connection (closed|reset|refused|timed out)|broken pipe|timed out waiting \d+ ?ms"
    r"|Dist(Network|Store)Error|Rendezvous(Timeout|Connection|Closed)Error|socket has timed out"
    r"|ncclRemoteError|ncclSystemError|unhandled system error|remote process exited|watchdog .*timeout",
    re.IGNORECASE,
)


class Stopped(BaseException):
    """Stop of the trial by a signal or the deadline. A BaseException, so that no library handles it as a failure."""

    def __init__(self, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.outcome = Outcome.of(code, reason)


class WorkerGone(RuntimeError):
    """Loss of a machine of the trial: not the trial's fault, so it is retried."""

    reason_code = ReasonCode.RANK_LOST


class NonFiniteLoss(ArithmeticError):
    """Loss that is not finite: every later step would be useless."""

    reason_code, remedy = ReasonCode.NON_FINITE_LOSS, "try a lower learning_rate"


class StopSignals:
    """Signal handlers that raise Stopped in the main thread, once: on SIGINT, on SIGTERM and at the deadline."""

    def __init__(self) -> None:
        # The first stop. The interrupted code may have turned it into another error, as imports do.
        self.received: Stopped | None = None
        self._is_active, self._is_deferred = True, False
        self._deadline = 0.0

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._on_signal)

    def set_deadline(self, seconds: float) -> None:
        self._deadline = seconds
        signal.setitimer(signal.ITIMER_REAL, seconds)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Raise a stop that arrives inside only at the end of the block, so that its short work is completed."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        self.check()

    def check(self) -> None:
        """Raise Stopped again: a destructor or a bare `except:` can swallow the first one."""
        if self._is_active and self.received is not None:
            raise self.received

    def close(self) -> None:
        """Ignore all later signals: the process writes its result, which takes milliseconds."""
        self._is_active = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_active or self.received is not None:
            return
        if number == signal.SIGALRM:
            self.received = Stopped(ReasonCode.DEADLINE, f"the deadline of {self._deadline:g} s passed")
        elif number == signal.SIGTERM:
            self.received = Stopped(ReasonCode.WORKER_STOPPED, "stopped by SIGTERM")
        else:
            self.received = Stopped(ReasonCode.CANCELLED, "stopped by SIGINT")
        if not self._is_deferred:
            raise self.received


def classify_error(error: BaseException, record: Record | None = None) -> Outcome:
    """Map an exception to an outcome; with the trial's record, an out-of-memory error gets the remedy.

    An exception of ours has a `reason_code`, and may have a `remedy`.
    """
    if isinstance(error, Stopped):
        return error.outcome
    message = " ".join(str(error).split()) or "no message"
    code, remedy = getattr(error, "reason_code", None), getattr(error, "remedy", None)
    if isinstance(error, WorkerGone):
        return Outcome.of(error.reason_code, message[:300])
    if is_out_of_memory(error):
        reason, remedy = (message[:300], None) if record is None else _explain_out_of_memory(message, record)
        return Outcome.of(ReasonCode.OUT_OF_MEMORY, reason, remedy)
    message = f"{type(error).__name__}: {message}"
    is_lost = isinstance(error, RuntimeError) and is_connection_error(message)
    default = ReasonCode.CONNECTION_LOST if is_lost else ReasonCode.ERROR
    return Outcome.of(code or default, message[:300], remedy)


def _explain_out_of_memory(message: str, record: Record) -> tuple[str, str]:
    vram = record.peak_vram_bytes
    peak = (record.peak_rss_bytes or peak_rss_bytes(), "RSS") if vram is None else (vram, "VRAM")
    return out_of_memory.explain(record.trial, record.phase, message, *peak)


def is_connection_error(text: str) -> bool:
    """Check whether an error's text reports a broken connection between ranks."""
    return _CONNECTION_LOST.search(text) is not None


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether CUDA, the CPU allocator or the system reports that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
