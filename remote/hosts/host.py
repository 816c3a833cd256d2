"""The protocol every kind of host speaks: run one command and say truly how it ended.

A pod, the build VM and this laptop differ in how a command reaches them; jobs, transfer and the fleet know only this
protocol. The one promise that matters: a `Completed` carries the command's own exit code. A host whose transport can
lose a stream and still exit 0 (kubectl exec can) must notice and raise HostUnreachable instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from remote.hosts.command import Command


class HostError(Exception):
    """Something about a host; the message says which host, what happened and what to do."""


class HostUnreachable(HostError):
    """The host did not answer, or the stream broke: whether the command ran is not known. Worth another try."""


class AddressWrong(HostError):
    """The host cannot be where the settings say, or they cannot be read: another try will not help."""


class LoginRefused(HostError):
    """The host is there and does not let us in."""


class HostKeyRefused(HostError):
    """The host shows a key that is not known for it: nothing was sent to it, no name, no key of ours."""


class OperatorRefused(HostError):
    """This operator's credentials, rights or programs do not do: no host is to blame, and no other one will let us."""


class CommandTimedOut(HostError):
    """The command was stopped at its deadline, or was silent for longer than it may be."""


class CommandFailed(HostError):
    """A command that had to succeed did not. Carries what it was and what it said."""

    def __init__(self, host: str, command: Command, completed: Completed) -> None:
        said = completed.stderr.decode(errors="replace") or completed.stdout.decode(errors="replace")
        super().__init__(
            f"{host}: exit {completed.exit_code}: {command.brief()}" + (f"\n{command.tail(said)}" if said else "")
        )
        self.completed = completed


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended: its own exit code (128 + n when signal n ended it) and what it wrote.

    `stdout` is empty where an `on_stdout` sink took it.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


class Readable(Protocol):
    """What can be fed to a command's standard input: a file, or anything that reads like one."""

    def read(self, size: int, /) -> bytes: ...


class Host(Protocol):
    """One machine (or pod) that can run commands.

    `name` is unique in a fleet. `workdir` is an absolute folder on the host that is ours alone; it need not exist yet.
    `python` is how to start a Python (3.9 or newer) there.
    """

    @property
    def name(self) -> str: ...

    @property
    def workdir(self) -> str: ...

    @property
    def python(self) -> tuple[str, ...]: ...

    def run(
        self,
        command: Command,
        *,
        stdin: bytes | Readable | None = None,
        on_stdout: Callable[[bytes], None] | None = None,
        timeout_sec: float,
        idle_timeout_sec: float | None = None,
    ) -> Completed:
        """Run `command` to its end.

        `stdin` is fed as given and then closed. `on_stdout` receives pieces as they arrive, from the calling thread.
        `idle_timeout_sec` bounds the silence on standard output. When a limit passes, the command is ended on the host
        as well as can be and CommandTimedOut is raised. Raises HostUnreachable as said above.
        """
        ...


def check(host: Host, command: Command, completed: Completed) -> Completed:
    """`completed` if its exit code is 0; raises CommandFailed otherwise."""
    if completed.exit_code != 0:
        raise CommandFailed(host.name, command, completed)
    return completed


def one_line(error: BaseException) -> str:
    """An error's message as one line, for a reason or a table cell."""
    return " ".join(str(error).split())
