"""A machine behind SSH as a host: commands over one connection.

    with SshHost(name="vm", destination=Destination(host="build-vm")) as host:
        host.run(Command(argv=("docker", "info")), timeout_sec=30.0)

The first command opens the connection, all others use it, and it is opened again after a loss. A command's argv,
environment and folder are sent on the session's standard input, before the caller's input: the login shell and process
listings see only the command's own argv, and the login shell's quoting does not matter.

The command runs in its own process group under coreutils' `timeout`. At a local deadline the group is ended over the
same connection; if the connection is lost, `timeout` ends it `MARGIN_SEC` after its deadline. As on every kind
of host neither ends a process in its own session (setsid); work that should outlive the connection is a
`remote.jobs.job`.

Not covered: hosts that are not Linux.
"""

import contextlib
import math
import os
import re
import secrets
import selectors
import shlex
import threading
import time
from collections.abc import Callable
from typing import Self

import paramiko

from remote.hosts.command import Command
from remote.hosts.host_protocol import (
    ByteReader,
    CommandTimedOut,
    Completed,
    HostError,
    HostUnreachable,
    InvalidAddress,
    check,
)
from remote.hosts.local_program import BoundedOutput, ProcessLimits
from remote.hosts.ssh.config import Destination, resolve_route
from remote.hosts.ssh.connection import Connection

MARGIN_SEC = 15.0
_CHUNK_BYTES = 1 << 16
_END_TIMEOUT_SEC = 10.0
_POLL_SEC = 1.0  # a failed input does not wake the reading thread
_MAX_LOGIN_OUTPUT_BYTES, _MAX_SHOWN_CHARS = 1 << 20, 200
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# Reads a shell script between two marks, then runs it. It is one line without `!`, which every login shell, csh too,
# passes on as it is, and its variables are in no command's environment. It forks no process: each would cost every
# command a millisecond. It stays as the parent to report the signal that ended the command: 128 + n. IFS is a space, a
# tab and a newline when a shell starts. The umask makes our folders 0700 and our files 0600 on every machine.
_LOADER_SCRIPT = (
    "umask 077; q_m=$1 q_n=${IFS#??} q_s= q_l=; "
    'q_f() { printf "%s 0\\n" "$q_m"; printf %s "$1" >&2; exit 127; }; '
    'IFS=:; for q_d in $PATH; do q_t=$q_d/timeout; [ -x "$q_t" ] && break; done; '
    '[ -x "$q_t" ] || q_f "timeout: not found; install coreutils"; '
    'IFS= read -r q_l; [ "$q_l" = "exit 255 #$q_m" ] || exit 255; '
    'while IFS= read -r q_l; do [ "$q_l" = "$q_m" ] && break; q_s="$q_s$q_l$q_n"; done; '
    '[ "$q_l" = "$q_m" ] || exit 255; unset IFS; eval "$q_s"; exit $?'
)
# Runs in the child that becomes `timeout`, the leader of the command's group: prints its process number.
_PRINT_GROUP_SCRIPT = 'read -r q_g q_x < /proc/self/stat; printf "%s %s\\n" "$1" "$q_g"'
_END_GROUP_SCRIPT = (
    "kill -s TERM -- -$1 2>/dev/null || exit 0; n=0; "
    "while kill -s 0 -- -$1 2>/dev/null && [ $n -lt 20 ]; do sleep 0.1; n=$((n+1)); done; "
    "kill -s KILL -- -$1 2>/dev/null; exit 0"
)


def build_script(command: Command, mark: str, timeout_sec: float) -> bytes:
    """Build the shell script that runs `command`, between two lines with the mark, which show that it is complete.

    The first line ends any other shell that reads it, because a start-up file runs one instead of ours.
    """
    for name in command.environment:
        if not _VARIABLE.match(name):
            raise ValueError(f"{name!r}: a shell cannot export an environment variable with this name")
    lines = [f"export {name}={shlex.quote(value)}" for name, value in command.environment.items()]
    if command.folder is not None:
        folder = shlex.quote(command.folder)
        lines += [f"[ -d {folder} ] || q_f {folder}': No such file or directory'", f"cd -- {folder} || exit 127"]
    deadline = str(math.ceil(timeout_sec + MARGIN_SEC))
    # A shell writes "Killed" to its standard error when a signal ends its child; that is not the command's output.
    lines.append("exec 3>&2 2>/dev/null")
    lines.append(f'({_PRINT_GROUP_SCRIPT}; exec "$q_t" -k 2 {deadline} {shlex.join(command.argv)} 2>&3 3>&-)')
    return os.fsencode("".join(f"{line}\n" for line in (f"exit 255 #{mark}", *lines, mark)))


