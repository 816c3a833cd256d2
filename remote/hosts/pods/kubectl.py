"""Command line of kubectl for one cluster, and exceptions about a cluster.

A pod is a host, so each exception is also a HostError. To the fleet, `PermissionDenied` means that no host will accept
this operator, `HostUnreachable` that a retry may help.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from remote.hosts.command import mask_opaque
from remote.hosts.host_protocol import (
    CommandTimedOut,
    Completed,
    HostError,
    HostUnreachable,
    PermissionDenied,
    TooMuchOutput,
)
from remote.hosts.local_program import CannotStart, run_program


class ClusterError(HostError):
    """Error about the cluster; the message has the cause and the remedy."""


class Misconfigured(ClusterError, PermissionDenied):
    """Unusable kubeconfig, context, credentials or kubectl."""


class Forbidden(ClusterError, PermissionDenied):
    """Missing permission of an account whose credentials are valid."""


class PodUnusable(ClusterError):
    """Pod whose image lacks the program of every command. A retry does not help; another pod may have it."""


class Unreachable(ClusterError, HostUnreachable):
    """API server that does not answer, or a broken connection. Worth a retry."""


class ObjectNotFound(ClusterError):
    """Absent object or absent kind."""


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """Call of kubectl for one cluster and namespace. None: kubectl's default applies.

    `cached_kubeconfig` returns the path of a kubeconfig that replaces this one for now, or None.
    """

    namespace: str
    context: str | None = None
    kubeconfig: str | None = None
    program: str = "kubectl"
    cached_kubeconfig: Callable[[], str | None] | None = None

    def argv(self, *arguments: str) -> tuple[str, ...]:
        flags = [f"--namespace={self.namespace}"]
        if self.context is not None:
            flags.append(f"--context={self.context}")
        cached = None if self.cached_kubeconfig is None else self.cached_kubeconfig()
        if (kubeconfig := cached or self.kubeconfig) is not None:
            flags.append(f"--kubeconfig={kubeconfig}")
        return (self.program, *flags, *arguments)


def run_kubectl(argv: tuple[str, ...], **options: Any) -> Completed:
    """Run kubectl's `argv` with the options of `run_program`. Raises ClusterError if that cannot be."""
    try:
        return run_program(argv, **options)
    except CannotStart as error:
        raise not_installed_error(error) from error
    except CommandTimedOut as error:
        raise Unreachable(str(error), remedy="retry") from error
    except TooMuchOutput as error:
        raise ClusterError(str(error)) from error


def not_installed_error(error: Exception) -> Misconfigured:
    """Make the error for a kubectl that could not be started."""
    return Misconfigured(
        f"kubectl cannot be started: {error}", remedy="install kubectl 1.28 or newer, or put it on PATH"
    )


_MAX_STDERR_CHARS = 400
LOG_IN = "log in again or renew the kubeconfig"
CHECK_NETWORK = "check that the VPN or bastion is up, then retry"


class _KubectlErrorRule(NamedTuple):
    """Texts in standard error, the exception for any of them (None: the caller's), and the remedy."""

    substrings: tuple[str, ...]
    kind: type[ClusterError] | None
    remedy: str


# The message of a failed credential program. Its own output comes first, and may hold any text of the rules below.
_NO_CREDENTIALS = "getting credentials"
_RIGHTS = "manifests/base/access.yaml has the role; to run trials: get and list on pods, get and create on pods/exec"
_TERMINATING = (
    "wait until the namespace is gone, then retry; if its pods stay, delete its Jobs (`kubectl delete jobs --all`): a "
    "pod of an index waits for its replacement, which can no longer be created"
)
_TIMEOUTS = ("i/o timeout", "deadline exceeded", "connection reset by peer", "handshake timeout")
_BUSY = (
    *("(TooManyRequests)", "(ServiceUnavailable)", "(ServerTimeout)", "(Timeout)", "etcdserver: ", "(Conflict)"),
    "unable to handle the request",  # a 503 during discovery, which kubectl prints without its reason
)
OTHER_AUTHORITY = "the kubeconfig has another certificate authority than the server: renew the kubeconfig"
_OFF = "if a node is off, its pods stay: `inv nodes` has the command"
_RULES = tuple(
    _KubectlErrorRule(*rule)
    for rule in (
        ((_NO_CREDENTIALS,), Misconfigured, f"the kubeconfig's credential program failed: {LOG_IN}"),
        (("being terminated",), Unreachable, _TERMINATING),
        (("timed out waiting for the condition",), None, _OFF),
        (("exceeded quota",), None, "free some of the quota, or ask for more"),
        (("(Forbidden)",), Forbidden, f"ask the cluster's administrator for that permission ({_RIGHTS})"),
        (("Unauthorized", "provide credentials"), Misconfigured, LOG_IN),
        (("error: context",), Misconfigured, "see `kubectl config get-contexts`, then set cluster.context"),
        (("error: stat ",), Misconfigured, "check cluster.kubeconfig"),
        (("no matches for kind",), Misconfigured, "its controller is not installed: choose another cluster.overlay"),
        (("error dialing backend",), Unreachable, "the API server does not reach that node: `inv nodes`"),
        (("x509:",), Misconfigured, OTHER_AUTHORITY),
        (("connection refused",), Unreachable, "check that the cluster is up, then retry"),
        (("no such host",), Unreachable, "check that name and the network, then retry"),
        (_TIMEOUTS, Unreachable, CHECK_NETWORK),
        (("EOF",), Unreachable, "retry"),
        (_BUSY, Unreachable, "the API server is busy or restarts: retry"),
    )
)
_NOISE = ("memcache.go", "Unknown stream id", "Defaulted container")


def to_cluster_error(action: str, stderr: str, default: type[ClusterError] = ClusterError) -> ClusterError:
    """Convert kubectl's standard error to an exception with a remedy; its class is `default` if no rule matches."""
    lines = [line.strip() for line in stderr.splitlines() if not any(noise in line for noise in _NOISE)]
    if any(_NO_CREDENTIALS in line for line in lines):  # the others are that program's own
        lines = [line if _NO_CREDENTIALS in line else mask_opaque(line) for line in lines]
    lines.sort(key=lambda line: _NO_CREDENTIALS not in line)
    text = " ".join(dict.fromkeys(filter(None, lines))) or "no message"  # kubectl repeats its message with each attempt
    for substrings, kind, remedy in _RULES:
        if any(substring in text for substring in substrings):
            return (kind or default)(f"{action}: {text[:_MAX_STDERR_CHARS]}", remedy=remedy)
    return default(f"{action}: {text[:_MAX_STDERR_CHARS]}")
