"""The pull secret: a registry's login as Kubernetes keeps it, made in memory and sent on standard input.

Server-side apply leaves no copy of it in an annotation, as client-side apply would.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from remote.cluster.labels import OWNER, OWNER_LABEL, PART_OF_LABEL
from remote.hosts.command import Secret

_OCIR = re.compile(r"^([a-z0-9-]+\.ocir\.io|ocir\.[a-z0-9-]+\.oci\.oraclecloud\.com)$")


def pull_secret(
    *, name: str, namespace: str, registry: str, user: str, password: Secret
) -> tuple[dict[str, Any], tuple[Secret, ...]]:
    """(the Secret object, everything in it that must never be shown: the password in all its encodings)."""
    auth = base64.b64encode(f"{user}:{password.reveal()}".encode()).decode()
    login = {"username": user, "password": password.reveal(), "auth": auth}
    config = base64.b64encode(json.dumps({"auths": {registry: login}}).encode()).decode()
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {PART_OF_LABEL: OWNER, OWNER_LABEL: OWNER},
        },
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": config},
    }
    return secret, (password, Secret(auth), Secret(config))


def user_problem(registry: str, repository: str, user: str) -> str | None:
    """What is wrong with the user name for this registry, or None. OCIR's user names have three forms."""
    if not _OCIR.match(registry):
        return None
    tenancy = repository.split("/")[1] if repository.count("/") >= 2 else None
    parts = user.split("/")
    if tenancy is not None and parts[0] != tenancy:
        return f"{user!r} does not begin with the tenancy's namespace, {tenancy}/, as the image does"
    if len(parts) not in (2, 3) or not all(parts):
        return f"{user!r} is none of NAMESPACE/USER, NAMESPACE/oracleidentitycloudservice/USER, NAMESPACE/DOMAIN/USER"
    return None
