"""Host keys: those that known_hosts lists for a host, and the remedy for any other key.

`ssh-keygen -F` finds the lines, so patterns, hashed names and markers count as they do for `ssh`; Paramiko's own reader
knows neither patterns nor markers.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.pkey import UnknownKeyType

from remote.hosts.base import HostKeyRefused, InvalidAddress
from remote.hosts.local import expand_user
from remote.hosts.process import CannotStart, run_program
from remote.hosts.ssh.config import Hop

SSH_PORT = 22
_FIND_TIMEOUT_SEC = 10.0
_FOUND_LINE = re.compile(r"# Host .* found: line (\d+) ?(\w*)")


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


def explain_refusal(known: list[KnownKey], files: Iterable[str], host: str, port: int, kind: str, blob: bytes) -> str:
    """Explain why this key is refused, with the command that accepts this key and no other, once compared.

    `ssh-keyscan` would query the network a second time, and does not work through a jump host.
    """
    name, refused_key = entry_name(host.lower(), port), f"{kind} {fingerprint(blob)}"
    file = next(iter(files), str(expand_user("~/.ssh/known_hosts")))
    accept = f"echo {shlex.quote(f'{name} {kind} {base64.b64encode(blob).decode()}')} >> {shlex.quote(file)}"
    compare = "compare it with the machine's own key (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub on its console)"
    if any(key.revoked and key.blob == blob for key in known):
        revoked_at = next(f"{key.file}:{key.line}" for key in known if key.revoked and key.blob == blob)
        return f"its host key {refused_key} is revoked in {revoked_at}; ask its owner before you connect"
    if not known:
        return f"its host key is unknown: {refused_key}; {compare}, then accept it: {accept}"
    known_list = ", ".join(
        f"{fingerprint(key.blob)} ({key.kind}, {key.file}:{key.line})" for key in known if not key.revoked
    )
    known_files = list(dict.fromkeys(key.file for key in known))
    remove = " && ".join(f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(path)}" for path in known_files)
    return (
        f"its host key has changed from {known_list} to {refused_key} (an attacker in between, or a machine that was "
        f"recreated); {compare}, then replace it: {remove} && {accept}"
    )


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
        hop = self._hop
        reason = explain_refusal(
            self._known, hop.known_hosts_files, hop.known_hosts_name, hop.port, key.get_name(), key.asbytes()
        )
        return f"{hop}: {reason}"
