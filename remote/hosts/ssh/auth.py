"""Selection and order of the keys that are offered to a hop."""

import base64
import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthFailure, AuthSource, AuthStrategy, InMemoryPrivateKey
from paramiko.pkey import UnknownKeyType

from remote.hosts.base import HostError, HostUnreachable, LoginRefused
from remote.hosts.ssh.config import Hop

_AGENT_TIMEOUT_SEC = 30.0
MAX_KEY_FILE_BYTES = 1 << 20


class KeyAuthStrategy(AuthStrategy):
    """The keys offered to one hop, in order: agent keys that the configuration names, key files, other agent keys."""

    def __init__(self, hop: Hop) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._hop = hop
        self._offered: list[str] = []
        self._unusable: list[str] = []
        self._agent: _Agent | None = None

    def get_sources(self) -> Iterator[AuthSource]:
        files = [Path(file) for file in self._hop.identity_files if self._is_usable(Path(file))]
        configured = {blob: file for file in files if (blob := _public_key(str(file))) is not None}
        agent_keys = {key.asbytes(): key for key in self._agent_keys()}
        for blob, key in agent_keys.items():
            if blob in configured:
                yield self._offer(key, f"agent, {configured[blob]}")
        for file in files:
            if _public_key(str(file)) not in agent_keys and (loaded := self._load(file)) is not None:
                yield self._offer(loaded, str(file))
        if not self._hop.identities_only:
            for blob, key in agent_keys.items():
                if blob not in configured:
                    yield self._offer(key, "agent")

    def login_error(self, failure: AuthFailure) -> HostError:
        hop, results = self._hop, [result.result for result in failure.result]
        broken = [error for error in results if not isinstance(error, paramiko.AuthenticationException)]
        if broken and "Too many authentication" not in str(broken[-1]):
            return HostUnreachable(f"{hop}: the connection broke while logging in: {broken[-1] or 'closed'}")
        offered = "; it refused " + ", ".join(self._offered) if self._offered else "; no key was offered"
        unusable = "; " + "; ".join(self._unusable) if self._unusable else ""
        too_many = "; it allows fewer attempts than there are keys: set IdentitiesOnly yes for it" if broken else ""
        return LoginRefused(
            f"{hop}: refused the login of user {hop.user!r}{offered}{unusable}{too_many}",
            remedy="set User and IdentityFile in "
            "the ssh configuration, or have the key added to that user's ~/.ssh/authorized_keys",
        )

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _offer(self, key: paramiko.PKey, source: str) -> AuthSource:
        self._offered.append(f"{key.get_name()} {key.fingerprint} ({source})")
        return InMemoryPrivateKey(username=self._hop.user, pkey=key)

    def _is_usable(self, file: Path) -> bool:
        if _is_key_file(file) or (not file.exists() and _public_key(str(file)) is not None):
            return True
        if file.exists():  # reading a pipe or a device may never end
            self._unusable.append(f"{file} is not a regular file of at most {MAX_KEY_FILE_BYTES:,} bytes")
        return False

    def _load(self, file: Path) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(file)
        except (paramiko.SSHException, UnknownKeyType, ValueError, TypeError) as error:
            needs_passphrase = isinstance(error, paramiko.PasswordRequiredException)
            is_locked = needs_passphrase or "password" in str(error).lower() or "encrypted" in str(error).lower()
            self._unusable.append(
                f"{file} has a passphrase: `ssh-add {file}` first" if is_locked else f"{file} is not a usable key"
            )
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


def _is_key_file(file: Path) -> bool:
    """Check whether the path is a regular file small enough for a key."""
    try:
        info = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_size <= MAX_KEY_FILE_BYTES


def _public_key(file: str) -> bytes | None:
    """Read the public half of a key file: from its .pub file, or from the file itself if it is public."""
    for path in (Path(f"{file}.pub"), Path(file)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = path.read_text(encoding="ascii").split() if _is_key_file(path) else []
            if not fields[0].startswith("-"):
                return base64.b64decode(fields[1], validate=True)
    return None
