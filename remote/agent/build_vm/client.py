"""Runner of the engine's client on the build VM, and classification of its errors.

A client may print endlessly or hang: output has a size limit, a query has a deadline, and a push without progress is
reported and ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import selectors
import signal
import struct
import subprocess
import termios
import time
from collections import deque
from collections.abc import Generator
from typing import IO, Any, cast

from remote.agent.build_vm.job import MAX_LINE_CHARS, JobLog
from remote.agent.shared.errors import VmAgentError, engine_access_error

QUERY_TIMEOUT_SEC = 120.0
MAX_OUTPUT_BYTES = 16 << 20
MAX_LINE_BYTES = 1 << 16
PROGRESS_INTERVAL_SEC = 2.0
STALL_LOG_SEC = 60.0
STALL_TIMEOUT_SEC = 900.0  # a registry may take minutes after a layer's last byte: it verifies and moves gigabytes
_STATUS = r"(?:status|code|http(?!s?:))[^\n]{0,40}\b"  # before a number that is neither a size nor a time
DISK_FULL = re.compile(
    rf"no space left on device|disk quota exceeded|{_STATUS}507\b|insufficient storage", re.IGNORECASE
)
# Failures that were observed to be transient: a connection cut or refused, a registry restarting or overloaded, and an
# upload session that the registry lost (often after a commit that succeeded).
TRANSIENT = re.compile(
    r"connection reset|broken pipe|unexpected eof|\beof\b|i/o timeout|tls handshake timeout|connection refused"
    r"|no route to host|network is unreachable|context deadline exceeded|blob upload unknown|blob_upload_unknown"
    rf"|use of closed network connection|{_STATUS}(?:429|500|502|503|504)\b"
    r"|bad gateway|service unavailable|too many requests|gateway time-?out|internal server error",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(rf"{_STATUS}403\b|forbidden", re.IGNORECASE)
UNAUTHORIZED = re.compile(
    r"unauthorized|authentication required|no basic auth credentials|(?<!permission )denied:", re.IGNORECASE
)
STAGE = re.compile(r"#\d+ \[([^\]]+)\]")
LAYER = re.compile(r"([0-9a-f]{12}): (\S.*)")
BYTES = re.compile(r"([\d.]+)([kMGT]?)B(?:/([\d.]+)([kMGT]?)B)?$")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def query(docker: list[str], environment: dict[str, str], *arguments: str) -> Any:
    """Run a client command and parse its JSON output; None if the engine has no such image. Raises VmAgentError."""
    command = " ".join(arguments)
    try:
        completed = run_bounded([*docker, *arguments], environment, timeout_sec=QUERY_TIMEOUT_SEC)
    except subprocess.TimeoutExpired as error:
        message = f"the engine did not respond to `{command}` within {QUERY_TIMEOUT_SEC:.0f} s"
        raise VmAgentError("transient", message) from error
    if completed.returncode == 0:
        try:
            return json.loads(completed.stdout)
        except ValueError as error:
            raise VmAgentError("transient", f"the engine's output of `{command}` was truncated") from error
    complaint = completed.stderr.decode(errors="replace").strip()
    if re.search(r"no such (image|object)", complaint, re.IGNORECASE):
        return None
    raise engine_access_error(complaint) or classify_failure(complaint.splitlines(), completed.returncode)


def start_process(
    argv: list[str],
    environment: dict[str, str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start `argv` with `environment` added to this process's environment."""
    return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, env={**os.environ, **environment})


