"""Resolves an SSH destination by OpenSSH's own reading of the user's configuration, made strict.

Only OpenSSH knows all of its language (Include, Match, tokens), so `ssh -G` is asked. It reads a small file of ours
that sets what may not be looser here (host keys are always checked, nothing is asked on a terminal) and then includes
the user's own. The OpenSSH client that moves bulk data uses the same file, jump hosts included.
"""

import os
import pwd
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remote.hosts.host import InvalidAddress
from remote.hosts.local import expanded

_RESOLVE_SEC = 10.0
_MOST_HOPS = 8
_CONNECT_TIMEOUT_SEC = 15.0
# In a configuration the first value wins, so these stand before the user's own.
_STRICT = """\
# Made by qlora-fleet for one connection; your own configuration is included below.
BatchMode yes
StrictHostKeyChecking yes
UpdateHostKeys no
ServerAliveInterval 10
ServerAliveCountMax 3
ControlMaster no
ControlPath none
ForwardAgent no
ForwardX11 no
ClearAllForwardings yes
PermitLocalCommand no
RemoteCommand none
RequestTTY no
LogLevel ERROR
"""


@dataclass(frozen=True, kw_only=True)
class Destination:
    """What one would type after `ssh`: a host, or a name from the configuration, which decides what is None here.

    `config_file` None is ~/.ssh/config and the system's.
    """

    host: str
    user: str | None = None
    port: int | None = None
    identity: str | None = None
    config_file: str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What `ssh` is given of it before the host."""
        return (
            *(() if self.user is None else ("-l", self.user)),
            *(() if self.port is None else ("-p", str(self.port))),
            *(() if self.identity is None else ("-i", str(expanded(self.identity)))),
        )

    def __post_init__(self) -> None:
        words = (self.host, self.user or "", self.identity or "")
        if not self.host or any(word.startswith("-") or not word.isprintable() for word in words) or " " in self.host:
            raise ValueError(f"{self.host!r} is no host")


@dataclass(frozen=True, kw_only=True)
class Hop:
    """One server on the way, as the configuration describes it. `name` is the name that was asked for."""

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
    def known_as(self) -> str:
        """The name its host key is looked up under."""
        return self.host_key_alias or self.hostname

    def __str__(self) -> str:
        return f"{self.name} ({self.user}@{self.hostname} port {self.port})"


def home() -> Path:
    """The user's home as OpenSSH finds it: from the list of users, not from HOME."""
    return Path(_me().pw_dir)


def _me() -> pwd.struct_passwd:
    """This user's line in the list of users. Raises AddressWrong where there is none."""
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        raise InvalidAddress(
            f"this machine's list of users has no user {os.getuid()}, and OpenSSH works for none that is not in it; "
            "add it there, or log in as another"
        ) from None


def strict_config(config_file: str | None) -> str:
    """The text of our strict configuration, which includes the user's own. Raises AddressWrong."""
    if config_file is not None and not expanded(config_file).is_file():
        raise InvalidAddress(f"{config_file}: no such ssh configuration file")
    system = "/etc/ssh/ssh_config"
    files = (str(home() / ".ssh" / "config"), system) if config_file is None else (config_file,)
    return _STRICT + "".join(f'Match all\nInclude "{expanded(file)}"\n' for file in files)


def route(destination: Destination, strict_file: Path) -> tuple[Hop, ...]:
    """The servers from here to the destination, which is the last. `strict_file` holds `strict_config`'s text.

    Raises AddressWrong for a mistake in the configuration.
    """
    return _route(strict_file, destination.host, destination.options, 0)


def _route(strict_file: Path, host: str, words: Sequence[str], depth: int) -> tuple[Hop, ...]:
    if depth > _MOST_HOPS:
        raise InvalidAddress(f"{host}: its ProxyJump leads in a circle; correct it in the ssh configuration")
    hop = _ask(strict_file, host, words)
    if hop.proxy_jump is None:
        return (hop,)
    before: tuple[Hop, ...] = ()
    for jump in hop.proxy_jump.split(","):
        name, more = _jump(jump)
        # As with `ssh -J a,b`: the first jump host's own ProxyJump counts, that of the others does not.
        before = (*before, _ask(strict_file, name, more)) if before else _route(strict_file, name, more, depth + 1)
    return (*before, hop)


def _jump(text: str) -> tuple[str, list[str]]:
    match = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<six>[^]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?/?", text
    )
    if match is None:
        raise InvalidAddress(f"ProxyJump {text!r}: expected [user@]host[:port]; correct it in the ssh configuration")
    user, port = match["user"], match["port"]
    return match["six"] or match["host"], [*(("-l", user) if user else ()), *(("-p", port) if port else ())]


def _ask(strict_file: Path, host: str, words: Sequence[str]) -> Hop:
    argv = ("ssh", "-G", "-F", str(strict_file), *words, "--", host)
    try:
        asked = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_RESOLVE_SEC, check=False)
    except FileNotFoundError:
        raise InvalidAddress("ssh: not found on this machine; install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise InvalidAddress(f"{host}: reading the ssh configuration took longer than {_RESOLVE_SEC:g} s") from None
    if asked.returncode != 0:
        complaint = os.fsdecode(asked.stderr).strip().splitlines() or ["ssh -G failed"]
        raise InvalidAddress(f"{host}: {complaint[0]}; correct the ssh configuration")
    return parse(host, os.fsdecode(asked.stdout))


def parse(name: str, text: str) -> Hop:
    """The hop that `ssh -G` describes."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        values.setdefault(key, []).append(value)

    def one(key: str) -> str | None:
        value = values.get(key, ["none"])[0]
        return None if value in ("", "none") else value

    hostname, user, port = one("hostname") or name, one("user") or "", int(one("port") or 22)
    tokens = {"%": "%", "h": hostname, "n": name, "p": str(port), "r": user, "d": str(home())}
    tokens |= {"u": _me().pw_name}

    def expand(value: str) -> str:
        value = re.sub(r"%(.)", lambda token: tokens.get(token[1], token[0]), value)
        return str(home()) + value[1:] if value.startswith("~/") else value

    files = [*(values.get("userknownhostsfile") or []), *(values.get("globalknownhostsfile") or [])]
    proxy_command, agent, timeout = one("proxycommand"), values.get("identityagent", [None])[0], one("connecttimeout")
    return Hop(
        name=name,
        hostname=hostname,
        user=user,
        port=port,
        identity_files=tuple(expand(file) for file in values.get("identityfile", []) if file != "none"),
        identities_only=one("identitiesonly") == "yes",
        identity_agent=None if agent is None else expand(agent),
        known_hosts_files=tuple(expand(file) for listed in files for file in listed.split()),
        host_key_alias=one("hostkeyalias"),
        connect_timeout_sec=float(timeout) if timeout is not None else _CONNECT_TIMEOUT_SEC,
        proxy_command=None if proxy_command is None else expand(proxy_command),
        proxy_jump=one("proxyjump"),
    )
