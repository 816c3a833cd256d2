"""Keys of a hop: ours that are offered to it, in their order, and its own that known_hosts lists.

`ssh-keygen -F` finds the lines of known_hosts, so patterns, hashed names and markers count as they do for `ssh`;
Paramiko's own reader knows neither patterns nor markers.

Not covered: host certificates. A line @cert-authority accepts nothing here, so a host with only a certificate is
unknown until its key is listed.
"""

import base64
import binascii
import contextlib
import hashlib
import os
import re
import shlex
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthFailure, AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import UnknownKeyType
from paramiko.ssh_exception import BadAuthenticationType

from remote.hosts.host_protocol import HostError, HostKeyRefused, HostUnreachable, InvalidAddress, LoginRefused
from remote.hosts.local import expand_user
from remote.hosts.local_program import CannotStart, run_program
from remote.hosts.ssh.config import Hop

_AGENT_TIMEOUT_SEC = 30.0
SSH_PORT = 22
_FIND_TIMEOUT_SEC = 10.0
_FOUND_LINE = re.compile(r"# Host .* found: line (\d+) ?(\w*)")


class KeyAuthStrategy(AuthStrategy):
    """The keys offered to one hop, in order: agent keys that the configuration names, key files, other agent keys."""

    def __init__(self, hop: Hop) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._hop = hop
        self._offered: list[str] = []
        self._unusable: list[str] = []
        self._agent: _Agent | None = None

    def get_sources(self) -> Iterator[AuthSource]:
        files = {file: _public_key(file) for file in self._hop.identity_files}
        agent_keys = {key.asbytes(): key for key in self._agent_keys()}
        for file, blob in files.items():
            if blob in agent_keys:
                yield self._offer(agent_keys[blob], f"agent, {file}")
        for file, blob in files.items():
            if blob not in agent_keys and (loaded := self._load(file)) is not None:
                yield self._offer(loaded, file)
        if not self._hop.identities_only:
            for blob, key in agent_keys.items():
                if blob not in files.values():
                    yield self._offer(key, "agent")

    def login_error(self, failure: AuthFailure) -> HostError:
        hop, results = self._hop, [result.result for result in failure.result]
        allowed = next((error.allowed_types for error in results if isinstance(error, BadAuthenticationType)), None)
        if allowed is not None and "publickey" not in allowed:
            return LoginRefused(
                f"{hop}: its sshd accepts no keys, only {', '.join(allowed)}",
                remedy="set PubkeyAuthentication yes there",
            )
        broken = [error for error in results if not isinstance(error, paramiko.AuthenticationException)]
        if broken or any("transport shut down" in str(error) for error in results):
            refused = sum(str(error) == "Authentication failed." for error in results)
            if not refused:
                return HostUnreachable(f"{hop}: the connection broke while logging in: {results[-1] or 'closed'}")
            return LoginRefused(
                f"{hop}: its sshd ended the connection after {refused} refused keys of {len(self._offered)} offered",
                remedy="set IdentityFile and IdentitiesOnly yes for it in the ssh configuration",
            )
        offered = "; it refused " + ", ".join(self._offered) if self._offered else "; no key was offered"
        unusable = "; " + "; ".join(self._unusable) if self._unusable else ""
        return LoginRefused(
            f"{hop}: refused the login of user {hop.user!r}{offered}{unusable}",
            remedy="set User and IdentityFile in "
            "the ssh configuration, or have the key added to that user's ~/.ssh/authorized_keys",
        )

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _offer(self, key: paramiko.PKey, source: str) -> AuthSource:
        self._offered.append(f"{key.get_name()} {key.fingerprint} ({source})")
        return InMemoryPrivateKey(username=self._hop.user, pkey=key)

    def _load(self, file: str) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(file)
        except FileNotFoundError:  # one of OpenSSH's default names
            pass
        except (paramiko.SSHException, UnknownKeyType, ValueError, TypeError) as error:
            needs_passphrase = isinstance(error, paramiko.PasswordRequiredException)
            is_locked = needs_passphrase or "password" in str(error).lower() or "encrypted" in str(error).lower()
            unlock = f"has a passphrase: `ssh-add {shlex.quote(file)}` first"
            self._unusable.append(f"{file} {unlock if is_locked else 'is not a usable key'}")
        except OSError as error:
            self._unusable.append(f"{file} cannot be read: {error.strerror}")
        return None

    def _agent_keys(self) -> tuple[paramiko.PKey, ...]:
        path = self._hop.identity_agent
        if path is None or path == "SSH_AUTH_SOCK":
            path = os.environ.get("SSH_AUTH_SOCK")
        elif path.startswith("$"):
            path = os.environ.get(path[1:].strip("{}"))
        if not path or path == "none":
            return ()
        try:
            self._agent = _Agent(path)
            return self._agent.get_keys()
        except (OSError, paramiko.SSHException) as error:
            self._unusable.append(f"the agent at {path} does not answer: {error}")
            return ()


