"""Which cluster is meant: kubeconfig, context and namespace, resolved once and printed by every task.

The kubeconfig is the setting's, else KUBECONFIG's, else ~/.kube/config; the context is the setting's, else the file's
current one. Reading starts nothing; a credential plugin (`oci ce cluster generate-token`) is run by `connect`.
"""

import atexit
import contextlib
import datetime
import errno
import functools
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from bench.records.atomic_files import read_regular
from remote.cluster.credentials import limit_programs
from remote.cluster.errors import Misconfigured, Unreachable
from remote.hosts.host import is_loopback, one_line
from remote.hosts.local import expanded
from remote.hosts.tempdirs import scratch_folder

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_MOST_BYTES = 16 << 20
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
    where = kubeconfig or os.environ.get("KUBECONFIG") or str(expanded("~/.kube/config"))
    contexts, clusters, current = _read(where)
    chosen = context or current
    if not chosen or chosen not in contexts:
        names = ", ".join(sorted(contexts)) or "none"
        what = f"there is no context {chosen!r}" if chosen else "no context is current"
        raise Misconfigured(f"kubeconfig {where}: {what}; there are {names}; set cluster.context")
    cluster = str(contexts[chosen].get("cluster", "?"))
    return Target(
        context=chosen,
        cluster=cluster,
        user=str(contexts[chosen].get("user", "?")),
        namespace=namespace,
        kubeconfig=kubeconfig,
        server=str(clusters.get(cluster, {}).get("server", "?")),
    )


def _read(where: str) -> tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]], str | None]:
    """(contexts, clusters, current context) of KUBECONFIG's files, merged as kubectl does: the first one wins."""
    contexts: dict[str, Mapping[str, Any]] = {}
    clusters: dict[str, Mapping[str, Any]] = {}
    current, is_there = None, False
    for name in filter(None, where.split(os.pathsep)):
        try:
            document = yaml.safe_load(read_regular(Path(name), most_bytes=_MOST_BYTES).decode("utf-8"))
        except FileNotFoundError:
            continue
        except OSError as error:
            is_none = error.errno == errno.EINVAL  # a pipe, such as a shell's `<(program)`
            remedy = "name a file, which kubectl can read anew for each of its commands" if is_none else "mend it"
            raise Misconfigured(f"kubeconfig {name}: cannot be read: {error.strerror or error}; {remedy}") from None
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise Misconfigured(f"kubeconfig {name}: cannot be read: {one_line(error)}; mend it") from None
        if not isinstance(document, dict):
            raise Misconfigured(f"kubeconfig {name}: holds no kubeconfig; mend it")
        is_there = True
        try:
            for into, plural, one in ((contexts, "contexts", "context"), (clusters, "clusters", "cluster")):
                for entry in document.get(plural) or []:
                    into.setdefault(str(entry["name"]), dict(entry.get(one) or {}))
            current = current or str(document.get("current-context") or "")
        except (KeyError, TypeError, ValueError) as error:
            raise Misconfigured(f"kubeconfig {name}: holds no kubeconfig: {one_line(error)}; mend it") from None
    if not is_there:
        raise Misconfigured(
            f"kubeconfig {where}: not there; make one (`oci ce cluster create-kubeconfig ...`), "
            "or set cluster.kubeconfig or KUBECONFIG to yours"
        )
    return contexts, clusters, current


@functools.cache
def _keys_folder() -> Path:
    """Where the client lays a kubeconfig's private keys while this process lives: it can read them from files alone.

    Its own place is the system's for temporary files, where those of a killed process stay for ever.
    """
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder("qlora-fleet-kubeconfig-"))


def connect(target: Target) -> "ApiClient":
    """A client for the target; runs its credential plugin. Raises Misconfigured when there are no credentials, and
    Unreachable where the disk for a kubeconfig's keys is full."""
    from kubernetes.client import ApiClient, Configuration  # 0.2 s to import
    from kubernetes.config import ConfigException, exec_provider, kube_config, load_kube_config

    limit_programs(exec_provider, kube_config)
    # Its own five minutes are longer than OKE's tokens live: the program would run before every single request.
    kube_config.EXPIRY_SKEW_PREVENTION_DELAY = datetime.timedelta(minutes=1)
    configuration = Configuration()
    configuration.retries = False  # urllib3 would ask a dead server four times
    logged = BufferingHandler(sys.maxsize)
    logged.setLevel(logging.ERROR)
    root = logging.getLogger()
    # Taken, not shown: what the client logs while it loads a kubeconfig must not reach the terminal.
    before, root.handlers = root.handlers, [logged]
    try:
        load_kube_config(  # type: ignore[no-untyped-call]
            target.kubeconfig,
            target.context,
            client_configuration=configuration,
            temp_file_path=str(_keys_folder()),
        )
        if not str(configuration.host).startswith("https://"):  # this machine itself: a proxy would read the token
            configuration.proxy = None
        client = ApiClient(configuration)
    except (ConfigException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # of a file of its own
            raise Unreachable(f"{_keys_folder()}: no space left on its disk; free some, then the same again") from None
        raise Misconfigured(f"context {target.context}: {one_line(error)}; mend the kubeconfig") from None
    except (AttributeError, TypeError):  # a number where the client expects text; its message may hold the value
        raise Misconfigured(
            f"context {target.context}: a value is no text; put quotes around it in the kubeconfig"
        ) from None
    finally:
        root.handlers = before
    if logged.buffer and not configuration.api_key and not configuration.cert_file:
        # The client logs a failed credential plugin and goes on as nobody, which the server answers with 401 or 403.
        raise Misconfigured(
            f"context {target.context}: no credentials: {one_line(logged.buffer[-1].getMessage())}; log in again, "
            "then the same"
        )
    if configuration.api_key:
        _refuse_in_clear(target, str(configuration.host))
    return client


def _refuse_in_clear(target: Target, server: str) -> None:
    """Raises Misconfigured where credentials would travel over plain HTTP, for which kubectl leaves them out."""
    parts = urlsplit(server)
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise Misconfigured(
            f"context {target.context}: the credentials of {target.user} would travel over plain HTTP to {server}; set "
            "the cluster's server to https://... in the kubeconfig"
        )
