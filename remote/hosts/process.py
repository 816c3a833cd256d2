"""Runs one local program and pumps its streams: the command itself, or a client such as kubectl or ssh."""

import contextlib
import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol, cast

from remote.hosts.host import ByteReader, CommandTimedOut, Completed, TooMuchOutput

_PIECE = 1 << 16
_READ_BYTES, _PIPE_BYTES = 1 << 18, 1 << 20  # the usual 64 kB of a pipe make both sides wait for each other
_KILL_AFTER_SEC = 2.0
MOST_KEPT_BYTES = 64 << 20  # of each stream of a command
_SETPRIV = shutil.which("setpriv")
_LEAVE_SEC = 2.0  # for a client program that has brought all there is and only has to go


class StdinPipe(Protocol):
    """Input that stays open after its content: `read` returns None when there is no more."""

    def read(self, size: int, /) -> bytes | None: ...


class CannotStart(Exception):
    """The program could not be started; the message says what is wrong with it or with its folder."""


def run_program(
    argv: Sequence[str],
    *,
    label: str,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    stdin: bytes | ByteReader | StdinPipe | None = None,
    on_stdout: Callable[[bytes], None] | None = None,
    is_complete: Callable[[], bool] | None = None,
    timeout_sec: float,
    idle_timeout_sec: float | None = None,
) -> Completed:
    """Run `argv` to its end in a process group of its own; `label` names it in messages, secrets already masked.

    `environment` is the whole environment (None: ours). A `stdin` whose `read` returns None has no more to send, and
    stays open while the program runs. Once `is_complete()` holds, the program is ended unless it leaves by itself.
    Raises CannotStart, TooMuchOutput, and CommandTimedOut after `timeout_sec` or after `idle_timeout_sec` without
    standard output. Whatever ends this call early, also an exception from `on_stdout`, ends the program.
    """
    try:
        process = subprocess.Popen(
            dying_with_us(argv, environment),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            cwd=folder,
            # A Ctrl-C at the terminal is for the operator's own process alone.
            start_new_session=True,
        )
    except OSError as error:
        raise CannotStart(f"{error.filename or argv[0]}: {error.strerror}") from error
    if sys.platform == "linux" and process.stdout is not None:
        with contextlib.suppress(OSError):  # more than this user may have; it is slower without
            fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    limits = ProcessLimits(label, timeout_sec, idle_timeout_sec)
    stdout, stderr = BoundedOutput(label), BoundedOutput(label)

    def hear(piece: bytes) -> None:
        (stdout.take if on_stdout is None else on_stdout)(piece)
        limits.heard = time.monotonic()  # afterwards: the time that the sink takes is not the program's silence
        if is_complete is not None and is_complete():
            limits.leave_soon()

    try:
        pump(process, stdin, {process.stdout: hear, process.stderr: stderr.take}, limits)
        code = process.wait(limits.left_sec())
    except (CommandTimedOut, subprocess.TimeoutExpired):
        end(process)
        if not limits.is_leaving:
            raise limits.passed() from None
        code = 0
    except BaseException:
        end(process)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
    return Completed(
        exit_code=code if code >= 0 else 128 - code, stdout=bytes(stdout.content), stderr=bytes(stderr.content)
    )


class BoundedOutput:
    """What a command prints, kept up to a limit; `label` names the command."""

    def __init__(self, label: str) -> None:
        self._label, self.content = label, bytearray()

    def take(self, piece: bytes | bytearray) -> None:
        """Raises TooMuchOutput."""
        if len(self.content) + len(piece) > MOST_KEPT_BYTES:
            raise TooMuchOutput(f"{self._label}: printed more than {MOST_KEPT_BYTES >> 20} MiB; it was ended")
        self.content += piece


def dying_with_us(argv: Sequence[str], environment: Mapping[str, str] | None) -> list[str]:
    """`argv`, started so that it is killed should this process be. Not covered: machines without util-linux 2.33.

    Not by a function that Popen calls in the child: with threads, that may wait for a lock for ever.
    """
    paths = (os.environ if environment is None else environment).get("PATH")
    if _SETPRIV is None or shutil.which(argv[0], path=paths) is None:  # what is not there is said in our words
        return list(argv)
    return [_SETPRIV, "--pdeathsig", "KILL", "--", *argv]