class SshSession:
    """One command on an open connection."""

    def __init__(self, name: str, connection: Connection, mark: str, limits: ProcessLimits) -> None:
        self._name, self._connection, self._limits = name, connection, limits
        self._mark = mark.encode()
        self._login_output: bytearray | None = bytearray()  # output before the mark; None after it
        self._group: int | None = None
        self._channel: paramiko.Channel | None = None
        self._stdin_thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._stdout, self._stderr = BoundedOutput(limits.label), BoundedOutput(limits.label)

    def start(self, script: bytes, stdin: bytes | ByteReader | None) -> None:
        self._channel = self._connection.dial(self._name, f"exec sh -c '{_LOADER_SCRIPT}' sh {self._mark.decode()}")
        # In its own thread: sending waits while the host's window is full; reading and the deadline must not wait.
        content = script + stdin if isinstance(stdin, bytes) else script
        source = stdin if stdin is not None and not isinstance(stdin, bytes) else None
        self._stdin_thread = threading.Thread(target=self._feed, args=(content, source), name="ssh-stdin", daemon=True)
        self._stdin_thread.start()

    def _feed(self, content: bytes, source: ByteReader | None) -> None:
        assert self._channel is not None  # noqa: S101 - for the type checker
        transport, channel = self._connection.transport, self._channel
        try:
            while content:
                if not _try_send(transport.write, channel, content):
                    return
                content = source.read(_CHUNK_BYTES) if source is not None else b""
        except BaseException as error:  # noqa: BLE001 - errors of the input are raised in the caller's thread
            self._failure = error
        else:
            _try_send(transport.end_input, channel)

    def pump(self, on_stdout: Callable[[bytes], None] | None) -> Completed:
        """Read the command's output to its end; return its exit code and output."""
        channel = self._channel
        assert channel is not None  # noqa: S101 - for the type checker
        with selectors.DefaultSelector() as selector:
            selector.register(channel.fileno(), selectors.EVENT_READ)
            while True:
                is_over = channel.eof_received or channel.closed  # checked first: earlier output is still read
                has_read = self._read(channel, on_stdout)
                remaining_sec = self._remaining_sec()
                if is_over and not has_read:
                    break
                if not has_read:
                    selector.select(min(remaining_sec, _POLL_SEC))
        while not channel.exit_status_ready():
            channel.status_event.wait(min(self._remaining_sec(), _POLL_SEC))
        code = channel.recv_exit_status()
        if code == -1:  # no exit status came: the connection, or the shell around the command, was killed
            raise HostUnreachable(f"{self._name}: the connection broke while a command ran")
        if self._login_output is not None:
            raise self._start_error(code)
        return Completed(exit_code=code, stdout=bytes(self._stdout.content), stderr=bytes(self._stderr.content))

    def _start_error(self, code: int) -> HostError:
        """Return the error of a login shell that ended without starting the command."""
        output = bytes(self._login_output or b"") + bytes(self._stderr.content)
        lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
        message = f"{self._name}: its login shell ended with exit code {code} and started no command"
        if lines:
            message += f": {lines[-1].strip()[:_MAX_SHOWN_CHARS]}"
        if "temporarily unavailable" in message:  # no process left, which passes
            return HostUnreachable(message)
        return InvalidAddress(
            message,
            remedy="the shell's start-up files there must read no input, start no other shell and not exit; "
            f"`ssh {self._name} true` shows what they do",
        )

    def _remaining_sec(self) -> float:
        """Return the seconds until the nearer limit. Raises CommandTimedOut and the errors of the command's input."""
        if self._failure is not None:
            raise self._failure
        try:
            return self._limits.remaining_sec()
        except CommandTimedOut as error:
            if self._login_output is None:
                raise
            raise CommandTimedOut(f"{error}: its login shell, or a start-up file of it, started no command") from error

    def _read(self, channel: paramiko.Channel, on_stdout: Callable[[bytes], None] | None) -> bool:
        has_read = False
        while channel.recv_stderr_ready():
            self._stderr.append(channel.recv_stderr(_CHUNK_BYTES))
            has_read = True
        while channel.recv_ready():
            chunk = channel.recv(_CHUNK_BYTES)
            has_read = True
            if self._login_output is not None:
                chunk = self._after_mark(chunk)
            if chunk:
                (self._stdout.append if on_stdout is None else on_stdout)(chunk)
            self._limits.last_output = time.monotonic()  # after the callback, whose time is not silence
            self._remaining_sec()  # endless output has a deadline too
        return has_read

    def _after_mark(self, chunk: bytes) -> bytes:
        """Remove the output of a login shell's start-up files before the command starts."""
        assert self._login_output is not None  # noqa: S101 - for the type checker
        self._login_output.extend(chunk)
        mark = re.search(rb"%s (\d+)\n" % self._mark, self._login_output)
        if mark is None:
            if len(self._login_output) > _MAX_LOGIN_OUTPUT_BYTES:
                raise InvalidAddress(
                    f"{self._name}: its login shell prints endless output", remedy="correct its start-up files there"
                )
            return b""
        self._group, rest, self._login_output = int(mark[1]) or None, bytes(self._login_output[mark.end() :]), None
        return rest

    def end(self) -> None:
        """End the command on the host if the connection is still open; otherwise `timeout` does it there."""
        channel = self._channel
        if channel is None or channel.exit_status_ready() or not self._connection.is_open():
            return
        deadline = time.monotonic() + _END_TIMEOUT_SEC
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError, HostError):
            self._limits = ProcessLimits(self._name, _END_TIMEOUT_SEC, None)
            while self._group is None and not channel.exit_status_ready() and time.monotonic() < deadline:
                if not self._read(channel, lambda _: None):
                    time.sleep(0.01)
            if self._group is not None:
                killer = self._connection.open_session(_END_TIMEOUT_SEC)
                killer.settimeout(_END_TIMEOUT_SEC)
                with contextlib.closing(killer):
                    killer.exec_command(f"exec sh -c '{_END_GROUP_SCRIPT}' sh {self._group}")
                    while killer.recv(_CHUNK_BYTES) and time.monotonic() < deadline:
                        pass  # until its end: its login shell may print something first

    def close(self) -> None:
        if self._channel is not None:
            _try_send(self._connection.transport.close_channel, self._channel)
        if self._stdin_thread is not None:
            self._stdin_thread.join(_END_TIMEOUT_SEC)


