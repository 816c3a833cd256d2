"""Target cluster: kubeconfig, context and namespace, resolved once by kubectl and printed by every task.

The kubeconfig is the setting's, else KUBECONFIG's, else ~/.kube/config; the context is the setting's, else the file's
current one. `resolve` starts kubectl once (0.05 s), so that the kubeconfig means what kubectl says it means. `connect`
runs the credential plugin (`oci ce cluster generate-token`), for a limited time: the kubernetes client would wait for
it indefinitely.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging.handlers import BufferingHandler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlsplit

from bench.records import schema
from bench.records.scratch_folders import scratch_folder
from remote.hosts.base import CommandTimedOut, Completed, TooMuchOutput, collapse_whitespace, is_loopback
from remote.hosts.command import mask_opaque
from remote.hosts.local import expand_user
from remote.hosts.pods.kubectl import Kubectl, Misconfigured, Unreachable, not_installed_error
from remote.hosts.process import BoundedOutput, CannotStart, ProcessLimits, pump, run_program
from remote.providers import GENERIC, Provider

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

_HEADER_NAME = "!#$&'*+-.^_`|~"  # that a name may hold, like letters and digits (RFC 9110)
CREDENTIAL_TIMEOUT_SEC = 120.0  # kubectl's own timeout here; the operator may have to log in meanwhile
_PRODUCTION = re.compile(r"(?<![a-z])(prod|production|prd|live)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Context of a kubeconfig and namespace that the tasks use.

    `config` is the kubeconfig of this context only, with its credentials.
    """

    context: str
    cluster: str
    user: str
    namespace: str
    kubeconfig: str | None = None
    server: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def cluster_config(self) -> Mapping[str, Any]:
        return self._first("clusters", "cluster")

    @property
    def user_config(self) -> Mapping[str, Any]:
        return self._first("users", "user")

    def _first(self, plural: str, singular: str) -> Mapping[str, Any]:
        entries = self.config.get(plural) or [{}]
        return cast("Mapping[str, Any]", entries[0].get(singular) or {})

    @property
    def looks_like_production(self) -> bool:
        """Return True if the name of context, cluster or namespace suggests production."""
        return any(_PRODUCTION.search(name) for name in (self.context, self.cluster, self.namespace))

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
    for file in files:
        if not file.is_file():  # a pipe, such as a shell's `<(program)`
            raise Misconfigured(
                f"kubeconfig {file}: cannot be read: not a regular file",
                remedy="use a regular file, which kubectl reads for each command",
            )
    kubectl = Kubectl(namespace=namespace, context=context, kubeconfig=kubeconfig)
    view = _run(kubectl.argv("config", "view", "--raw", "--minify", "--flatten", "--output=json"))
    if view.exit_code:
        listed = _run(kubectl.argv("config", "get-contexts", "--output=name"))
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
    for entry in config.get("users") or ():
        _make_absolute(entry["user"], files)
    return Target(
        context=str(chosen["name"]),
        cluster=str(chosen["context"].get("cluster", "?")),
        user=str(chosen["context"].get("user", "?")),
        namespace=namespace,
        kubeconfig=kubeconfig,
        server=str(config["clusters"][0]["cluster"].get("server", "?")),
        config=config,
    )


def _run(argv: Sequence[str]) -> Completed:
    try:
        return run_program(argv, label="kubectl config", timeout_sec=CREDENTIAL_TIMEOUT_SEC)
    except CannotStart as error:
        raise not_installed_error(error) from error
    except (CommandTimedOut, TooMuchOutput) as error:
        raise Misconfigured(str(error), remedy="run `kubectl config view` by hand") from error


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
    from kubernetes.config import ConfigException, exec_provider, kube_config, load_kube_config_from_dict
    from urllib3 import disable_warnings
    from urllib3.exceptions import InsecureRequestWarning

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
        load_kube_config_from_dict(  # type: ignore[no-untyped-call]
            dict(target.config), client_configuration=configuration, temp_file_path=str(key_folder())
        )
        if "proxy-url" not in target.cluster_config and is_loopback(urlsplit(target.server).hostname):
            configuration.proxy = None  # like kubectl; over plain HTTP a proxy would read the token
        if not configuration.verify_ssl:
            disable_warnings(InsecureRequestWarning)  # for each request; `Target` says it once
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


def impersonation_headers(target: Target) -> list[tuple[str, str]]:
    """Return the headers of the kubeconfig's `as`, `as-uid`, `as-groups` and `as-user-extra`, like client-go.

    Raises Misconfigured like kubectl if there is no `as`.
    """
    user = target.user_config
    headers = [("Impersonate-Uid", user["as-uid"])] if user.get("as-uid") else []
    headers += [("Impersonate-Group", group) for group in user.get("as-groups") or ()]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe=_HEADER_NAME)}", value)
        for key, values in (user.get("as-user-extra") or {}).items()
        for value in values
    ]
    if user.get("as"):
        return [("Impersonate-User", user["as"]), *headers]
    if headers:
        raise Misconfigured(
            f"context {target.context}: user {target.user} impersonates groups but no user",
            remedy="add `as` to the user in the kubeconfig",
        )
    return []


def _check_encrypted(target: Target, server: str) -> None:
    """Raise Misconfigured if credentials would travel over plain HTTP, where kubectl omits them."""
    parts = urlsplit(server)
    if parts.scheme != "https" and not is_loopback(parts.hostname):
        raise Misconfigured(
            f"context {target.context}: the credentials of {target.user} would travel over plain HTTP to {server}",
            remedy="set the cluster's server to https://... in the kubeconfig",
        )


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
