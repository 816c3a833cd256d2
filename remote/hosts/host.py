"""The protocol of every kind of host: run one command, return how it ended.

A `Completed` carries the command's own exit code. A host whose transport can lose a stream and still exit 0 (kubectl
exec can) has to notice that and raise HostUnreachable.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict, Unpack

from remote.hosts.command import Command

_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended: its own exit code (128 + n when signal n ended it) and what it wrote.

    `stdout` is empty where an `on_stdout` sink took it.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


def is_loopback(name: str | None) -> bool:
    """Whether a host's name or address is the asking machine's own."""
    return name is not None and _LOOPBACK.match(name) is not None


class HostError(Exception):
    """Something about a host; the message says which host, what happened and what to do."""


class HostUnreachable(HostError):
    """The host did not answer, or the stream broke. The command may have run. Worth another try."""


class InvalidAddress(HostError):
    """The settings name no host that can be reached, or cannot be read. Another try will not help."""


class LoginRefused(HostError):
    """The host answers and refuses the login."""


class HostKeyRefused(HostError):
    """The host shows a key that is not known for it. No user name and no key of ours was sent."""


class PermissionDenied(HostError):
    """This operator lacks credentials, rights or a program. Every other host would refuse as well."""


class CommandTimedOut(HostError):
    """The command was stopped at its deadline, or after too long a silence."""


class TooMuchOutput(HostError):
    """A command printed more than is kept of any; it was ended. The same command would print the same."""


class CommandFailed(HostError):
    """A command that had to succeed failed. The message has the command and its last lines."""

    def __init__(self, host: str, command: Command, completed: Completed) -> None:
        output = (completed.stderr or completed.stdout).decode(errors="replace")
        super().__init__(
            f"{host}: exit {completed.exit_code}: {command.brief()}" + (f"\n{command.tail(output)}" if output else "")
        )
        self.completed = completed


class ByteReader(Protocol):
    """What can be fed to a command's standard input: a file, or an object with its `read`."""

    def read(self, size: int, /) -> bytes: ...


class RunOptions(TypedDict, total=False):
    """What a command is fed, who hears what it writes, and its limits: see `Host.run`."""

    stdin: bytes | ByteReader | None
    on_stdout: Callable[[bytes], None] | None
    timeout_sec: Required[float]
    idle_timeout_sec: float | None


class Host(Protocol):
    """One machine or pod that can run commands.

    `name` is unique in a fleet. `workdir` is an absolute folder on the host for us alone; it need not exist yet.
    `python` starts a Python (3.9 or newer) there.
    """

    @property
    def name(self) -> str: ...

    @property
    def workdir(self) -> str: ...

    @property
    def python(self) -> tuple[str, ...]: ...

    def run(self, command: Command, **how: Unpack[RunOptions]) -> Completed:
        """Run `command` to its end.

        `stdin` is fed and then closed. `on_stdout` receives pieces as they arrive, in the calling thread.
        `idle_timeout_sec` bounds the silence on standard output. Raises CommandTimedOut after ending the command, as
        far as the host allows, and HostUnreachable.
        """
        ...


def check(host: Host, command: Command, completed: Completed) -> Completed:
    """`completed` if its exit code is 0; raises CommandFailed otherwise."""
    if completed.exit_code != 0:
        raise CommandFailed(host.name, command, completed)
    return completed


def parsed(host: Host, text: bytes, what: str) -> Any:
    """The value of a host's JSON. Raises HostUnreachable, which names `what` was cut short."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise HostUnreachable(f"{host.name}: {what} was cut short, or is none: it begins {text[:60]!r}") from None


def one_line(error: object) -> str:
    """A message as one line, for a reason or a table cell."""
    return " ".join(str(error).split())
