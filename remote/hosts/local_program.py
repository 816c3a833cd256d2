"""One local program and its streams: the command itself, or a client such as kubectl or ssh."""

import contextlib
import fcntl
import logging
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol, cast

from bench.records.units import format_mib
from remote.hosts.host_protocol import ByteReader, CommandTimedOut, Completed, TooMuchOutput

_logger = logging.getLogger(__name__)

_WRITE_BYTES = 1 << 16
_READ_BYTES, _PIPE_BYTES = 1 << 18, 1 << 20  # with a pipe's default of 64 kB both sides wait for each other
_KILL_AFTER_SEC = 2.0
MAX_OUTPUT_BYTES = 64 << 20  # for each stream of a command
_SETPRIV = shutil.which("setpriv")
_MAX_LOGGED_CHARS = 500
_EXIT_GRACE_SEC = 2.0  # for a client program whose output is complete and that only has to exit


class StdinPipe(Protocol):
    """Input that stays open after its content: `read` returns None at the end."""

    def read(self, size: int, /) -> bytes | None: ...


class CannotStart(Exception):
    """A program that could not be started; the message says what is wrong with it or with its folder."""


def run_program(
    argv: Sequence[str],
    *,
    label: str,
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    umask: int = -1,
    stdin: bytes | ByteReader | StdinPipe | None = None,
    on_stdout: Callable[[bytes], None] | None = None,
    is_complete: Callable[[], bool] | None = None,
    timeout_sec: float,
    idle_timeout_sec: float | None = None,
) -> Completed:
    """Run `argv` to its end in its own process group; `label` names it in messages, with secrets masked.

    `environment` is the whole environment (None: ours), and a `umask` of -1 is ours. A `stdin` whose `read` returns
    None is at its end, and stays open while the program runs. Once `is_complete()` is True, the program is ended unless
    it exits soon. Raises CannotStart, TooMuchOutput, and CommandTimedOut after `timeout_sec` or after
    `idle_timeout_sec` without standard output. Any exception, including one from `on_stdout`, ends the program.
    """
    started_at = time.monotonic()
    try:
        process = subprocess.Popen(
            with_parent_death_signal(argv, environment),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            cwd=folder,
            umask=umask,
            # A Ctrl-C at the terminal must reach only the operator's own process.
            start_new_session=True,
        )
    except OSError as error:
        raise CannotStart(f"{error.filename or argv[0]}: {error.strerror}") from error
    with contextlib.suppress(OSError):  # over this user's limit: slower, but it works
        fcntl.fcntl(cast("IO[bytes]", process.stdout), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    limits = ProcessLimits(label, timeout_sec, idle_timeout_sec)
    stdout, stderr = BoundedOutput(label), BoundedOutput(label)

    def on_output(chunk: bytes) -> None:
        (stdout.append if on_stdout is None else on_stdout)(chunk)
        limits.last_output = time.monotonic()  # after the callback, whose time is not the program's silence
        if is_complete is not None and is_complete():
            limits.start_exit_grace()

    try:
        pump(process, stdin, {process.stdout: on_output, process.stderr: stderr.append}, limits)
        code = process.wait(limits.remaining_sec())
    except (CommandTimedOut, subprocess.TimeoutExpired) as error:
        end_process_group(process)
        if not limits.is_in_exit_grace:
            raise limits.timeout_error() from error
        code = 0
    except BaseException as error:
        _logger.debug("%s: ended by %s", _brief(label), type(error).__name__)
        end_process_group(process)
        raise
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
    elapsed_sec = time.monotonic() - started_at
    _logger.debug("%s: exit code %d after %.2f s", _brief(label), code, elapsed_sec)  # its output may hold a token
    return Completed(
        exit_code=code if code >= 0 else 128 - code, stdout=bytes(stdout.content), stderr=bytes(stderr.content)
    )


def _brief(label: str) -> str:
    return label if len(label) <= _MAX_LOGGED_CHARS else f"{label[:_MAX_LOGGED_CHARS]} [...]"


class BoundedOutput:
    """A command's output, kept up to a limit; `label` names the command."""

    def __init__(self, label: str) -> None:
        self._label, self.content = label, bytearray()

    def append(self, chunk: bytes | bytearray) -> None:
        """Append output. Raises TooMuchOutput."""
        if len(self.content) + len(chunk) > MAX_OUTPUT_BYTES:
            limit = format_mib(MAX_OUTPUT_BYTES)
            raise TooMuchOutput(f"{self._label}: printed more than {limit}", remedy="it was ended")
        self.content += chunk


def with_parent_death_signal(argv: Sequence[str], environment: Mapping[str, str] | None) -> list[str]:
    """Return `argv` prefixed so that it is killed with this process. Not covered: machines without util-linux 2.33.

    Popen's `preexec_fn` is not used: with threads, it may wait for a lock indefinitely.
    """
    paths = (os.environ if environment is None else environment).get("PATH")
    if _SETPRIV is None or shutil.which(argv[0], path=paths) is None:  # Popen then reports the missing program
        return list(argv)
    return [_SETPRIV, "--pdeathsig", "KILL", "--", *argv]


class ProcessLimits:
    """The deadline of a call and the limit of its silence."""

    def __init__(self, label: str, timeout_sec: float, idle_timeout_sec: float | None) -> None:
        self.label, self.timeout_sec, self.idle_timeout_sec = label, timeout_sec, idle_timeout_sec
        self.deadline = time.monotonic() + timeout_sec
        self.last_output = time.monotonic()
        self.is_in_exit_grace = False

    def start_exit_grace(self) -> None:
        """Leave the program only the time to exit, because its output is complete."""
        if not self.is_in_exit_grace:
            self.is_in_exit_grace, self.idle_timeout_sec = True, None
            self.deadline = min(self.deadline, time.monotonic() + _EXIT_GRACE_SEC)

    def remaining_sec(self) -> float:
        """Return the seconds until the nearer limit. Raises CommandTimedOut once it has passed."""
        now = time.monotonic()
        remaining_sec = self.deadline - now
        if self.idle_timeout_sec is not None:
            remaining_sec = min(remaining_sec, self.last_output + self.idle_timeout_sec - now)
        if remaining_sec <= 0:
            raise self.timeout_error()
        return remaining_sec

    def timeout_error(self) -> CommandTimedOut:
        if time.monotonic() >= self.deadline or self.idle_timeout_sec is None:
            return CommandTimedOut(f"{self.label}: not done after {self.timeout_sec:g} s")
        return CommandTimedOut(f"{self.label}: silent for {self.idle_timeout_sec:g} s")


def pump(
    process: subprocess.Popen[bytes],
    stdin: bytes | ByteReader | StdinPipe | None,
    sinks: Mapping[IO[bytes] | None, Callable[[bytes], None]],
    limits: ProcessLimits,
) -> None:
    """Send input to a process and its output to `sinks`, until its streams end. Raises CommandTimedOut."""
    stdin_writer = _StdinWriter(stdin)
    with selectors.DefaultSelector() as selector:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_WRITE if stream is process.stdin else selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(min(limits.remaining_sec(), 1.0)):
                stream = cast("IO[bytes]", key.fileobj)
                if stream is process.stdin:
                    has_more = stdin_writer.write_chunk(key.fd)
                else:
                    chunk = os.read(key.fd, _READ_BYTES)
                    has_more = bool(chunk)
                    if has_more:
                        sinks[stream](chunk)
                if not has_more:
                    selector.unregister(stream)
                    if stream is not process.stdin or not stdin_writer.stays_open:
                        stream.close()


class _StdinWriter:
    """The input that is still to be written to a program."""

    def __init__(self, source: bytes | ByteReader | StdinPipe | None) -> None:
        self._source = None if source is None or isinstance(source, bytes) else source
        self._pending = memoryview(source if isinstance(source, bytes) else b"")
        self.stays_open = False

    def write_chunk(self, fd: int) -> bool:
        """Write as much as the pipe takes. Returns False if nothing is left or the program has closed its input."""
        if not self._pending and self._source is not None:
            chunk = self._source.read(_WRITE_BYTES)
            self.stays_open = chunk is None
            self._pending = memoryview(chunk or b"")
        if not self._pending:
            return False
        try:
            self._pending = self._pending[os.write(fd, self._pending[:_WRITE_BYTES]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._pending) or self._source is not None


def end_process_group(process: subprocess.Popen[bytes]) -> None:
    """End the process group that `process` leads: SIGTERM, wait, SIGKILL.

    The leader is reaped last: until then no other process can get its number, which names the group.
    """
    if process.returncode is not None:
        return
    _signal_group(process, signal.SIGTERM)
    deadline, exited = time.monotonic() + _KILL_AFTER_SEC, os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not os.waitid(os.P_PID, process.pid, exited) and time.monotonic() < deadline:
        time.sleep(0.01)
    _signal_group(process, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: do not wait for it
        process.wait(_KILL_AFTER_SEC)


def _signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(PermissionError):  # a program that has changed its user
        os.killpg(process.pid, number)
