"""On the build VM: runs the engine's client; what its answers and its last words mean.

Whatever is run here may print without end, or stop without a word: every answer has a longest size and a deadline, and
a push that moves nothing is named.
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
import struct
import subprocess
import termios
import time
from collections import deque
from collections.abc import Generator
from typing import IO, Any, cast

from remote.image.vm_agent.job import LINE_CHARS, Failed, Watcher

ASK_SEC = 120.0
ANSWER_BYTES = 16 << 20
LINE_BYTES = 1 << 16
SHOWN_EVERY_SEC = 2.0
STALL_SHOWN_SEC = 60.0
STALL_ENDS_SEC = 900.0  # a registry may take minutes over the last byte of a layer: it checks and moves gigabytes
FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
# Failures that were seen to pass: a connection cut or refused, a registry restarting or overloaded, and an upload
# session that the registry forgot (often after a commit that succeeded).
TRANSIENT = re.compile(
    r"connection reset|broken pipe|unexpected eof|\beof\b|i/o timeout|tls handshake timeout|connection refused"
    r"|no route to host|network is unreachable|context deadline exceeded|blob upload unknown|blob_upload_unknown"
    r"|use of closed network connection|(?:status|code|http)[^\n]{0,40}\b(?:429|500|502|503|504)\b"
    r"|bad gateway|service unavailable|too many requests|gateway time-?out|internal server error",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(r"\b403\b|forbidden", re.IGNORECASE)
UNAUTHORIZED = re.compile(r"unauthorized|authentication required|no basic auth credentials|denied:", re.IGNORECASE)
STAGE = re.compile(r"#\d+ \[([^\]]+)\]")
LAYER = re.compile(r"([0-9a-f]{12}): (\S.*)")
BYTES = re.compile(r"([\d.]+)([kMGT]?)B(?:/([\d.]+)([kMGT]?)B)?$")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def ask(docker: list[str], environment: dict[str, str], *words: str) -> Any:
    """The client's JSON answer; None where the engine has no such image. Raises Failed."""
    what = " ".join(words)
    try:
        ended = bounded([*docker, *words], environment, timeout_sec=ASK_SEC)
    except subprocess.TimeoutExpired:
        raise Failed("transient", f"the engine did not answer `{what}` within {ASK_SEC:.0f} s") from None
    if ended.returncode == 0:
        try:
            return json.loads(ended.stdout)
        except ValueError:
            raise Failed("transient", f"the engine's answer to `{what}` was cut short") from None
    complaint = ended.stderr.decode(errors="replace").strip()
    if re.search(r"no such (image|object)", complaint, re.IGNORECASE):
        return None
    raise trouble(complaint) or reason(complaint.splitlines(), ended.returncode)


def trouble(complaint: str, address: str | None = None) -> Failed | None:
    """Why the engine cannot be asked at all, with the remedy; None where the client complains about something else."""
    low = complaint.lower()
    if "permission denied while trying to connect" in low or ("permission denied" in low and "docker.sock" in low):
        return Failed(
            "usage", "this user may not use the engine; type there: sudo usermod -aG docker $USER, and log in again"
        )
    if "cannot connect to the docker daemon" in low or "is the docker daemon running" in low:
        where = address or "its socket"
        return Failed("transient", f"the engine does not answer at {where}; start it: sudo systemctl start docker")
    return None


