"""Names of registries and of their users, and how the build VM logs in to one.

OCIR: `<region-key>.ocir.io/<namespace>/<repository>:<tag>` or `ocir.<region-id>.oci.oraclecloud.com/...`, and three
forms of user name. Its 401 does not say which part was wrong; usually it is the form. Any other registry is taken too,
with nothing but its name's syntax checked.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from remote.hosts.command import Command, Secret
from remote.hosts.delivery import once
from remote.hosts.host import Host, HostError, HostUnreachable, LoginRefused, check
from remote.image.engine import Client

USER_FORMS = "NAMESPACE/USER, NAMESPACE/oracleidentitycloudservice/USER or NAMESPACE/DOMAIN/USER"
LOGIN_FOLDER = "qlora-fleet-login-"
_LOGIN_SEC = 120.0
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?\Z")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*\Z")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_OCIR = re.compile(r"(?P<key>[^.]+)\.ocir\.io\Z|ocir\.(?P<region>[^.]+)\.oci\.oraclecloud\.com\Z")
_REGION_KEY = re.compile(r"[a-z]{3}\Z")
_REGION_ID = re.compile(r"[a-z]{2,3}-[a-z]+-[0-9]{1,2}\Z")


class NameWrong(ValueError):
    """A name that cannot be one; the message says which part and what it should look like."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Where an image goes: `host/path:tag`. `namespace` is the tenancy's where the host is OCIR's, else None."""

    host: str
    path: str
    tag: str
    namespace: str | None

    @property
    def repository(self) -> str:
        return f"{self.host}/{self.path}"

    def __str__(self) -> str:
        return f"{self.repository}:{self.tag}"


def reference(text: str, default_tag: str) -> Reference:
    """`text` taken apart. Raises NameWrong."""
    host, _, rest = text.partition("/")
    path, colon, tag = rest.partition(":")
    if not rest or not _HOST.match(host) or ("." not in host and ":" not in host and host != "localhost"):
        raise NameWrong(f"{text!r}: expected HOST/REPOSITORY:TAG, e.g. fra.ocir.io/NAMESPACE/qlora-fleet:1.0")
    if "@" in rest:
        raise NameWrong(f"{text!r}: a digest is what a push answers with, not what it is given; leave it out")
    parts = path.split("/")
    for part in parts:
        if not _PART.match(part):
            raise NameWrong(f"{text!r}: {part!r}: lower case letters, digits and single . _ - between them are allowed")
    if colon and not _TAG.match(tag):
        raise NameWrong(f"{text!r}: tag {tag!r}: up to 128 letters, digits and . _ -, not starting with . or -")
    return Reference(host=host, path=path, tag=tag or default_tag, namespace=_namespace(text, host, parts))


def _namespace(text: str, host: str, parts: list[str]) -> str | None:
    found = _OCIR.match(host.lower())
    if found is None:
        return None
    if found["key"] is not None and not _REGION_KEY.match(found["key"]):
        raise NameWrong(f"{text!r}: {found['key']!r} is no region key; three letters like fra, iad, phx")
    if found["region"] is not None and not _REGION_ID.match(found["region"]):
        raise NameWrong(f"{text!r}: {found['region']!r} is no region; like eu-frankfurt-1")
    if len(parts) < 2:
        raise NameWrong(f"{text!r}: OCIR needs the tenancy's namespace: {host}/NAMESPACE/REPOSITORY:TAG")
    return parts[0]


def check_user(user: str, where: Reference) -> None:
    """Raises NameWrong for a user name that OCIR would answer with 401."""
    if not user or not user.isprintable() or " " in user:
        raise NameWrong(f"{user!r} is no user name")
    if where.namespace is None:
        return
    parts = user.split("/")
    if len(parts) not in (2, 3) or not all(parts) or parts[0] != where.namespace:
        raise NameWrong(f"{user!r}: {where.host} knows users as {USER_FORMS}; the namespace is {where.namespace}")


def log_in(host: Host, client: Client, where: Reference, user: str, password: Secret, *, tidy: bool) -> str:
    """Log the engine's client in, in a configuration folder of its own; returns that folder on the host.

    Whoever gets the folder removes it. `tidy` removes what killed ones left. The password goes over standard input
    alone. Raises LoginRefused, HostUnreachable for a registry that did not answer, and as `Host.run`.
    """
    make = once(host, "remote.image.onvm.scripts.login", LOGIN_FOLDER, "tidy" if tidy else "keep")
    folder = check(host, make, host.run(make, timeout_sec=_LOGIN_SEC)).stdout.decode().strip()
    login = Command(
        argv=(client.program, "--config", folder, "login", "--username", user, "--password-stdin", where.host),
        environment=client.environment,
        secrets=(password,),
    )
    try:
        completed = host.run(login, stdin=password.reveal().encode(), timeout_sec=_LOGIN_SEC)
        if completed.exit_code == 0:
            return folder
        said = login.tail(completed.stderr.decode(errors="replace"), lines=1)
        if re.search(r"unauthorized|incorrect username|denied|\b401\b", said, re.IGNORECASE):
            forms = f"; its users are {USER_FORMS}, and the password is an auth token" if where.namespace else ""
            raise LoginRefused(f"{where.host} refuses user {user}: {said}{forms}")
        raise HostUnreachable(f"{host.name}: logging in to {where.host}: {said}")
    except BaseException:
        forget(host, folder)
        raise


def forget(host: Host, folder: str) -> None:
    """Remove a login's folder. Raises as `Host.run`."""
    if LOGIN_FOLDER not in folder:
        raise HostError(f"{folder} is no login's folder")
    command = Command(argv=("rm", "-rf", "--", folder))
    check(host, command, host.run(command, timeout_sec=_LOGIN_SEC))


def outcome_json(where: Reference, facts: dict[str, object], pushed_at: str) -> str:
    """results/image.json: what was pushed, and the digest that pods run."""
    document = {
        "schema_version": 1,
        "reference": str(where),
        "repository": where.repository,
        **{key: facts[key] for key in ("digest", "size_bytes", "compressed_bytes", "labels")},
        "pushed_at": pushed_at,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
