"""A machine behind SSH as a host: commands over one connection.

    with SshHost(name="vm", destination=Destination(host="build-vm")) as host:
        host.run(Command(argv=("docker", "info")), timeout_sec=30.0)

The first command opens the connection, all others use it, and it is opened again when it was lost. A command's words,
environment and folder travel on the session's standard input, before what the caller feeds: the login shell and process
listings see no more than the command's own argv, and the login shell's quoting does not matter.

The command runs in a process group of its own under coreutils' `timeout`. At a local deadline the group is ended over
the same connection; if the connection is gone, `timeout` ends it `session.MARGIN_SEC` after its deadline. As on every
kind of host neither reaches a process in a session of its own (setsid); work that should outlive the connection is a
`remote.jobs.job`.

Not covered: bulk data (`remote.ssh.rsync`), hosts that are not Linux, login shells of the csh family.
"""

import contextlib
import os
import secrets
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from remote.hosts.command import Command
from remote.hosts.host import ByteReader, Completed, check
from remote.hosts.process import ProcessLimits
from remote.hosts.tempdirs import scratch_folder
from remote.ssh.config import Destination, Hop, route, strict_config
from remote.ssh.session import SshSession, gone_is_unreachable, script_of

if TYPE_CHECKING:
    import paramiko

    from remote.ssh.connection import Connection

_OPEN_SEC = 30.0


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
        self._folder: Path | None = None
        self._closing = contextlib.ExitStack()
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
            self._folder = None
            self._closing.close()

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
                self._folder = self._closing.enter_context(scratch_folder("qlora-fleet-ssh-"))
                Path(self._folder, "config").write_text(text, encoding="utf-8")
            return Path(self._folder, "config")

    def connect(self) -> "Connection":
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
        stdin: bytes | ByteReader | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """See `remote.hosts.host.Host.run`. Raises as `connect`, too."""
        mark = secrets.token_hex(8)
        script = script_of(command, mark, timeout_sec)
        connection = self.connect()
        limits = ProcessLimits(f"{self.name}: {command.brief()}", timeout_sec, idle_timeout_sec)
        session = SshSession(self.name, connection, mark, limits)
        try:
            session.begin(script, stdin)
            return session.pump(on_stdout)
        except BaseException:
            session.end()
            raise
        finally:
            session.close()

    def dial(self, command: Command) -> "paramiko.Channel":
        """Start `command` (its argv alone) and return its streams as a socket, for a client that speaks through it.

        For `docker system dial-stdio` and its like, which end when their input does: no deadline is set on the host.
        What the client sends after the command's end may end the connection (`remote.ssh.transport`): run beside it
        only what can be run again. Raises as `run`.
        """
        if command.environment or command.folder or command.secrets:
            raise ValueError("only argv can be dialled")
        with gone_is_unreachable(self.name):
            channel = self.connect().session()
            channel.exec_command(shlex.join(command.argv))
        return channel
