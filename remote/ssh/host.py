"""A machine behind SSH as a host: commands over one connection.

    with SshHost(name="vm", destination=Destination(host="build-vm")) as host:
        host.run(Command(argv=("docker", "info")), timeout_sec=30.0)

The first command opens the connection, all others use it, and it is opened again when it was lost. A command's words,
environment and folder travel on the session's standard input, before what the caller feeds: the login shell and process
listings see no more than the command's own argv, and the login shell's quoting does not matter.

The command runs in a process group of its own under coreutils' `timeout`. At a local deadline the group is ended over
the same connection; if the connection is gone, `timeout` ends it `MARGIN_SEC` after its deadline. As on every kind of
host neither reaches a process in a session of its own (setsid); work that should outlive the connection is a
`remote.jobs.job`.

Not covered: bulk data (`remote.ssh.bulk`), hosts that are not Linux, login shells of the csh family.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import selectors
import shlex
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from remote.hosts.command import Command
from remote.hosts.host import CommandTimedOut, Completed, HostUnreachable, Readable, check
from remote.hosts.process import Limits
from remote.ssh.config import Destination, Hop, route, strict_config

if TYPE_CHECKING:
    import paramiko

    from remote.ssh.connection import Connection

MARGIN_SEC = 15.0
_PIECE = 1 << 16
_OPEN_SEC = 30.0
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


class SshHost:
    """One machine behind SSH. See `remote.hosts.host.Host` for what `run` promises. Threads may share one.

    `workdir` None is ~/.qlora-fleet there; its first reader asks the host where that is.
    """

    def __init__(
        self,
        *,
        name: str,
        destination: Destination,
        workdir: str | None = None,
        python: tuple[str, ...] = ("python3",),
    ) -> None:
        self.name, self.destination, self.python = name, destination, python
        self._workdir = workdir
        self._lock = threading.RLock()
        self._connection: Connection | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._hops: tuple[Hop, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None

    @property
    def workdir(self) -> str:
        if self._workdir is None:
            command = Command(argv=("sh", "-c", 'cd && printf "%s/.qlora-fleet" "$PWD"'))
            self._workdir = os.fsdecode(check(self, command, self.run(command, timeout_sec=_OPEN_SEC)).stdout)
        return self._workdir

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The servers on the way, this one last. Raises AddressWrong."""
        if not self._hops:
            self._hops = route(self.destination, self.strict_config_file)
        return self._hops

    @property
    def strict_config_file(self) -> Path:
        """The strict configuration for the OpenSSH client; the file is there until `close`."""
        with self._lock:
            if self._folder is None:
                text = strict_config(self.destination.config_file)
                self._folder = tempfile.TemporaryDirectory(prefix="qlora-fleet-ssh-")
                Path(self._folder.name, "config").write_text(text, encoding="utf-8")
            return Path(self._folder.name, "config")

    def connect(self) -> Connection:
        """The connection, opened now if there is none. Raises as `remote.ssh.connection.Connection`."""
        from remote.ssh.connection import Connection

        with self._lock:
            if self._connection is not None and not self._connection.is_open():
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = Connection(self.hops)
            return self._connection

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | Readable | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """See `remote.hosts.host.Host.run`. Raises as `connect`, too."""
        mark = secrets.token_hex(8)
        script = _script(command, mark, timeout_sec)
        connection = self.connect()
        limits = Limits(f"{self.name}: {command.brief()}", timeout_sec, idle_timeout_sec)
        session = _Session(self.name, connection, mark, limits)
        try:
            session.begin(script, stdin)
            return session.pump(on_stdout)
        except BaseException:
            session.end()
            raise
        finally:
            session.close()

    def dial(self, command: Command) -> paramiko.Channel:
        """Start `command` (its argv alone) and return its streams as a socket, for a client that speaks through it.

        For `docker system dial-stdio` and its like, which end when their input does: no deadline is set on the host.
        What the client sends after the command's end may end the connection (`remote.ssh.transport`): run beside it
        only what can be run again. Raises as `run`.
        """
        if command.environment or command.folder or command.secrets:
            raise ValueError("only argv can be dialled")
        with _gone_is_unreachable(self.name):
            channel = self.connect().session()
            channel.exec_command(shlex.join(command.argv))
        return channel


