"""One command on an open SSH connection: the shell text that starts it, its streams, its end."""

import contextlib
import math
import os
import re
import selectors
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from remote.hosts.command import Command
from remote.hosts.host import ByteReader, Completed, HostError, HostUnreachable
from remote.hosts.process import BoundedOutput, ProcessLimits

if TYPE_CHECKING:
    import paramiko

    from remote.ssh.connection import Connection

MARGIN_SEC = 15.0
_PIECE = 1 << 16
_END_SEC = 10.0
_LOOK_AGAIN_SEC = 1.0  # a failing input does not wake the thread that reads
_MOST_NOISE_BYTES = 1 << 20
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Reads shell text up to the line that is the mark, then runs it. It holds nothing that a login shell could misread, and
# its variables have names that no command's environment has. It forks nothing: each process costs every command a
# millisecond. It stays as the parent to report the signal that ended the command: 128 + n.
_LOADER = """
IFS=:; for q_d in $PATH; do q_t=$q_d/timeout; [ -x "$q_t" ] && break; done
[ -x "$q_t" ] || { echo "timeout: not found; install coreutils" >&2; exit 127; }
q_s=; q_l=
while IFS= read -r q_l && [ "$q_l" != "$1" ]; do q_s="$q_s$q_l
"; done
[ "$q_l" = "$1" ] || exit 255
unset IFS; eval "$q_s"; exit $?
"""
# In the child that becomes `timeout`, the leader of the command's group: prints its own process number.
_GROUP = 'read -r q_g q_x < /proc/self/stat; printf "%s %s\\n" "$1" "$q_g"'
_END_GROUP = (
    "kill -s TERM -- -$1 2>/dev/null || exit 0; n=0; "
    "while kill -s 0 -- -$1 2>/dev/null && [ $n -lt 20 ]; do sleep 0.1; n=$((n+1)); done; "
    "kill -s KILL -- -$1 2>/dev/null; exit 0"
)


def script_of(command: Command, mark: str, timeout_sec: float) -> bytes:
    """The shell text that becomes `command`. Its last line is the mark: with it the text is complete."""
    for name in command.environment:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r}: a shell cannot pass on an environment variable of that name")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    if command.folder is not None:
        folder = shlex.quote(command.folder)
        missing = f"{{ printf '%s: No such file or directory' {folder} >&2; exit 127; }}"
        lines += [f"[ -d {folder} ] || {missing}", f"cd -- {folder} || exit 127"]
    deadline = str(math.ceil(timeout_sec + MARGIN_SEC))
    # A shell writes "Killed" to its standard error when a signal ends its child; that is not the command's output.
    lines.append("exec 3>&2 2>/dev/null")
    lines.append(f'({_GROUP}; exec "$q_t" -k 2 {deadline} {shlex.join(command.argv)} 2>&3 3>&-)')
    return os.fsencode("".join(f"{line}\n" for line in (*lines, mark)))


@contextlib.contextmanager
def gone_is_unreachable(name: str) -> Iterator[None]:
    """Paramiko's errors for a connection that is gone, as HostUnreachable."""
    import paramiko

    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(f"{name}: the connection is gone: {error or type(error).__name__}") from None


