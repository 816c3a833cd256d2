"""Resolution of an SSH destination by OpenSSH, from the user's configuration.

Only OpenSSH understands its whole language (Include, Match, tokens), so `ssh -G` resolves it. Options that would make a
connection less strict have no effect: `remote.hosts.ssh.connection` reads the fields of `Hop` and no other.
"""

import os
import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.hosts.host_protocol import CommandTimedOut, InvalidAddress
from remote.hosts.local import expand_user
from remote.hosts.local_program import CannotStart, run_program

_RESOLVE_TIMEOUT_SEC = 10.0
_MAX_HOPS = 8
_CONNECT_TIMEOUT_SEC = 15.0
_JUMP = re.compile(r"(?:ssh://)?(?:([^,]*)@)?\[?([^],]+?)\]?(?::(\d+))?/?(?:,|\Z)")  # OpenSSH has checked the list


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The destination of `ssh`: a name from the configuration, USER@HOST, or ssh://USER@HOST:PORT.

    `config_file` None means ~/.ssh/config and the system's file.
    """

    host: str
    config_file: str | None = None

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or not self.host.isprintable() or " " in self.host:
            raise ValueError(f"{self.host!r} is not a valid host")


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One server of the route, as the configuration describes it. `name` is the name before resolution."""

    name: str
    hostname: str
    user: str
    port: int
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    identity_agent: str | None = None
    known_hosts_files: tuple[str, ...] = ()
    host_key_alias: str | None = None
    connect_timeout_sec: float = _CONNECT_TIMEOUT_SEC
    proxy_command: str | None = None
    proxy_jump: str | None = None

    @property
    def known_hosts_name(self) -> str:
        """The name of its host key in known_hosts."""
        return self.host_key_alias or self.hostname

    def __str__(self) -> str:
        return f"{self.name} ({self.user}@{self.hostname} port {self.port})"


def home_folder() -> Path:
    """Return the user's home as OpenSSH determines it: from the user database, not from HOME."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def resolve_route(destination: Destination) -> tuple[Hop, ...]:
    """Return the servers from here to the destination, which is the last.

    Raises InvalidAddress for a mistake in the configuration.
    """
    file = destination.config_file
    config = () if file is None else ("-F", str(expand_user(file)))
    return _resolve_route(config, destination.host, (), 0)


def _resolve_route(config: Sequence[str], host: str, options: Sequence[str], depth: int) -> tuple[Hop, ...]:
    if depth > _MAX_HOPS:
        raise InvalidAddress(f"{host}: its ProxyJump is circular", remedy="correct it in the ssh configuration")
    hop = _resolve_hop(config, host, options)
    if hop.proxy_jump is None:
        return (hop,)
    jumps: tuple[Hop, ...] = ()
    for user, name, port in _JUMP.findall(hop.proxy_jump):
        jump_options = (*(("-l", user) if user else ()), *(("-p", port) if port else ()))
        # As with `ssh -J a,b`: the first jump host's own ProxyJump counts, that of the others does not.
        if jumps:
            jumps = (*jumps, _resolve_hop(config, name, jump_options))
        else:
            jumps = _resolve_route(config, name, jump_options, depth + 1)
    return (*jumps, hop)


def _resolve_hop(config: Sequence[str], host: str, options: Sequence[str]) -> Hop:
    argv = ("ssh", "-G", "-o", "LogLevel=ERROR", *config, *options, "--", host)
    try:
        completed = run_program(argv, label=f"{host}: ssh -G", timeout_sec=_RESOLVE_TIMEOUT_SEC)
    except CannotStart as error:
        raise InvalidAddress("ssh: not found on this machine", remedy="install the OpenSSH client") from error
    except CommandTimedOut as error:
        raise InvalidAddress(
            f"{host}: reading the ssh configuration took longer than {_RESOLVE_TIMEOUT_SEC:g} s"
        ) from error
    if completed.exit_code != 0:
        error_lines = os.fsdecode(completed.stderr).strip().splitlines() or ["ssh -G failed"]
        raise InvalidAddress(f"{host}: {error_lines[0]}", remedy="correct the ssh configuration")
    return parse_hop(host, os.fsdecode(completed.stdout))


def parse_hop(name: str, text: str) -> Hop:
    """Parse the output of `ssh -G`."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)

    def first_value(key: str) -> str | None:
        value = values.get(key, ["none"])[0]
        return None if value in ("", "none") else value

    name = first_value("host") or name  # without the user and port of a destination
    hostname, user, port = first_value("hostname") or name, first_value("user") or "", int(first_value("port") or 22)
    tokens = {"%": "%", "h": hostname, "n": name, "p": str(port), "r": user, "d": str(home_folder())}
    tokens |= {"u": pwd.getpwuid(os.getuid()).pw_name}

    def expand(value: str) -> str:
        value = re.sub(r"%(.)", lambda token: tokens.get(token[1], token[0]), value)
        return str(home_folder()) + value[1:] if value.startswith("~/") else value

    files = [*(values.get("userknownhostsfile") or []), *(values.get("globalknownhostsfile") or [])]
    proxy_command, agent, timeout = (
        first_value("proxycommand"),
        values.get("identityagent", [None])[0],
        first_value("connecttimeout"),
    )
    return Hop(
        name=name,
        hostname=hostname,
        user=user,
        port=port,
        identity_files=tuple(expand(file) for file in values.get("identityfile", []) if file != "none"),
        identities_only=first_value("identitiesonly") == "yes",
        identity_agent=None if agent is None else expand(agent),
        known_hosts_files=tuple(expand(file) for line in files for file in line.split()),
        host_key_alias=first_value("hostkeyalias"),
        connect_timeout_sec=float(timeout) if timeout is not None else _CONNECT_TIMEOUT_SEC,
        proxy_command=None if proxy_command is None else expand(proxy_command),
        proxy_jump=first_value("proxyjump"),
    )
