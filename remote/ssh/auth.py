"""Our keys: which ones are offered to a hop, and in which order."""

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

from remote.hosts.host import HostError, HostUnreachable, LoginRefused
from remote.ssh.config import Hop

_AGENT_SEC = 30.0
_MOST_BYTES = 1 << 20  # of a key's file


class Keys(AuthStrategy):
    """The keys offered to one hop: those of the agent that the configuration names, the files, the agent's others."""

    def __init__(self, hop: Hop) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._hop = hop
        self._offered: list[str] = []
        self._unusable: list[str] = []
        self._agent: _Agent | None = None

    def get_sources(self) -> Iterator[AuthSource]:
        files = [Path(file) for file in self._hop.identity_files if self._is_usable(Path(file))]
        named = {blob: file for file in files if (blob := _public(str(file))) is not None}
        held = {key.asbytes(): key for key in self._agent_keys()}
        for blob, key in held.items():
            if blob in named:
                yield self._offer(key, f"agent, {named[blob]}")
        for file in files:
            if _public(str(file)) not in held and (loaded := self._load(file)) is not None:
                yield self._offer(loaded, str(file))
        if not self._hop.identities_only:
            for blob, key in held.items():
                if blob not in named:
                    yield self._offer(key, "agent")

    def complaint(self, failure: AuthFailure) -> HostError:
        hop, results = self._hop, [result.result for result in failure.result]
        broke = [error for error in results if not isinstance(error, paramiko.AuthenticationException)]
        if broke and "Too many authentication" not in str(broke[-1]):
            return HostUnreachable(f"{hop}: the connection broke while logging in: {broke[-1] or 'closed'}")
        offered = "; it refused " + ", ".join(self._offered) if self._offered else "; there was no key to offer"
        unusable = "; " + "; ".join(self._unusable) if self._unusable else ""
        many = "; it allows fewer tries than there are keys: set IdentitiesOnly yes for it" if broke else ""
        return LoginRefused(
            f"{hop}: does not let user {hop.user!r} in{offered}{unusable}{many}; name the right user and key (User and "
            f"IdentityFile in the ssh configuration), or have the key added to that user's ~/.ssh/authorized_keys"
        )

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _offer(self, key: paramiko.PKey, where: str) -> AuthSource:
        self._offered.append(f"{key.get_name()} {key.fingerprint} ({where})")
        return InMemoryPrivateKey(username=self._hop.user, pkey=key)

    def _is_usable(self, file: Path) -> bool:
        if _is_small(file) or (not file.exists() and _public(str(file)) is not None):
            return True
        if file.exists():  # reading a pipe or a device may never end
            self._unusable.append(f"{file} is no file of at most {_MOST_BYTES:,} bytes")
        return False

    def _load(self, file: Path) -> paramiko.PKey | None:
        try:
            return paramiko.PKey.from_path(file)
        except (paramiko.SSHException, UnknownKeyType, ValueError, TypeError) as error:
            needs_passphrase = isinstance(error, paramiko.PasswordRequiredException)
            locked = needs_passphrase or "password" in str(error).lower() or "encrypted" in str(error).lower()
            self._unusable.append(
                f"{file} has a passphrase: `ssh-add {file}` first" if locked else f"{file} is no key that can be used"
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
        plug = socket.socket(socket.AF_UNIX)
        plug.settimeout(_AGENT_SEC)
        try:
            plug.connect(path)
            self._connect(plug)  # type: ignore[attr-defined]
        except BaseException:
            plug.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def _is_small(file: Path) -> bool:
    """Whether it is a file that can be a key's."""
    try:
        seen = file.stat()
    except OSError:
        return False
    return stat.S_ISREG(seen.st_mode) and seen.st_size <= _MOST_BYTES


def _public(file: str) -> bytes | None:
    """The public half of a key file: from the .pub beside it, or the file itself if it is public."""
    for path in (Path(f"{file}.pub"), Path(file)):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text(encoding="ascii").split() if _is_small(path) else []
            if not words[0].startswith("-"):
                return base64.b64decode(words[1], validate=True)
    return None
