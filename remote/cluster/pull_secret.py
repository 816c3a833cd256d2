"""Kubernetes Secrets with a registry's login or a server's key, made in memory and sent on standard input.

Server-side apply, unlike client-side apply, leaves no copy of them in an annotation.
"""

import base64
import json
from typing import Any

from remote.cluster.labels import OWNER, OWNER_LABEL, PART_OF_LABEL
from remote.hosts.command import Secret


def pull_secret(
    *, name: str, namespace: str, registry: str, user: str, password: Secret
) -> tuple[dict[str, Any], tuple[Secret, ...]]:
    """Make (the Secret object, every encoding of the password in it, to be masked)."""
    auth = base64.b64encode(f"{user}:{password.reveal()}".encode()).decode()
    login = {"username": user, "password": password.reveal(), "auth": auth}
    config = base64.b64encode(json.dumps({"auths": {registry: login}}).encode()).decode()
    secret = _secret(name, namespace, "kubernetes.io/dockerconfigjson", {".dockerconfigjson": config})
    return secret, (password, Secret(auth), Secret(config))


def key_secret(*, name: str, namespace: str, key: Secret) -> tuple[dict[str, Any], tuple[Secret, ...]]:
    """Make (a Secret object with the field `key`, every encoding of the key in it, to be masked)."""
    encoded = base64.b64encode(key.reveal().encode()).decode()
    return _secret(name, namespace, "Opaque", {"key": encoded}), (key, Secret(encoded))


def _secret(name: str, namespace: str, kind: str, data: dict[str, str]) -> dict[str, Any]:
    labels = {PART_OF_LABEL: OWNER, OWNER_LABEL: OWNER}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}
