"""The pull secret: a registry's login in Kubernetes' form, made in memory and sent on standard input.

Server-side apply leaves no copy of it in an annotation; client-side apply would.
"""

import base64
import json
from typing import Any

from remote.cluster.labels import OWNER, OWNER_LABEL, PART_OF_LABEL
from remote.hosts.command import Secret


def pull_secret(
    *, name: str, namespace: str, registry: str, user: str, password: Secret
) -> tuple[dict[str, Any], tuple[Secret, ...]]:
    """(the Secret object, every encoding of the password in it, none of which may be shown)."""
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
