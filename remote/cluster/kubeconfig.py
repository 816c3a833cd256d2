"""Which cluster is meant: kubeconfig, context, namespace, resolved once and said aloud by every task.

The usual places are the client's own: the setting, then KUBECONFIG, then ~/.kube/config; the setting, then the file's
current context. Reading it starts nothing; a credential plugin (`oci ce cluster generate-token`) is run on connecting.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.cluster.errors import Misconfigured

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_PRODUCTION = re.compile(r"(?<![a-z])(prod|production|prd|live)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One context of a kubeconfig, and the namespace that is meant."""

    context: str
    cluster: str
    user: str
    namespace: str
    kubeconfig: str | None = None
    server: str = ""

    @property
    def looks_like_production(self) -> bool:
        """Whether context, cluster or namespace is named so; a name is all there is to go by."""
        return any(_PRODUCTION.search(name) for name in (self.context, self.cluster, self.namespace))

    def __str__(self) -> str:
        where = f"cluster {self.cluster} at {self.server}, user {self.user}"
        return f"context {self.context} ({where}), namespace {self.namespace}"


def resolve(*, kubeconfig: str | None, context: str | None, namespace: str) -> Target:
    """The context that is meant. Raises Misconfigured, naming those there are."""
    where = kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
    known = _read(where)
    chosen = context or known.current
    if not chosen or chosen not in known.contexts:
        names = ", ".join(sorted(known.contexts)) or "none"
        what = f"there is no context {chosen!r}" if chosen else "no context is current"
        raise Misconfigured(f"kubeconfig {where}: {what}; there are {names}; set cluster.context")
    entry = known.contexts[chosen]
    cluster, user = str(entry.get("cluster", "?")), str(entry.get("user", "?"))
    return Target(
        context=chosen,
        cluster=cluster,
        user=user,
        namespace=namespace,
        kubeconfig=kubeconfig,
        server=str(known.clusters.get(cluster, {}).get("server", "?")),
    )


@dataclass(kw_only=True)
class _Kubeconfig:
    contexts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    clusters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    current: str | None = None


def _read(where: str) -> _Kubeconfig:
    """The files of KUBECONFIG as kubectl merges them: the first one that names a thing wins."""
    import yaml

    found, count = _Kubeconfig(), 0
    for name in filter(None, where.split(os.pathsep)):
        try:
            said = yaml.safe_load(Path(name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise Misconfigured(f"kubeconfig {name}: cannot be read: {_one_line(error)}; mend it") from None
        if not isinstance(said, dict):
            raise Misconfigured(f"kubeconfig {name}: holds no kubeconfig; mend it")
        count += 1
        try:
            for into, plural, one in ((found.contexts, "contexts", "context"), (found.clusters, "clusters", "cluster")):
                for entry in said.get(plural) or []:
                    into.setdefault(str(entry["name"]), dict(entry.get(one) or {}))
            found.current = found.current or said.get("current-context")
        except (KeyError, TypeError, ValueError) as error:
            raise Misconfigured(f"kubeconfig {name}: holds no kubeconfig: {_one_line(error)}; mend it") from None
    if not count:
        raise Misconfigured(
            f"kubeconfig {where}: not there; make one (`oci ce cluster create-kubeconfig ...`), "
            "or set cluster.kubeconfig or KUBECONFIG to yours"
        )
    return found


def connect(target: Target) -> ApiClient:
    """A client for the target; runs its credential plugin. Raises Misconfigured when there are no credentials."""
    from kubernetes.client import ApiClient, Configuration
    from kubernetes.config import ConfigException, load_kube_config

    configuration = Configuration()
    configuration.retries = False  # urllib3 would ask a dead server four times
    with _Overheard() as overheard:
        try:
            load_kube_config(target.kubeconfig, target.context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        except (ConfigException, OSError, ValueError) as error:
            raise Misconfigured(f"context {target.context}: {_one_line(error)}; mend the kubeconfig") from None
    if overheard.said and not configuration.api_key and not configuration.cert_file:
        # The client logs a failed credential plugin and goes on as nobody, which the server answers with 401 or 403.
        raise Misconfigured(
            f"context {target.context}: no credentials: {_one_line(overheard.said[-1])}; log in again, then the same"
        )
    return ApiClient(configuration)


class _Overheard(logging.Handler):
    """Takes what the client logs while a kubeconfig is loaded, instead of letting it reach the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())

    def __enter__(self) -> _Overheard:
        root = logging.getLogger()
        self._before, root.handlers = root.handlers, [self]
        return self

    def __exit__(self, *_: Any) -> None:
        logging.getLogger().handlers = self._before


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
