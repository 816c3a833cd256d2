"""Target cluster: kubeconfig, context and namespace, resolved once and printed by every task.

The kubeconfig is the setting's, else KUBECONFIG's, else ~/.kube/config; the context is the setting's, else the file's
current one. `resolve` runs no program; `connect` runs the credential plugin (`oci ce cluster generate-token`), for a
limited time: the kubernetes client would wait for it indefinitely.
"""

import atexit
import contextlib
import datetime
import errno
import functools
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import yaml

from bench.records.atomic_files import read_regular
from bench.records.scratch_folders import scratch_folder
from remote.hosts.base import CommandTimedOut, TooMuchOutput, collapse_whitespace, is_loopback
from remote.hosts.command import mask_opaque
from remote.hosts.local import expand_user
from remote.hosts.pods.kubectl import Misconfigured, Unreachable
from remote.hosts.process import BoundedOutput, ProcessLimits, pump
from remote.providers import GENERIC, Provider

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_MAX_KUBECONFIG_BYTES = 16 << 20
_PRODUCTION = re.compile(r"(?<![a-z])(prod|production|prd|live)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Context of a kubeconfig and namespace that the tasks use."""

    context: str
    cluster: str
    user: str
    namespace: str
    kubeconfig: str | None = None
    server: str = ""

    @property
    def looks_like_production(self) -> bool:
        """Return True if the name of context, cluster or namespace suggests production."""
        return any(_PRODUCTION.search(name) for name in (self.context, self.cluster, self.namespace))

    def __str__(self) -> str:
        location = f"cluster {self.cluster} at {self.server}, user {self.user}"
        return f"context {self.context} ({location}), namespace {self.namespace}"


def resolve(*, kubeconfig: str | None, context: str | None, namespace: str, provider: Provider = GENERIC) -> Target:
    """Resolve the context to use. Raises Misconfigured, with the existing contexts."""
    paths = kubeconfig or os.environ.get("KUBECONFIG") or str(expand_user("~/.kube/config"))
    contexts, clusters, current = _read(paths, provider)
    chosen = context or current
    if not chosen or chosen not in contexts:
        names = ", ".join(sorted(contexts)) or "none"
        problem = f"there is no context {chosen!r}" if chosen else "no context is current"
        raise Misconfigured(f"kubeconfig {paths}: {problem}, there are {names}", remedy="set cluster.context")
    cluster = str(contexts[chosen].get("cluster", "?"))
    return Target(
        context=chosen,
        cluster=cluster,
        user=str(contexts[chosen].get("user", "?")),
        namespace=namespace,
        kubeconfig=kubeconfig,
        server=str(clusters.get(cluster, {}).get("server", "?")),
    )


def _read(
    paths: str, provider: Provider
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]], str | None]:
    """Read (contexts, clusters, current context) of KUBECONFIG's files; like in kubectl, the first file wins."""
    contexts: dict[str, Mapping[str, Any]] = {}
    clusters: dict[str, Mapping[str, Any]] = {}
    current, has_file = None, False
    for name in filter(None, paths.split(os.pathsep)):
        try:
            document = yaml.safe_load(read_regular(Path(name), max_bytes=_MAX_KUBECONFIG_BYTES).decode("utf-8"))
        except FileNotFoundError:
            continue
        except OSError as error:
            is_not_regular = error.errno == errno.EINVAL  # a pipe, such as a shell's `<(program)`
            remedy = "use a regular file, which kubectl reads for each command" if is_not_regular else "fix the file"
            raise Misconfigured(
                f"kubeconfig {name}: cannot be read: {error.strerror or error}", remedy=remedy
            ) from error
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            raise Misconfigured(
                f"kubeconfig {name}: cannot be read: {collapse_whitespace(error)}", remedy="fix the file"
            ) from error
        if not isinstance(document, dict):
            raise Misconfigured(f"kubeconfig {name}: not a kubeconfig", remedy="fix the file")
        has_file = True
        try:
            for entries, plural, singular in ((contexts, "contexts", "context"), (clusters, "clusters", "cluster")):
                for entry in document.get(plural) or []:
                    entries.setdefault(str(entry["name"]), dict(entry.get(singular) or {}))
            current = current or str(document.get("current-context") or "")
        except (KeyError, TypeError, ValueError) as error:
            raise Misconfigured(
                f"kubeconfig {name}: not a kubeconfig: {collapse_whitespace(error)}", remedy="fix the file"
            ) from error
    if not has_file:
        raise Misconfigured(f"kubeconfig {paths}: not found", remedy=f"{provider.texts['kubeconfig']}")
    return contexts, clusters, current


@functools.cache
def key_folder() -> Path:
    """Create the folder for a kubeconfig's private keys, which the client can read only from files.

    It is removed at exit. The client's own choice, the system's temporary folder, would keep a killed process's keys.
    """
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(scratch_folder("qlora-fleet-kubeconfig-"))


