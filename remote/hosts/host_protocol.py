"""The protocol of every kind of host: run one command and return its exit code and output.

A `Completed` has the command's own exit code. A host whose transport can lose a stream and still exit 0 (kubectl exec
can) must detect that and raise HostUnreachable.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Required, TypedDict, TypeVar, Unpack

from bench.records import schema
from remote.hosts.command import Command

T = TypeVar("T")
_LOOPBACK = re.compile(r"(localhost|127\.[\d.]+|::1)\Z")


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that has ended: its own exit code (128 + n if signal n ended it) and its output.

    `stdout` is empty if it went to an `on_stdout` callback.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""


def is_loopback(name: str | None) -> bool:
    """Check whether a host's name or address is that of the local machine."""
    return name is not None and _LOOPBACK.match(name) is not None


class HostError(Exception):
    """A problem with a host, which the message names, and as `remedy` what to type next. The text joins them."""

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__("; ".join(filter(None, (problem, remedy))))
        self.problem, self.remedy = problem, remedy


class HostUnreachable(HostError):
    """A host that did not answer, or a broken stream. The command may have run. A retry may help."""


class InvalidAddress(HostError):
    """Settings that name no reachable host, or cannot be read. A retry does not help."""


class LoginRefused(HostError):
    """A login that the host refused."""


class HostKeyRefused(HostError):
    """An unknown host key. Neither a user name nor a key of ours was sent."""


class PermissionDenied(HostError):
    """An operator without credentials, rights or a program. Every other host would refuse as well."""


class CommandTimedOut(HostError):
    """A command that was stopped at its deadline, or after too long a silence."""


class TooMuchOutput(HostError):
    """A command that was ended because it exceeded the output limit. A retry would exceed it too."""


class CommandFailed(HostError):
    """The failure of a command that had to succeed. The message has the command and its last lines."""

    def __init__(self, host: str, command: Command, completed: Completed) -> None:
        output = (completed.stderr or completed.stdout).decode(errors="replace")
        super().__init__(
            f"{host}: exit {completed.exit_code}: {command.brief()}" + (f"\n{command.tail(output)}" if output else "")
        )
        self.completed = completed


class ByteReader(Protocol):
    """Input for a command: a file, or an object with its `read`."""

    def read(self, size: int, /) -> bytes: ...


class RunOptions(TypedDict, total=False):
    """Input, output callback and limits of a command: see `Host.run`."""

    stdin: bytes | ByteReader | None
    on_stdout: Callable[[bytes], None] | None
    timeout_sec: Required[float]
    idle_timeout_sec: float | None


class Host(Protocol):
    """One machine or pod that can run commands.

    `name` is unique in a fleet. `workdir` is our own absolute folder on the host; it need not exist yet.
    `python` starts a Python (3.9 or newer) there.
    """

    @property
    def name(self) -> str: ...

    @property
    def workdir(self) -> str: ...

    @property
    def python(self) -> tuple[str, ...]: ...

    def run(self, command: Command, **options: Unpack[RunOptions]) -> Completed:
        """Run `command` to its end.

        `stdin` is sent and then closed. `on_stdout` receives chunks as they arrive, in the calling thread.
        `idle_timeout_sec` limits the silence on standard output. Raises HostUnreachable, and CommandTimedOut after
        ending the command as far as the host allows.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class FleetRequest:
    """Hosts to make. `options`: the section of `fleet` in the settings that is named after the connector, or None.

    `root`: the folder where relative paths start. `kubectl`: the cluster's `Kubectl`, if the connector `is_cluster`.
    """

    names: Sequence[str]
    options: Any
    root: Path
    kubectl: Any = None


@dataclass(frozen=True, kw_only=True)
class Connector:
    """A kind of hosts, listed in `remote.hosts.connectors`.

    `name` is the value of fleet.kind. `is_local`: its hosts share this machine (files, processors and GPUs);
    `is_cluster`: they are pods of the cluster in the settings, each with a machine of its own. A command to a dead host
    ends after `silence_sec`. `max_streams` hosts are followed at a time; further ones are polled in turn.

    `make_hosts` makes a host for each name. Raises InvalidAddress.
    """

    name: str
    is_local: bool
    is_cluster: bool
    silence_sec: float
    max_streams: int
    make_hosts: Callable[[FleetRequest], Sequence[Host]]


def check(host: Host, command: Command, completed: Completed) -> Completed:
    """Return `completed` if its exit code is 0; raise CommandFailed otherwise."""
    if completed.exit_code != 0:
        raise CommandFailed(host.name, command, completed)
    return completed


def parse_json(host: Host, text: bytes | str, label: str, convert: Callable[[Any], T] = lambda document: document) -> T:
    """Parse JSON from a host and `convert` it. `label` names the text in errors.

    Raises HostUnreachable, also for a document that `convert` cannot read: a transport may have truncated it.
    """
    try:
        return convert(schema.parse(text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise HostUnreachable(f"{host.name}: {label} is truncated or not JSON: it starts with {text[:60]!r}") from error


def read_json(
    host: Host,
    command: Command,
    label: str,
    convert: Callable[[Any], T] = lambda document: document,
    *,
    timeout_sec: float,
) -> T:
    """Run a command that prints one JSON document, and parse it. Raises CommandFailed, and like `parse_json`."""
    completed = check(host, command, host.run(command, timeout_sec=timeout_sec))
    return parse_json(host, completed.stdout, label, convert)


def collapse_whitespace(error: object) -> str:
    """Put a message on one line, for a reason or a table cell."""
    return " ".join(str(error).split())
