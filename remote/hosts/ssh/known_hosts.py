"""Strict reader of OpenSSH's known_hosts files: the keys that a host may have, and the remedy for any other key.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": names with `*`, `?` and `!`, hashed names (`|1|salt|hash`),
`[host]:port`, the markers @revoked and @cert-authority. Paramiko's own reader knows neither patterns nor markers.

Not covered: host certificates. A line @cert-authority accepts nothing here, so a host with only a certificate is
unknown until its key is listed.
"""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from remote.hosts.local import expand_user

SSH_PORT = 22


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
    """Read the lines about `host`. As in OpenSSH, one on another port may be listed without it. Raises OSError."""
    contents = [(file, Path(file).read_text(errors="replace")) for file in files if Path(file).is_file()]
    host = host.lower()
    for name in dict.fromkeys((entry_name(host, port), host)):
        keys = [key for file, content in contents for key in _parse_keys(file, content, name)]
        if keys:
            return keys
    return []


def _parse_keys(file: str, content: str, name: str) -> Iterable[KnownKey]:
    for number, line in enumerate(content.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if (
            len(fields) < 3
            or fields[0].startswith("#")
            or marker not in ("", "@revoked")
            or not _matches(fields[0], name)
        ):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue  # as in OpenSSH, a damaged line accepts nothing
        yield KnownKey(file=file, line=number, kind=fields[1], blob=blob, revoked=marker == "@revoked")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            salt, expected = (base64.b64decode(part, validate=True) for part in patterns.split("|")[2:4])
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), expected)
    matches = False
    for pattern in patterns.lower().split(","):
        # Brackets are literal here: `[host]:2222` is a name and not a character set.
        if fnmatch.fnmatchcase(name, pattern.lstrip("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            matches = True
    return matches


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