def run_bounded(
    argv: list[str],
    environment: dict[str, str],
    *,
    stdin: bytes | IO[bytes] = b"",
    timeout_sec: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `argv` to its end. Raises VmAgentError if an output stream exceeds its limit, and TimeoutExpired.

    `stdin` is a stream, or bytes that fit into a pipe.
    """
    until = None if timeout_sec is None else time.monotonic() + timeout_sec
    output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    process = start_process(argv, environment, stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin)
    with process, selectors.DefaultSelector() as selector:
        try:
            if isinstance(stdin, bytes):
                with contextlib.suppress(BrokenPipeError):
                    cast("IO[bytes]", process.stdin).write(stdin)
                with contextlib.suppress(BrokenPipeError):
                    cast("IO[bytes]", process.stdin).close()
            for name in output:
                selector.register(getattr(process, name), selectors.EVENT_READ, name)
            while selector.get_map():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(argv, timeout_sec or 0.0)
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, MAX_LINE_BYTES)
                    output[key.data] += chunk
                    if not chunk:
                        selector.unregister(key.fileobj)
                    if len(output[key.data]) > MAX_OUTPUT_BYTES:
                        raise VmAgentError(
                            "failed",
                            f"`{' '.join(argv[:4])}` printed more than {MAX_OUTPUT_BYTES >> 20} MiB and was killed",
                        )
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, bytes(output["stdout"]), bytes(output["stderr"]))


def run_logged(
    job_log: JobLog, argv: list[str], environment: dict[str, str], *, stdin: int | IO[bytes] = subprocess.DEVNULL
) -> tuple[int, list[str]]:
    """Run the engine's client to its end and log its output. Returns its exit code and last lines."""
    last: deque[str] = deque(maxlen=200)
    with start_process(argv, environment, stdin=stdin, stderr=subprocess.STDOUT) as process:
        output = cast("IO[bytes]", process.stdout)
        for raw in iter(lambda: output.readline(MAX_LINE_BYTES), b""):
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            stage = STAGE.match(line)
            job_log.add(line, stage[1] if stage else None)
            last.append(line)
    job_log.write_progress()
    return process.returncode, list(last)


def classify_failure(lines: list[str], code: int) -> VmAgentError:
    """Classify a failed client run by the line of its output that shows the cause."""
    errors = [line for line in lines if re.search(r"error|denied|unauthorized|fail", line, re.IGNORECASE)] or lines
    kind, message = "failed", failed_build_step(lines) or (errors[-1] if errors else f"exit {code}, no message")
    if code < 0:
        message = f"the engine's client was ended by signal {-code} ({signal.strsignal(-code)})"
    # A step that ran out of space reports it well above the client's own last lines.
    for name, pattern, count in (
        ("full", DISK_FULL, 0),
        ("unauthorized", UNAUTHORIZED, 30),
        ("transient", TRANSIENT, 30),
        ("forbidden", FORBIDDEN, 10),
    ):
        if matching := [line for line in lines[-count:] if pattern.search(line)]:
            kind, message = name, matching[-1]
            break
    return VmAgentError(kind, re.sub(r"^#\d+ +(?:[\d.]+ +)?", "", message)[:MAX_LINE_CHARS])


def failed_build_step(lines: list[str]) -> str | None:
    """Return the last output line of a build's failed step and the step's name; None if no step failed.

    The client's own last line only repeats the step's command.
    """
    failed = next((match for line in reversed(lines) if (match := re.match(r"#(\d+) ERROR: (.*)", line))), None)
    if failed is None:
        return None
    number, message = failed[1], failed[2]
    step_output = [match[1] for line in lines if (match := re.match(rf"#{number} +\d+\.\d+ +(\S.*)", line))]
    names = [match[1] for line in lines if (match := re.match(rf"#{number} \[([^\]]+)\]", line))]
    exit_code = re.search(r"exit code: \d+", message)
    if not step_output:
        return None
    return f"{step_output[-1]} (step [{names[0] if names else number}], {exit_code[0] if exit_code else message[:80]})"


# --- a push -----------------------------------------------------------------------------------------------------------


def run_push(job_log: JobLog, argv: list[str], environment: dict[str, str], registry: str) -> tuple[int, list[str]]:
    """Run a push to `registry` in a pseudo-terminal, because the client prints the bytes sent only to a terminal.

    A push without progress is reported every minute. After 15 minutes it is ended like a broken connection.
    """
    stall, progress, last = _StallDetector(registry), _PushProgress(), deque[str](maxlen=200)
    logged_at = time.monotonic()
    with contextlib.closing(_run_in_pty(argv, environment)) as chunks:
        for chunk in chunks:
            if isinstance(chunk, int):
                job_log.write_progress()
                return chunk, list(last)
            for line in (text.decode(errors="replace").strip() for text in re.split(rb"[\r\n]+", chunk)):
                if line and progress.parse_line(line):
                    job_log.add(line)
                    last.append(line)
            if (message := stall.update(progress.state)) is not None:
                job_log.add(message, "stalled")
            if stall.stalled_sec >= STALL_TIMEOUT_SEC:
                return 1, [*last, f"no byte was sent for {stall.stalled_sec:.0f} s: i/o timeout"]
            if progress.total_bytes and not stall.log_count and time.monotonic() - logged_at >= PROGRESS_INTERVAL_SEC:
                logged_at = time.monotonic()
                job_log.add(progress.summary(), "push")
    raise AssertionError("unreachable")


class _StallDetector:
    """Timer since the last change of a push's state."""

    def __init__(self, registry: str) -> None:
        self._registry, self._state, self._since = registry, (0, 0.0), time.monotonic()
        self.log_count = 0

    @property
    def stalled_sec(self) -> float:
        return time.monotonic() - self._since

    def update(self, state: tuple[int, float]) -> str | None:
        """Record the state. Returns a message once per STALL_LOG_SEC without a change."""
        if state != self._state:
            self._state, self._since, self.log_count = state, time.monotonic(), 0
        if self.stalled_sec < STALL_LOG_SEC * (self.log_count + 1):
            return None
        self.log_count += 1
        message = f"no byte was sent for {self.stalled_sec:.0f} s: {self._registry} accepts none"
        return f"{message}; stop the push with `inv push --cancel`"


class _PushProgress:
    """Progress of a push, parsed from the client's output: bytes sent of each layer, uncompressed."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[float, float]] = {}
        self._states: dict[str, str] = {}
        self._message_count = 0
        self._started_at, self.total_bytes = time.monotonic(), 0.0

    def parse_line(self, line: str) -> bool:
        """Parse a line of the client's output. Returns True if it should be logged."""
        layer = LAYER.match(line)
        if layer is None:
            self._message_count += 1
            return True
        name, status = layer[1], layer[2]
        state = re.split(r"[\[\d]", status)[0].strip()
        if size := BYTES.search(status):
            sent = float(size[1]) * _UNITS[size[2]]
            self._layers[name] = (sent, float(size[3]) * _UNITS[size[4]] if size[3] else sent)
        elif state == "Pushed" and name in self._layers:
            self._layers[name] = (self._layers[name][1],) * 2
        self.total_bytes = sum(total for _, total in self._layers.values())
        is_new, self._states[name] = self._states.get(name) != state, state
        self._message_count += is_new
        return is_new and state not in ("Preparing", "Waiting", "Pushing")

    @property
    def sent_bytes(self) -> float:
        return sum(sent for sent, _ in self._layers.values())

    @property
    def state(self) -> tuple[int, float]:
        """A value that changes with every progress."""
        return self._message_count, self.sent_bytes

    def summary(self) -> str:
        rate = self.sent_bytes / max(0.001, time.monotonic() - self._started_at)
        done = sum(sent >= total for sent, total in self._layers.values())
        return (
            f"{self.sent_bytes / 1e6:.1f} of {self.total_bytes / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s; "
            f"{done} of {len(self._layers)} layers sent"
        )


def _run_in_pty(argv: list[str], environment: dict[str, str]) -> Generator[bytes | int, None, None]:
    """Run `argv` in a pseudo-terminal. Yields its output, b"" after each silent second, and finally its exit code."""
    controller, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        with start_process(argv, environment, stdout=terminal, stderr=terminal) as process:
            try:
                os.close(terminal)
                terminal = -1
                rest = b""
                while True:
                    if not select.select([controller], [], [], 1.0)[0]:
                        yield b""
                        continue
                    try:
                        chunk = os.read(controller, MAX_LINE_BYTES)
                    except OSError:  # the process has closed the other side
                        break
                    rest += chunk
                    end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
                    end = end or (len(rest) if len(rest) > MAX_LINE_BYTES else 0)
                    whole, rest = rest[:end], rest[end:]
                    yield _ESCAPES.sub(b"", whole)
                yield _ESCAPES.sub(b"", rest)
            except BaseException:  # also GeneratorExit, when the reader stops
                process.kill()
                raise
        yield process.returncode
    finally:
        os.close(controller)
        if terminal >= 0:
            os.close(terminal)