class SshSession:
    """One command on an open connection."""

    def __init__(self, name: str, connection: "Connection", mark: str, limits: ProcessLimits) -> None:
        self._name, self._connection, self._limits = name, connection, limits
        self._mark = mark.encode()
        self._noise: bytearray | None = bytearray()  # output before the mark; None after it
        self._group: int | None = None
        self._channel: paramiko.Channel | None = None
        self._feeder: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._out, self._err = BoundedOutput(limits.label), BoundedOutput(limits.label)

    def begin(self, script: bytes, stdin: bytes | ByteReader | None) -> None:
        with gone_is_unreachable(self._name):
            self._channel = channel = self._connection.session()
            channel.exec_command(f"exec sh -c '{_LOADER}' sh {self._mark.decode()}")
        # In another thread: sending waits while the other side's window is full; reading and the deadline must not.
        content = script + stdin if isinstance(stdin, bytes) else script
        source = stdin if stdin is not None and not isinstance(stdin, bytes) else None
        self._feeder = threading.Thread(target=self._feed, args=(content, source), name="ssh-stdin", daemon=True)
        self._feeder.start()

    def _feed(self, content: bytes, source: ByteReader | None) -> None:
        assert self._channel is not None  # noqa: S101 - for the type checker
        transport, channel = self._connection.transport, self._channel
        try:
            while content:
                if not _sent(transport.write, channel, content):
                    return
                content = source.read(_PIECE) if source is not None else b""
        except BaseException as error:  # noqa: BLE001 - what the input raises is the caller's, in the caller's thread
            self._failure = error
        else:
            _sent(transport.end_input, channel)

    def pump(self, on_stdout: Callable[[bytes], None] | None) -> Completed:
        """Hand on the command's output to its end; return how it ended."""
        channel = self._channel
        assert channel is not None  # noqa: S101 - for the type checker
        with selectors.DefaultSelector() as selector:
            selector.register(channel.fileno(), selectors.EVENT_READ)
            while True:
                over = channel.eof_received or channel.closed  # checked first: what came before it is still read
                heard = self._read(channel, on_stdout)
                left = self._left_sec()
                if over and not heard:
                    break
                if not heard:
                    selector.select(min(left, _LOOK_AGAIN_SEC))
        while not channel.exit_status_ready():
            channel.status_event.wait(min(self._left_sec(), _LOOK_AGAIN_SEC))
        code = channel.recv_exit_status()
        if code == -1:  # no exit status came: the connection, or the shell around the command, was killed
            raise HostUnreachable(f"{self._name}: the connection broke while a command ran")
        if self._noise is not None:  # the command did not begin: the loader or the login shell says why
            self._err.take(self._noise)
            if code == 255:
                raise HostUnreachable(f"{self._name}: a command was cut short on its way there")
        return Completed(exit_code=code, stdout=bytes(self._out.content), stderr=bytes(self._err.content))

    def _left_sec(self) -> float:
        """Seconds until the nearer limit. Raises what the command's input raised, and CommandTimedOut."""
        if self._failure is not None:
            raise self._failure
        return self._limits.left_sec()

    def _read(self, channel: "paramiko.Channel", on_stdout: Callable[[bytes], None] | None) -> bool:
        heard = False
        while channel.recv_stderr_ready():
            self._err.take(channel.recv_stderr(_PIECE))
            heard = True
        while channel.recv_ready():
            piece = channel.recv(_PIECE)
            heard = True
            if self._noise is not None:
                piece = self._after_mark(piece)
            if piece:
                (self._out.take if on_stdout is None else on_stdout)(piece)
            self._limits.heard = time.monotonic()  # afterwards: the time that the sink takes is not silence
            self._limits.left_sec()  # endless output has a deadline, too
        return heard

    def _after_mark(self, piece: bytes) -> bytes:
        """Drop what a login shell's start-up files print before the command begins."""
        assert self._noise is not None  # noqa: S101 - for the type checker
        self._noise.extend(piece)
        mark = re.search(rb"%s (\d+)\n" % self._mark, self._noise)
        if mark is None:
            if len(self._noise) > _MOST_NOISE_BYTES:
                raise HostUnreachable(f"{self._name}: its login shell prints without end before a command begins")
            return b""
        self._group, rest, self._noise = int(mark[1]), bytes(self._noise[mark.end() :]), None
        return rest

    def end(self) -> None:
        """End the command on the host if the connection is still open; otherwise `timeout` does it there."""
        import paramiko

        channel = self._channel
        if channel is None or channel.exit_status_ready() or not self._connection.is_open():
            return
        until = time.monotonic() + _END_SEC
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError, HostError):
            self._limits = ProcessLimits(self._name, _END_SEC, None)
            while self._group is None and not channel.exit_status_ready() and time.monotonic() < until:
                if not self._read(channel, lambda _: None):
                    time.sleep(0.01)
            if self._group is not None:
                killer = self._connection.session(_END_SEC)
                killer.settimeout(_END_SEC)
                with contextlib.closing(killer):
                    killer.exec_command(f"exec sh -c '{_END_GROUP}' sh {self._group}")
                    killer.recv(1)  # its end

    def close(self) -> None:
        if self._channel is not None:
            _sent(self._connection.transport.hang_up, self._channel)
        if self._feeder is not None:
            self._feeder.join(_END_SEC)


def _sent(send: Callable[..., None], *what: object) -> bool:
    """Send it; False if the command has closed its session or the connection is gone. The reader finds out which."""
    import paramiko

    try:
        send(*what)
    except (paramiko.SSHException, OSError, EOFError):
        return False
    return True
