"""Early end of a trial: signals and the deadline raise one exception; exceptions become an Outcome.

Only the standard library: the handlers are installed before torch is imported, which takes seconds.

Not covered: a call into a library that never returns. Python runs signal handlers between its own instructions, so
such a trial is ended by SIGKILL and leaves no result.
"""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator
from types import FrameType

from bench.harness.record import Record, peak_rss_bytes, peak_text
from bench.records.atomic_files import DISK_ERRNOS
from bench.records.paths import NODE_NAME_VARIABLE
from bench.records.status import Outcome, ReasonCode

# Messages of allocators that raise a plain RuntimeError: torch, CUDA's libraries and bitsandbytes.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|cannot allocate memory|bad_alloc|_ALLOC_FAILED",
    re.IGNORECASE,
)

# Messages of gloo, NCCL and torch's store for a broken connection between ranks.
_CONNECTION_LOST = re.compile(
    r"gloo/transport|connection (closed|reset|refused|timed out)|broken pipe|timed out waiting \d+ ?ms"
    r"|Dist(Network|Store)Error|socket has timed out"
    r"|ncclRemoteError|ncclSystemError|unhandled system error|remote process exited|watchdog .*timeout",
    re.IGNORECASE,
)

MORE_MEMORY = (
    "try held_layers=0, a smaller micro_batch_size with as much more gradient_accumulation_steps, "
    "gradient_checkpointing=true, a shorter max_seq_len or base_precision=nf4, or use a device with more memory"
)

_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,200}\Z")

# Messages of CUDA for errors of the hardware (cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable) and a lost GPU.
_CUDA_FAULT = re.compile(r"uncorrectable (ECC|NVLink) error|fallen off the bus|GPU is lost", re.IGNORECASE)


class Stopped(BaseException):
    """Stop of the trial by a signal or the deadline. A BaseException, so that no library handles it as a failure."""

    def __init__(self, code: ReasonCode, reason: str) -> None:
        super().__init__(reason)
        self.code, self.outcome = code, Outcome.of(code, reason)


class WorkerGone(RuntimeError):
    """Loss of a machine of the trial: not the trial's fault, so it is retried."""

    reason_code = ReasonCode.RANK_LOST

    def __init__(self, message: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(message)
        self.reason_code = reason_code or self.reason_code


class GpuFault(WorkerGone):
    """A fault of a GPU, found by its wrong results or reported by its driver."""

    reason_code = ReasonCode.GPU_FAULT


def name_node(fault: str) -> str:
    """Return the fault of a GPU with this pod's node and the command that keeps new pods away from it."""
    node = os.environ.get(NODE_NAME_VARIABLE, "")
    if not _NODE_NAME.match(node):  # not in a pod
        return fault
    return f"{fault} (node {node}: `kubectl cordon {node}` keeps new pods away)"


class NonFiniteLoss(ArithmeticError):
    """Loss that is not finite: every later step would be useless."""

    reason_code, remedy = ReasonCode.NON_FINITE_LOSS, "try a lower learning_rate"


class StopSignals:
    """Signal handlers that raise Stopped in the main thread, once: on SIGINT, on SIGTERM and at the deadline."""

    def __init__(self) -> None:
        # The first stop. The interrupted code may have turned it into another error, as imports do.
        self.received: Stopped | None = None
        self._is_active, self._is_deferred = True, False
        self._deadline = self._remaining = 0.0
        self._requested: Stopped | None = None

    def request(self, code: ReasonCode, reason: str) -> None:
        """Stop the trial from any thread."""
        self._requested = Stopped(code, reason)
        os.kill(os.getpid(), signal.SIGTERM)

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
        """Raise nothing for later signals: the process writes its result, which takes milliseconds."""
        self._is_active = False
        self._remaining, _ = signal.setitimer(signal.ITIMER_REAL, 0)

    def reopen(self) -> None:
        """Undo `close`, for a second try. Raises Stopped for a signal since then."""
        self._is_active = True
        signal.setitimer(signal.ITIMER_REAL, self._remaining)
        self.check()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            return
        if number == signal.SIGALRM:
            self.received = Stopped(ReasonCode.DEADLINE, f"the deadline of {self._deadline:g} s passed")
        elif number == signal.SIGTERM:
            self.received = self._requested or Stopped(ReasonCode.WORKER_STOPPED, "stopped by SIGTERM")
        else:
            self.received = Stopped(ReasonCode.CANCELLED, "stopped by SIGINT")
        if not self._is_deferred:
            self.check()


def classify_error(error: BaseException, record: Record | None = None) -> Outcome:
    """Map an exception to an outcome; with the trial's record, an out-of-memory error gets the peak and the remedy.

    An exception of ours has a `reason_code`, and may have a `remedy`.
    """
    if isinstance(error, Stopped):
        return error.outcome
    message = " ".join(str(error).split()) or "no message"
    code, remedy = getattr(error, "reason_code", None), getattr(error, "remedy", None)
    if isinstance(error, WorkerGone):
        reason = message[:300]
        return Outcome.of(error.reason_code, name_node(reason) if isinstance(error, GpuFault) else reason)
    if is_out_of_memory(error):
        if record is None:  # a rank's, to which the parent adds the rest
            return Outcome.of(ReasonCode.OUT_OF_MEMORY, message[:300])
        peak = peak_text(record.peak_vram_bytes, record.peak_rss_bytes or peak_rss_bytes())
        reason = f"out of memory: {message[:200]}; {peak}"
        return Outcome.of(ReasonCode.OUT_OF_MEMORY, reason, MORE_MEMORY)
    message = f"{type(error).__name__}: {message}"
    default = ReasonCode.ERROR
    if code is None and isinstance(error, RuntimeError) and _CUDA_FAULT.search(message):
        return Outcome.of(ReasonCode.GPU_FAULT, name_node(message[:300]))
    if isinstance(error, RuntimeError) and _CONNECTION_LOST.search(message):
        default = ReasonCode.CONNECTION_LOST
    elif isinstance(error, OSError) and error.errno in DISK_ERRNOS:
        default = ReasonCode.NOT_WRITTEN
    return Outcome.of(code or default, message[:300], remedy)


def is_out_of_memory(error: BaseException) -> bool:
    """Check whether CUDA, the CPU allocator or the system reports that memory ran out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(str(error)) is not None