def connect(target: Target) -> "ApiClient":
    """Make a client for the target; runs its credential plugin.

    Raises Misconfigured if there are no credentials, and Unreachable if the disk for a kubeconfig's keys is full.
    """
    from kubernetes.client import ApiClient, Configuration  # 0.2 s to import
    from kubernetes.config import ConfigException, exec_provider, kube_config, load_kube_config

    limit_credential_programs(exec_provider, kube_config)
    # The default of five minutes exceeds the lifetime of OKE's tokens: the program would run before every request.
    kube_config.EXPIRY_SKEW_PREVENTION_DELAY = datetime.timedelta(minutes=1)
    configuration = Configuration()
    configuration.retries = False  # urllib3 would try a dead server four times
    log_buffer = BufferingHandler(sys.maxsize)
    log_buffer.setLevel(logging.ERROR)
    root = logging.getLogger()
    # Buffered: the client's log lines during loading must not reach the terminal.
    previous_handlers, root.handlers = root.handlers, [log_buffer]
    try:
        load_kube_config(  # type: ignore[no-untyped-call]
            target.kubeconfig,
            target.context,
            client_configuration=configuration,
            temp_file_path=str(key_folder()),
        )
        if not str(configuration.host).startswith("https://"):  # this machine: a proxy would read the token
            configuration.proxy = None
        client = ApiClient(configuration)
    except (ConfigException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # writing a key file
            raise Unreachable(f"{key_folder()}: no space left on the disk", remedy="free some, then retry") from error
        raise Misconfigured(
            f"context {target.context}: {collapse_whitespace(error)}", remedy="fix the kubeconfig"
        ) from error
    except (AttributeError, TypeError) as error:  # a number instead of text; the client's message may hold the value
        raise Misconfigured(
            f"context {target.context}: a value is not text", remedy="put quotes around it in the kubeconfig"
        ) from error
    finally:
        root.handlers = previous_handlers
    if log_buffer.buffer and not configuration.api_key and not configuration.cert_file:
        # The client only logs a failed credential plugin and continues without credentials, for a later 401 or 403.
        raise Misconfigured(
            f"context {target.context}: no credentials: {collapse_whitespace(log_buffer.buffer[-1].getMessage())}",
            remedy="log in again, then retry",
        )
    if configuration.api_key:
        _check_encrypted(target, str(configuration.host))
    return client


def _check_encrypted(target: Target, server: str) -> None:
    """Raise Misconfigured if credentials would travel over plain HTTP, where kubectl omits them."""
    parts = urlsplit(server)
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise Misconfigured(
            f"context {target.context}: the credentials of {target.user} would travel over plain HTTP to {server}",
            remedy="set the cluster's server to https://... in the kubeconfig",
        )


CREDENTIAL_TIMEOUT_SEC = 120.0  # kubectl's own timeout here; the operator may have to log in meanwhile
_TERMINATE_SEC = 2.0


class _LimitedCredentialProgram(subprocess.Popen[str]):
    """A credential program with a time limit. Its descendants are killed with it.

    It shares our terminal, where it may prompt for a password, so it has no process group of its own; Linux lists its
    children instead. Not covered: other systems, and orphans of the program.
    """

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Like `Popen.communicate`. Raises OSError if the program times out or prints too much."""
        program = f"the kubeconfig's credential program {self.args[0] if isinstance(self.args, list) else self.args!s}"
        limits, out, err = (
            ProcessLimits(program, timeout or CREDENTIAL_TIMEOUT_SEC, None),
            BoundedOutput(program),
            BoundedOutput(program),
        )
        try:
            process = cast("subprocess.Popen[bytes]", self)
            pump(process, (input or "").encode(), {process.stdout: out.append, process.stderr: err.append}, limits)
            self.wait(limits.remaining_sec())
        except (CommandTimedOut, subprocess.TimeoutExpired) as error:
            self._kill_tree()
            raise TimeoutError(
                f"{program} timed out after {limits.timeout_sec:g} s; run it by hand to see what it waits for"
            ) from error
        except TooMuchOutput as error:
            self._kill_tree()
            raise OSError(str(error)) from error
        return out.content.decode(errors="replace"), mask_opaque(err.content.decode(errors="replace"))

    def _kill_tree(self) -> None:
        descendants = _open_descendants(self.pid)
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(_TERMINATE_SEC)
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel
            self.wait(_TERMINATE_SEC)
        for handle in descendants:
            with contextlib.suppress(OSError):  # ended, or another user's because of sudo
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        for stream in (self.stdout, self.stderr):  # not read to the end: a descendant may hold them open
            if stream is not None:
                stream.close()


def _open_descendants(root: int) -> list[int]:
    """Open a pidfd of every descendant; none if the kernel does not list them. A pidfd survives reuse of the pid."""
    handles, todo = list[int](), [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):  # ended meanwhile
            if pid != root:
                handles.append(os.pidfd_open(pid))
            for listed in Path(f"/proc/{pid}/task").glob("*/children"):
                todo += map(int, listed.read_text().split())
    return handles


def limit_credential_programs(*modules: ModuleType) -> None:
    """Make the client's `modules` limit each credential program, also when they renew a token later."""
    for module in modules:
        vars(module)["subprocess"] = SimpleNamespace(Popen=_LimitedCredentialProgram, PIPE=subprocess.PIPE)