def started(
    argv: list[str],
    environment: dict[str, str],
    *,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """`argv` as a process, with `environment` beside this one's."""
    return subprocess.Popen(argv, stdin=stdin, stdout=stdout, stderr=stderr, env={**os.environ, **environment})


def bounded(
    argv: list[str],
    environment: dict[str, str],
    *,
    stdin: bytes | IO[bytes] = b"",
    timeout_sec: float | None = None,
    most: int = ANSWER_BYTES,
) -> subprocess.CompletedProcess[bytes]:
    """Run `argv` to its end. Raises Failed once either stream is longer than `most`, and TimeoutExpired.

    `stdin` is a stream, or bytes that fit into a pipe.
    """
    until = None if timeout_sec is None else time.monotonic() + timeout_sec
    said: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    process = started(argv, environment, stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin)
    with process, selectors.DefaultSelector() as selector:
        try:
            if isinstance(stdin, bytes):
                with contextlib.suppress(BrokenPipeError):
                    cast("IO[bytes]", process.stdin).write(stdin)
                with contextlib.suppress(BrokenPipeError):
                    cast("IO[bytes]", process.stdin).close()
            for name in said:
                selector.register(getattr(process, name), selectors.EVENT_READ, name)
            while selector.get_map():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(argv, timeout_sec or 0.0)
                for key, _ in selector.select(left):
                    piece = os.read(key.fd, LINE_BYTES)
                    said[key.data] += piece
                    if not piece:
                        selector.unregister(key.fileobj)
                    if len(said[key.data]) > most:
                        raise Failed(
                            "failed", f"`{' '.join(argv[:4])}` printed more than {most >> 20} MiB; it was ended"
                        )
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, bytes(said["stdout"]), bytes(said["stderr"]))