class _Agent(AgentSSH):
    """The agent that listens at `path`; Paramiko's own class takes its path from the environment only."""

    def __init__(self, path: str) -> None:
        super().__init__()
        unix_socket = socket.socket(socket.AF_UNIX)
        unix_socket.settimeout(_AGENT_TIMEOUT_SEC)
        try:
            unix_socket.connect(path)
            self._connect(unix_socket)  # type: ignore[attr-defined]
        except BaseException:
            unix_socket.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _public_key(file: str) -> bytes | None:
    """Read the public half of a key file: from its .pub file, or from the file itself if it is public."""
    for path in (Path(f"{file}.pub"), Path(file)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text(encoding="ascii").split()
            if not fields[0].startswith("-"):
                return base64.b64decode(fields[1], validate=True)
    return None


# --- host keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KnownKey:
    """One line about the host: its file, line number and key (`blob`: the key in wire format)."""

    file: str
    line: int
    kind: str
    blob: bytes
    revoked: bool = False


def entry_name(host: str, port: int) -> str:
    """Return a host's name in known_hosts: plain on port 22, `[host]:port` on other ports."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def read_known_keys(files: Iterable[str], host: str, port: int) -> list[KnownKey]:
    """Find the lines about `host`. As in OpenSSH, one on another port may be listed without it.

    Raises InvalidAddress for a file that cannot be read.
    """
    existing_files, host = [file for file in files if Path(file).is_file()], host.lower()
    for name in dict.fromkeys((entry_name(host, port), host)):
        if keys := [key for file in existing_files for key in _find_keys(file, name)]:
            return keys
    return []


def _find_keys(file: str, name: str) -> Iterator[KnownKey]:
    argv = ("ssh-keygen", "-F", name, "-f", file)
    try:
        completed = run_program(argv, label=f"ssh-keygen -F {name}", timeout_sec=_FIND_TIMEOUT_SEC)
    except CannotStart as error:
        raise InvalidAddress("ssh-keygen: not found on this machine", remedy="install the OpenSSH client") from error
    if completed.exit_code not in (0, 1):
        reason = os.fsdecode(completed.stderr).strip()
        raise InvalidAddress(f"known hosts file {file}: cannot be read: {reason}", remedy="make it readable")
    lines = os.fsdecode(completed.stdout).split("\n")
    for header, line in zip(lines[::2], lines[1::2], strict=False):
        match = _FOUND_LINE.match(header)
        if match is None or match[2] not in ("", "REVOKED"):
            continue
        fields = line.split()[bool(match[2]) :]
        with contextlib.suppress(binascii.Error, IndexError):  # as in OpenSSH, a damaged line accepts nothing
            blob = base64.b64decode(fields[2], validate=True)
            yield KnownKey(file=file, line=int(match[1]), kind=fields[1], blob=blob, revoked=bool(match[2]))


def fingerprint(blob: bytes) -> str:
    """Return a key's fingerprint in the format of `ssh-keygen -l`: SHA256 and 43 characters."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


class StrictHostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """A policy that accepts the keys in known_hosts and refuses all others with a reason."""

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._known = read_known_keys(hop.known_hosts_files, hop.known_hosts_name, hop.port)

    def install(self, client: paramiko.SSHClient) -> None:
        """Give `client` the keys that it may accept; it then requests a key of a known type from the host."""
        client.set_missing_host_key_policy(self)
        name = entry_name(self._hop.hostname, self._hop.port)
        revoked = {key.blob for key in self._known if key.revoked}
        for known in self._known:
            if known.blob not in revoked:
                with contextlib.suppress(UnknownKeyType, paramiko.SSHException):  # a type that we cannot check
                    key = paramiko.PKey.from_type_string(known.kind, known.blob)
                    client.get_host_keys().add(name, known.kind, key)

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise HostKeyRefused(self.refusal_reason(key))

    def refusal_reason(self, key: paramiko.PKey) -> str:
        """Explain why a key is refused, with the command that accepts this key and no other, once compared.

        `ssh-keyscan` would query the network a second time, and does not work through a jump host.
        """
        hop, kind, blob = self._hop, key.get_name(), key.asbytes()
        name, refused_key = entry_name(hop.known_hosts_name.lower(), hop.port), f"{kind} {fingerprint(blob)}"
        file = next(iter(hop.known_hosts_files), str(expand_user("~/.ssh/known_hosts")))
        accept = f"echo {shlex.quote(f'{name} {kind} {base64.b64encode(blob).decode()}')} >> {shlex.quote(file)}"
        compare = "compare it with the machine's own key (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub on its console)"
        for known in self._known:
            if known.revoked and known.blob == blob:
                revoked_at = f"{known.file}:{known.line}"
                return f"{hop}: its host key {refused_key} is revoked in {revoked_at}; ask its owner before you connect"
        if not self._known:
            return f"{hop}: its host key is unknown: {refused_key}; {compare}, then accept it: {accept}"
        known_list = ", ".join(
            f"{fingerprint(known.blob)} ({known.kind}, {known.file}:{known.line})"
            for known in self._known
            if not known.revoked
        )
        known_files = dict.fromkeys(known.file for known in self._known)
        remove = " && ".join(f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(path)}" for path in known_files)
        return (
            f"{hop}: its host key has changed from {known_list} to {refused_key} (an attacker in between, or a machine "
            f"that was recreated); {compare}, then replace it: {remove} && {accept}"
        )
