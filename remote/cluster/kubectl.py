"""kubectl: how it is called for one cluster, and what its standard error means."""

from __future__ import annotations

from dataclasses import dataclass

from remote.cluster.errors import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable


@dataclass(frozen=True, kw_only=True)
class Kubectl:
    """How kubectl is called for one cluster and namespace. None: kubectl's own default applies."""

    namespace: str
    context: str | None = None
    kubeconfig: str | None = None
    program: str = "kubectl"

    def argv(self, *arguments: str) -> tuple[str, ...]:
        where = [f"--namespace={self.namespace}"]
        if self.context is not None:
            where.append(f"--context={self.context}")
        if self.kubeconfig is not None:
            where.append(f"--kubeconfig={self.kubeconfig}")
        return (self.program, *where, *arguments)


def not_installed(error: Exception) -> Misconfigured:
    """The error for a kubectl that could not be started."""
    return Misconfigured(f"kubectl cannot be started: {error}; install kubectl 1.28 or newer, or put it on PATH")


_SHOWN = 400  # characters of standard error in a message
_LOG_IN = "log in again or renew the kubeconfig, then the same again"
_NETWORK = "see that the VPN or bastion is up, then the same again"
# (what standard error contains, the kind of error or None for the caller's own, what to do); the first that matches.
_RULES: tuple[tuple[str, type[ClusterError] | None, str], ...] = (
    (
        "being terminated",
        Unreachable,
        "wait until the namespace is gone, then the same again; where its pods do not go, delete its Jobs "
        "(`kubectl delete jobs --all`): a pod of an index waits for its replacement, which can no longer be made",
    ),
    (
        "Apply failed with",
        Conflict,
        "somebody else manages that field: `inv deploy --take-over` takes it, or leave it to them",
    ),
    (
        "timed out waiting for the condition",
        None,
        "a pod on a dead node never ends by itself: `kubectl delete pod --force` it",
    ),
    ("exceeded quota", None, "free what uses the quota, or ask for more"),
    (
        "(Forbidden)",
        Forbidden,
        "ask the cluster's administrator for that right (manifests/base/access.yaml has the role; to run trials: "
        "get and list on pods, get and create on pods/exec)",
    ),
    ("Unauthorized", Misconfigured, _LOG_IN),
    ("provide credentials", Misconfigured, _LOG_IN),
    ("getting credentials", Misconfigured, "the kubeconfig's credential program fails: log in again"),
    ("error: context", Misconfigured, "see `kubectl config get-contexts`, then set cluster.context"),
    ("error: stat ", Misconfigured, "see cluster.kubeconfig"),
    (
        "no matches for kind",
        Misconfigured,
        "that controller is not installed in this cluster: choose another cluster.overlay",
    ),
    ("error dialing backend", Unreachable, "the API server does not reach that node: `inv nodes`"),
    ("x509:", Misconfigured, "the kubeconfig's authority is not the server's: renew the kubeconfig"),
    ("connection refused", Unreachable, "see that the cluster is up, then the same again"),
    ("no such host", Unreachable, "see that name and network, then the same again"),
    ("i/o timeout", Unreachable, _NETWORK),
    ("deadline exceeded", Unreachable, _NETWORK),
    ("EOF", Unreachable, "the same again"),
)
_NOISE = ("memcache.go", "Unknown stream id", "Defaulted container")


def refusal(doing: str, stderr: str, otherwise: type[ClusterError] = ClusterError) -> ClusterError:
    """What kubectl's standard error means, as one line with what to do; `otherwise` where no rule says which kind."""
    lines = [line.strip() for line in stderr.splitlines() if not any(noise in line for noise in _NOISE)]
    text = " ".join(filter(None, lines)) or "it said nothing"
    for sign, kind, remedy in _RULES:
        if sign in text:
            return (kind or otherwise)(f"{doing}: {text[:_SHOWN]}; {remedy}")
    return otherwise(f"{doing}: {text[:_SHOWN]}")