def _script(command: Command, mark: str, timeout_sec: float) -> bytes:
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
def _gone_is_unreachable(name: str) -> Iterator[None]:
    """Paramiko's errors for a connection that is gone, as HostUnreachable."""
    import paramiko

    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise HostUnreachable(f"{name}: the connection is gone: {error or type(error).__name__}") from None


class _Session:
    """One command on an open connection."""

    def __init__(self, name: str, connection: Connection, mark: str, limits: Limits) -> None:
        self._name, self._connection, self._limits = name, connection, limits
        self._mark = mark.encode()
        self._noise: bytearray | None = bytearray()  # output before the mark; None after it
        self._group: int | None = None
        self._channel: paramiko.Channel | None = None
        self._feeder: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._out, self._err = bytearray(), bytearray()

    def begin(self, script: bytes, stdin: bytes | Readable | None) -> None:
        with _gone_is_unreachable(self._name):
            self._channel = channel = self._connection.session()
            channel.exec_command(f"exec sh -c '{_LOADER}' sh {self._mark.decode()}")
        # In another thread: sending waits while the other side's window is full; reading and the deadline must not.
        content = script + stdin if isinstance(stdin, bytes) else script
        source = stdin if stdin is not None and not isinstance(stdin, bytes) else None
        self._feeder = threading.Thread(target=self._feed, args=(content, source), name="ssh-stdin", daemon=True)
        self._feeder.start()

    def _feed(self, content: bytes, source: Readable | None) -> None:
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
            self._err.extend(self._noise)
            if code == 255:
                raise HostUnreachable(f"{self._name}: a command was cut short on its way there")
        return Completed(exit_code=code, stdout=bytes(self._out), stderr=bytes(self._err))

    def _left_sec(self) -> float:
        """Seconds until the nearer limit. Raises what the command's input raised, and CommandTimedOut."""
        if self._failure is not None:
            raise self._failure
        return self._limits.left_sec()

    def _read(self, channel: paramiko.Channel, on_stdout: Callable[[bytes], None] | None) -> bool:
        heard = False
        while channel.recv_stderr_ready():
            self._err.extend(channel.recv_stderr(_PIECE))
            heard = True
        while channel.recv_ready():
            piece = channel.recv(_PIECE)
            heard = True
            if self._noise is not None:
                piece = self._after_mark(piece)
            if piece:
                (self._out.extend if on_stdout is None else on_stdout)(piece)
            self._limits.heard = time.monotonic()  # afterwards: the time that the sink takes is not silence
            self._limits.left_sec()  # endless output has a deadline, too
        return heard

    def _after_mark(self, piece: bytes) -> bytes:
        """Drop what a login shell's start-up files print before the command begins."""
        assert self._noise is not None  # noqa: S101 - for the type checker
        self._noise.extend(piece)
        found = re.search(rb"%s (\d+)\n" % self._mark, self._noise)
        if found is None:
            if len(self._noise) > _MOST_NOISE_BYTES:
                raise HostUnreachable(f"{self._name}: its login shell prints without end before a command begins")
            return b""
        self._group, rest, self._noise = int(found[1]), bytes(self._noise[found.end() :]), None
        return rest

    def end(self) -> None:
        """End the command on the host if the connection is still open; otherwise `timeout` does it there."""
        import paramiko

        channel = self._channel
        if channel is None or channel.exit_status_ready() or not self._connection.is_open():
            return
        until = time.monotonic() + _END_SEC
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError, HostUnreachable, CommandTimedOut):
            self._limits = Limits(self._name, _END_SEC, None)
            while self._group is None and not channel.exit_status_ready() and time.monotonic() < until:
                if not self._read(channel, lambda _: None):
                    time.sleep(0.01)
            if self._group is not None:
                killer = self._connection.session()
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