class ProcessLimits:
    """The whole call's deadline and the longest silence."""

    def __init__(self, label: str, timeout_sec: float, idle_timeout_sec: float | None) -> None:
        self.label, self.timeout_sec, self.idle_timeout_sec = label, timeout_sec, idle_timeout_sec
        self.deadline = time.monotonic() + timeout_sec
        self.heard = time.monotonic()
        self.is_leaving = False

    def leave_soon(self) -> None:
        """The answer is complete: the program has only a moment left, whatever the limits were."""
        if not self.is_leaving:
            self.is_leaving, self.idle_timeout_sec = True, None
            self.deadline = min(self.deadline, time.monotonic() + _LEAVE_SEC)

    def left_sec(self) -> float:
        """Seconds until the nearer limit. Raises CommandTimedOut when it has passed."""
        now = time.monotonic()
        left = self.deadline - now
        if self.idle_timeout_sec is not None:
            left = min(left, self.heard + self.idle_timeout_sec - now)
        if left <= 0:
            raise self.passed()
        return left

    def passed(self) -> CommandTimedOut:
        if time.monotonic() >= self.deadline or self.idle_timeout_sec is None:
            return CommandTimedOut(f"{self.label}: not done after {self.timeout_sec:g} s")
        return CommandTimedOut(f"{self.label}: silent for {self.idle_timeout_sec:g} s")


def pump(
    process: subprocess.Popen[bytes],
    stdin: bytes | ByteReader | StdinPipe | None,
    sinks: Mapping[IO[bytes] | None, Callable[[bytes], None]],
    limits: ProcessLimits,
) -> None:
    """Feed a process, and hear it until its streams have ended. Raises CommandTimedOut, and what the sinks raise."""
    feed = _Feed(stdin)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_WRITE if stream is process.stdin else selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(min(limits.left_sec(), 1.0)):
                stream = cast("IO[bytes]", key.fileobj)
                if stream is process.stdin:
                    more = feed.write_some(key.fd)
                else:
                    piece = os.read(key.fd, _READ_BYTES)
                    more = bool(piece)
                    if more:
                        sinks[stream](piece)
                if not more:
                    selector.unregister(stream)
                    if stream is not process.stdin or not feed.stays_open:
                        stream.close()


class _Feed:
    """What is still to be written to a program's standard input."""

    def __init__(self, source: bytes | ByteReader | StdinPipe | None) -> None:
        self._file = None if source is None or isinstance(source, bytes) else source
        self._left = memoryview(source if isinstance(source, bytes) else b"")
        self.stays_open = False

    def write_some(self, handle: int) -> bool:
        """Write what fits now; False when nothing is left or nobody reads."""
        if not self._left and self._file is not None:
            piece = self._file.read(_PIECE)
            self.stays_open = piece is None
            self._left = memoryview(piece or b"")
        if not self._left:
            return False
        try:
            self._left = self._left[os.write(handle, self._left[:_PIECE]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._left) or self._file is not None


def end(process: subprocess.Popen[bytes]) -> None:
    """Of one that leads a group of its own: TERM, a moment to act on it, then KILL for all that is left of the group.

    The leader is reaped last: until then no other process can get its number, which names the group.
    """
    if process.returncode is not None:
        return
    _signal_group(process, signal.SIGTERM)
    until = time.monotonic() + _KILL_AFTER_SEC
    while not _is_over(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    _signal_group(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: do not wait for it
        process.wait(_KILL_AFTER_SEC)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(PermissionError):  # macOS raises it for a group whose processes have all ended
        os.killpg(process.pid, number)


def _is_over(pid: int) -> bool:
    """Whether a child has ended, without reaping it. Always False on macOS before Python 3.13."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return hasattr(os, "waitid") and os.waitid(os.P_PID, pid, flags) is not None