def follow(watcher: Watcher, argv: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Run the engine's client to its end; its exit code and last lines. Its output goes to log and progress."""
    last: deque[str] = deque(maxlen=200)
    with started(argv, environment, stderr=subprocess.STDOUT) as process:
        output = cast("IO[bytes]", process.stdout)
        for raw in iter(lambda: output.readline(LINE_BYTES), b""):
            line = raw.decode(errors="replace").rstrip()
            if not line:
                continue
            stage = STAGE.match(line)
            watcher.say(line, stage[1] if stage else None)
            last.append(line)
    watcher.write()
    return process.returncode, list(last)


def reason(lines: list[str], code: int) -> Failed:
    """The kind of failure, and the line of the client's output that shows it."""
    errors = [line for line in lines if re.search(r"error|denied|unauthorized|fail", line, re.IGNORECASE)] or lines
    kind, message = "failed", step_that_failed(lines) or (errors[-1] if errors else f"exit {code}, no message")
    # A step that ran out of space reports it some way above the client's own last lines.
    for name, pattern, count in (
        ("full", FULL, 0),
        ("unauthorized", UNAUTHORIZED, 30),
        ("transient", TRANSIENT, 30),
        ("forbidden", FORBIDDEN, 10),
    ):
        if matching := [line for line in lines[-count:] if pattern.search(line)]:
            kind, message = name, matching[-1]
            break
    return Failed(kind, re.sub(r"^#\d+ +(?:[\d.]+ +)?", "", message)[:LINE_CHARS])


def step_that_failed(lines: list[str]) -> str | None:
    """The last words of a build's failed step, and which step it was; None where no step failed.

    The client's own last line repeats the step's command instead.
    """
    failed = next((match for line in reversed(lines) if (match := re.match(r"#(\d+) ERROR: (.*)", line))), None)
    if failed is None:
        return None
    number, how = failed[1], failed[2]
    said = [match[1] for line in lines if (match := re.match(rf"#{number} +\d+\.\d+ +(\S.*)", line))]
    names = [match[1] for line in lines if (match := re.match(rf"#{number} \[([^\]]+)\]", line))]
    exit_code = re.search(r"exit code: \d+", how)
    if not said:
        return None
    return f"{said[-1]} (step [{names[0] if names else number}], {exit_code[0] if exit_code else how[:80]})"


# --- a push -----------------------------------------------------------------------------------------------------------


def follow_push(watcher: Watcher, argv: list[str], environment: dict[str, str], to: str) -> tuple[int, list[str]]:
    """`follow` for a push to `to`, with the bytes that move: the client tells them to a terminal alone.

    A push that moves nothing is named each minute, and ended after fifteen as if the connection had broken.
    """
    stalled, moved, last = _Stalled(to), _Moved(), deque[str](maxlen=200)
    shown = time.monotonic()
    with contextlib.closing(_on_a_terminal(argv, environment)) as pieces:
        for piece in pieces:
            if isinstance(piece, int):
                watcher.write()
                return piece, list(last)
            for line in (text.decode(errors="replace").strip() for text in re.split(rb"[\r\n]+", piece)):
                if line and moved.take(line):
                    watcher.say(line)
                    last.append(line)
            if (word := stalled.word(moved.state)) is not None:
                watcher.say(word, "stalled")
            if stalled.sec >= STALL_ENDS_SEC:
                return 1, [*last, f"no byte moved for {stalled.sec:.0f} s: i/o timeout"]
            if moved.total and not stalled.named and time.monotonic() - shown >= SHOWN_EVERY_SEC:
                shown = time.monotonic()
                watcher.say(moved.words(), "push")
    raise AssertionError("unreachable")


class _Stalled:
    """How long nothing has changed."""

    def __init__(self, to: str) -> None:
        self._to, self._state, self._since = to, (0, 0.0), time.monotonic()
        self.named = 0

    @property
    def sec(self) -> float:
        return time.monotonic() - self._since

    def word(self, state: tuple[int, float]) -> str | None:
        """What to say now, once in each STALL_SHOWN_SEC of standstill."""
        if state != self._state:
            self._state, self._since, self.named = state, time.monotonic(), 0
        if self.sec < STALL_SHOWN_SEC * (self.named + 1):
            return None
        self.named += 1
        return f"no byte has moved for {self.sec:.0f} s: {self._to} takes none; `inv push --cancel` stops it"


class _Moved:
    """What a push says of its layers: how many bytes of each have gone, unpacked."""

    def __init__(self) -> None:
        self._layers: dict[str, tuple[float, float]] = {}
        self._states: dict[str, str] = {}
        self._words = 0
        self._began, self.total = time.monotonic(), 0.0

    def take(self, line: str) -> bool:
        """Take a line of the client's; whether a person should see it."""
        layer = LAYER.match(line)
        if layer is None:
            self._words += 1
            return True
        name, said = layer[1], layer[2]
        state = re.split(r"[\[\d]", said)[0].strip()
        if size := BYTES.search(said):
            gone = float(size[1]) * _UNITS[size[2]]
            self._layers[name] = (gone, float(size[3]) * _UNITS[size[4]] if size[3] else gone)
        elif state == "Pushed" and name in self._layers:
            self._layers[name] = (self._layers[name][1],) * 2
        self.total = sum(total for _, total in self._layers.values())
        is_new, self._states[name] = self._states.get(name) != state, state
        self._words += is_new
        return is_new and state not in ("Preparing", "Waiting", "Pushing")

    @property
    def gone(self) -> float:
        return sum(gone for gone, _ in self._layers.values())

    @property
    def state(self) -> tuple[int, float]:
        """Differs once anything has moved."""
        return self._words, self.gone

    def words(self) -> str:
        rate = self.gone / max(0.001, time.monotonic() - self._began)
        done = sum(gone >= total for gone, total in self._layers.values())
        return (
            f"{self.gone / 1e6:.1f} of {self.total / 1e6:.1f} MB, {rate / 1e6:.1f} MB/s; "
            f"{done} of {len(self._layers)} layers that are sent"
        )


def _on_a_terminal(argv: list[str], environment: dict[str, str]) -> Generator[bytes | int, None, None]:
    """What `argv` writes to a terminal of its own, b"" after each silent second, and at last its exit code."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        with started(argv, environment, stdout=theirs, stderr=theirs) as process:
            try:
                os.close(theirs)
                theirs = -1
                rest = b""
                while True:
                    if not select.select([ours], [], [], 1.0)[0]:
                        yield b""
                        continue
                    try:
                        piece = os.read(ours, LINE_BYTES)
                    except OSError:  # nobody has the other side open any more
                        break
                    rest += piece
                    end = max(rest.rfind(b"\n"), rest.rfind(b"\r")) + 1
                    end = end or (len(rest) if len(rest) > LINE_BYTES else 0)
                    whole, rest = rest[:end], rest[end:]
                    yield _ESCAPES.sub(b"", whole)
                yield _ESCAPES.sub(b"", rest)
            except BaseException:  # also where the reader has enough of it
                process.kill()
                raise
        yield process.returncode
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