def _try_send(send: Callable[..., None], *arguments: object) -> bool:
    """Call `send`. Returns False if the command has closed its session or the connection is lost; the reader tells."""
    try:
        send(*arguments)
    except (paramiko.SSHException, OSError, EOFError):
        return False
    return True


_WORKDIR_TIMEOUT_SEC = 30.0


class SshHost:
    """One machine behind SSH; a `remote.hosts.host_protocol.Host`. Threads may share one.

    `workdir` None means ~/.qlora-fleet on the host; its first reader queries the host for the path.
    """

    def __init__(
        self, *, name: str, destination: Destination, workdir: str | None = None, python: tuple[str, ...] = ("python3",)
    ) -> None:
        self.name, self.destination, self.python = name, destination, python
        self._workdir = workdir
        self._lock = threading.RLock()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def workdir(self) -> str:
        if self._workdir is None:
            command = Command(argv=("sh", "-c", 'cd && printf "%s/.qlora-fleet" "$PWD"'))
            self._workdir = os.fsdecode(
                check(self, command, self.run(command, timeout_sec=_WORKDIR_TIMEOUT_SEC)).stdout
            )
        return self._workdir

    def connect(self) -> Connection:
        """Return the connection; open it if necessary. Raises InvalidAddress and the errors of `Connection`."""
        with self._lock:
            if self._connection is not None and not self._connection.is_open():
                self._connection.close()
                self._connection = None
            if self._connection is None:
                self._connection = Connection(resolve_route(self.destination))
            return self._connection

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | ByteReader | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """Run a command as in `Host.run`. Raises the errors of `connect` too."""
        mark = secrets.token_hex(8)
        script = build_script(command, mark, timeout_sec)
        connection = self.connect()
        limits = ProcessLimits(f"{self.name}: {command.brief()}", timeout_sec, idle_timeout_sec)
        session = SshSession(self.name, connection, mark, limits)
        try:
            session.start(script, stdin)
            completed = session.pump(on_stdout)
        except BaseException:
            session.end()
            raise
        finally:
            session.close()
        if (
            completed.exit_code in (126, 127)
            and b"timeout: failed to run" in completed.stderr
            and self._runs_python(command)
        ):
            raise InvalidAddress(
                f"{self.name}: {completed.stderr.decode(errors='replace').strip()}",
                remedy="install Python 3.9 or newer there",
            )
        return completed

    def _runs_python(self, command: Command) -> bool:
        """Return True for a command that runs this host's Python."""
        return command.argv[: len(self.python)] == self.python
