"""OpenSSH's known_hosts files, read strictly: which keys a host may show, and what to do about any other.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT": names with `*`, `?` and `!`, hashed names (`|1|salt|hash`),
`[host]:port`, the markers @revoked and @cert-authority. Paramiko's own reader knows neither patterns nor markers.

Not covered: host certificates. A line @cert-authority accepts nothing here, so a host vouched for by one alone is
unknown until its key itself is listed.
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

from remote.hosts.local import expanded

SSH_PORT = 22


@dataclass(frozen=True, kw_only=True)
class KnownKey:
    """One line about the host: its place, and the key (`blob`: its bytes on the wire)."""

    file: str
    line: int
    kind: str
    blob: bytes
    revoked: bool = False


def name_of(host: str, port: int) -> str:
    """A host's name as known_hosts has it: plain on port 22, `[host]:port` elsewhere."""
    return host if port == SSH_PORT else f"[{host}]:{port}"


def known_keys(files: Iterable[str], host: str, port: int) -> list[KnownKey]:
    """The lines about `host`. As in OpenSSH a host on another port may be listed without the port. Raises OSError."""
    contents = [(file, Path(file).read_text(errors="replace")) for file in files if Path(file).is_file()]
    host = host.lower()
    for name in dict.fromkeys((name_of(host, port), host)):
        keys = [key for file, content in contents for key in _keys_in(file, content, name)]
        if keys:
            return keys
    return []


def _keys_in(file: str, content: str, name: str) -> Iterable[KnownKey]:
    for number, line in enumerate(content.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", "@revoked") or not _matches(words[0], name):
            continue
        try:
            blob = base64.b64decode(words[2], validate=True)
        except binascii.Error:
            continue  # as OpenSSH does: a damaged line accepts nothing
        yield KnownKey(file=file, line=number, kind=words[1], blob=blob, revoked=marker == "@revoked")


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        try:
            salt, expected = (base64.b64decode(part, validate=True) for part in patterns.split("|")[2:4])
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), expected)
    matches = False
    for pattern in patterns.lower().split(","):
        # Brackets are literal here: `[host]:2222` is a name and not a set of letters.
        if fnmatch.fnmatchcase(name, pattern.lstrip("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            matches = True
    return matches


def fingerprint(blob: bytes) -> str:
    """As `ssh-keygen -l` shows it: SHA256 and 43 letters."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def complaint(known: list[KnownKey], files: Iterable[str], host: str, port: int, kind: str, blob: bytes) -> str:
    """Why this key is refused, and the command that accepts this key and no other, once compared.

    `ssh-keyscan` would ask the network a second time, and cannot ask through a jump host.
    """
    name, shown = name_of(host.lower(), port), f"{kind} {fingerprint(blob)}"
    file = next(iter(files), str(expanded("~/.ssh/known_hosts")))
    accept = f"echo {shlex.quote(f'{name} {kind} {base64.b64encode(blob).decode()}')} >> {shlex.quote(file)}"
    compare = "compare it with what the machine itself says (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub on its console)"
    if any(key.revoked and key.blob == blob for key in known):
        at = next(f"{key.file}:{key.line}" for key in known if key.revoked and key.blob == blob)
        return f"its host key {shown} is marked as revoked in {at}; do not connect before its owner has explained it"
    if not known:
        return f"its host key is unknown: {shown}; {compare}, then accept it: {accept}"
    places = ", ".join(
        f"{fingerprint(key.blob)} ({key.kind}, {key.file}:{key.line})" for key in known if not key.revoked
    )
    files_held = list(dict.fromkeys(key.file for key in known))
    remove = " && ".join(f"ssh-keygen -R {shlex.quote(name)} -f {shlex.quote(held)}" for held in files_held)
    return (
        f"its host key has changed: known is {places}, shown was {shown}; somebody may be listening in, or the machine "
        f"was made anew: {compare}, then replace it: {remove} && {accept}"
    )
