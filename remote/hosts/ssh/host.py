"""A machine behind SSH as a host: commands over one connection.

    with SshHost(name="vm", destination=Destination(host="build-vm")) as host:
        host.run(Command(argv=("docker", "info")), timeout_sec=30.0)

The first command opens the connection, all others use it, and it is opened again after a loss. A command's argv,
environment and folder are sent on the session's standard input, before the caller's input: the login shell and process
listings see only the command's own argv, and the login shell's quoting does not matter.

The command runs in its own process group under coreutils' `timeout`. At a local deadline the group is ended over the
same connection; if the connection is lost, `timeout` ends it `session.MARGIN_SEC` after its deadline. As on every kind
of host neither ends a process in its own session (setsid); work that should outlive the connection is a
`remote.jobs.job`.

Not covered: hosts that are not Linux, login shells of the csh family.
"""

import os
import secrets
import shlex
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from remote.hosts.base import ByteReader, Completed, check
from remote.hosts.command import Command
from remote.hosts.process import ProcessLimits
from remote.hosts.ssh.config import Destination, Hop, resolve_route

if TYPE_CHECKING:
    import paramiko

    from remote.hosts.ssh.connection import Connection

_WORKDIR_TIMEOUT_SEC = 30.0


class SshHost:
    """One machine behind SSH; a `remote.hosts.base.Host`. Threads may share one.

    `workdir` None means ~/.qlora-fleet on the host; its first reader queries the host for the path.
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
        self._hops: tuple[Hop, ...] = ()

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

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The servers of the route, this one last. Raises InvalidAddress."""
        if not self._hops:
            self._hops = resolve_route(self.destination)
        return self._hops

    def connect(self) -> "Connection":
        """Return the connection; open it if necessary. Raises the errors of `Connection`."""
        from remote.hosts.ssh.connection import Connection

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
        stdin: bytes | ByteReader | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """Run a command as in `Host.run`. Raises the errors of `connect` too."""
        from remote.hosts.ssh.session import SshSession, build_script

        mark = secrets.token_hex(8)
        script = build_script(command, mark, timeout_sec)
        connection = self.connect()
        limits = ProcessLimits(f"{self.name}: {command.brief()}", timeout_sec, idle_timeout_sec)
        session = SshSession(self.name, connection, mark, limits)
        try:
            session.start(script, stdin)
            return session.pump(on_stdout)
        except BaseException:
            session.end()
            raise
        finally:
            session.close()

    def dial(self, command: Command) -> "paramiko.Channel":
        """Start `command`, which has only an argv, and return its streams as a socket.

        Used for commands such as `docker system dial-stdio`, which end with their input: the host sets no deadline.
        Data sent after the command's end may end the connection (`PatchedTransport`): at the same time run only
        commands that can be repeated. Raises the errors of `run`.
        """
        if command.environment or command.folder or command.secrets:
            raise ValueError("only argv can be dialled")
        return self.connect().dial(self.name, shlex.join(command.argv))
