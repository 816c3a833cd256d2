"""Target cluster: kubeconfig, context and namespace, resolved once by kubectl and printed by every task.

The kubeconfig is the setting's, else KUBECONFIG's, else ~/.kube/config; the context is the setting's, else the file's
current one. `resolve` starts kubectl once (0.05 s), so that the kubeconfig means what kubectl says it means.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bench.records import schema
from remote.hosts.command import mask_opaque
from remote.hosts.host_protocol import collapse_whitespace
from remote.hosts.local import expand_user
from remote.hosts.pods.kubectl import Kubectl, Misconfigured, run_kubectl
from remote.providers import GENERIC, Provider

CREDENTIAL_TIMEOUT_SEC = 120.0  # kubectl's own timeout here; the operator may have to log in meanwhile


@dataclass(frozen=True, kw_only=True)
class Target:
    """Context of a kubeconfig and namespace that the tasks use.

    `config` is the kubeconfig of this context only, with its credentials; the others are its one cluster and user.
    """

    context: str
    cluster: str
    user: str
    namespace: str
    kubeconfig: str | None = None
    server: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    cluster_config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    user_config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        unverified = " (its certificate is not verified)" if self.cluster_config.get("insecure-skip-tls-verify") else ""
        location = f"cluster {self.cluster} at {self.server}{unverified}, user {self.user}"
        return f"context {self.context} ({location}), namespace {self.namespace}"


def resolve(*, kubeconfig: str | None, context: str | None, namespace: str, provider: Provider = GENERIC) -> Target:
    """Have kubectl resolve the context to use. Raises Misconfigured, with the existing contexts."""
    paths = kubeconfig or os.environ.get("KUBECONFIG") or str(expand_user("~/.kube/config"))
    files = [Path(name) for name in paths.split(os.pathsep) if name and Path(name).exists()]
    if not files:
        raise Misconfigured(f"kubeconfig {paths}: not found", remedy=provider.texts["kubeconfig"])
    kubectl = Kubectl(namespace=namespace, context=context, kubeconfig=kubeconfig)
    run = partial(run_kubectl, label="kubectl config", timeout_sec=CREDENTIAL_TIMEOUT_SEC)
    view = run(kubectl.argv("config", "view", "--raw", "--minify", "--flatten", "--output=json"))
    if view.exit_code:
        listed = run(kubectl.argv("config", "get-contexts", "--output=name"))
        names = sorted(listed.stdout.decode().split())
        if listed.exit_code or context in names:
            problem = mask_opaque(collapse_whitespace(view.stderr.decode(errors="replace")).removeprefix("error: "))
            raise Misconfigured(f"kubeconfig {paths}: {problem}", remedy="fix the file")
        problem = f"there is no context {context!r}" if context else "no existing context is current"
        raise Misconfigured(
            f"kubeconfig {paths}: {problem}, there are {', '.join(names) or 'none'}", remedy="set cluster.context"
        )
    config = schema.parse_object(view.stdout)
    chosen = config["contexts"][0]
    cluster, user = ((config.get(f"{kind}s") or [{}])[0].get(kind) or {} for kind in ("cluster", "user"))  # null: none
    _make_absolute(user, files)
    return Target(
        context=str(chosen["name"]),
        cluster=str(chosen["context"].get("cluster", "?")),
        user=str(chosen["context"].get("user", "?")),
        namespace=namespace,
        kubeconfig=kubeconfig,
        server=str(cluster.get("server", "?")),
        config=config,
        cluster_config=cluster,
        user_config=user,
    )


def _make_absolute(user: dict[str, Any], files: Sequence[Path]) -> None:
    """Make the paths absolute that kubectl prints as they are in the file. Raises Misconfigured if ambiguous."""
    program = user.get("exec") or {}
    for entry, key in ((user, "tokenFile"), (program, "command")):
        value = entry.get(key, "")
        if not value or Path(value).is_absolute() or (entry is program and os.sep not in value):
            continue
        folders = {file.absolute().parent for file in files}
        if len(folders) > 1:
            raise Misconfigured(f"several kubeconfigs and a relative {key}: {value}", remedy="write an absolute path")
        entry[key] = str(folders.pop() / value)
