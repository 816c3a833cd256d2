"""kubectl: how it is called for one cluster, what it reads, and what its standard error means."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

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


class _Quoting(yaml.SafeDumper):
    """Every text in quotes: PyYAML writes 12e34567 without, which Go's readers take for a number."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def documents(objects: Iterable[Any]) -> str:
    """One YAML document for each object."""
    return yaml.dump_all(objects, Dumper=_Quoting, sort_keys=False)


_SHOWN = 400  # characters of standard error in a message
LOG_IN = "log in again or renew the kubeconfig"
CHECK_NETWORK = "see that the VPN or bastion is up, then the same again"


class _KubectlErrorRule(NamedTuple):
    """What standard error contains, the kind of error (None: the caller's own), and what to do."""

    sign: str
    kind: type[ClusterError] | None
    remedy: str


# Of a credential program that fails. What it writes itself comes before, and may hold any of the signs below.
_NO_CREDENTIALS = "getting credentials"
_RULES = (
    _KubectlErrorRule(_NO_CREDENTIALS, Misconfigured, f"the kubeconfig's credential program fails: {LOG_IN}"),
    _KubectlErrorRule(
        "being terminated",
        Unreachable,
        "wait until the namespace is gone, then the same again; where its pods do not go, delete its Jobs "
        "(`kubectl delete jobs --all`): a pod of an index waits for its replacement, which can no longer be made",
    ),
    _KubectlErrorRule(
        "Apply failed with", Conflict, "another manager owns that field: `inv deploy --take-over` takes it"
    ),
    _KubectlErrorRule("timed out waiting for the condition", None, "on a dead node, `kubectl delete pod --force` it"),
    _KubectlErrorRule("exceeded quota", None, "free what uses the quota, or ask for more"),
    _KubectlErrorRule(
        "(Forbidden)",
        Forbidden,
        "ask the cluster's administrator for that right (manifests/base/access.yaml has the role; to run trials: "
        "get and list on pods, get and create on pods/exec)",
    ),
    _KubectlErrorRule("Unauthorized", Misconfigured, LOG_IN),
    _KubectlErrorRule("provide credentials", Misconfigured, LOG_IN),
    _KubectlErrorRule("error: context", Misconfigured, "see `kubectl config get-contexts`, then set cluster.context"),
    _KubectlErrorRule("error: stat ", Misconfigured, "see cluster.kubeconfig"),
    _KubectlErrorRule(
        "no matches for kind", Misconfigured, "its controller is not installed: choose another cluster.overlay"
    ),
    _KubectlErrorRule("error dialing backend", Unreachable, "the API server does not reach that node: `inv nodes`"),
    _KubectlErrorRule("x509:", Misconfigured, "the kubeconfig's authority is not the server's: renew the kubeconfig"),
    _KubectlErrorRule("connection refused", Unreachable, "see that the cluster is up, then the same again"),
    _KubectlErrorRule("no such host", Unreachable, "see that name and network, then the same again"),
    _KubectlErrorRule("i/o timeout", Unreachable, CHECK_NETWORK),
    _KubectlErrorRule("deadline exceeded", Unreachable, CHECK_NETWORK),
    _KubectlErrorRule("EOF", Unreachable, "the same again"),
)
_NOISE = ("memcache.go", "Unknown stream id", "Defaulted container")


def refusal(doing: str, stderr: str, otherwise: type[ClusterError] = ClusterError) -> ClusterError:
    """What kubectl's standard error means, as one line with what to do; `otherwise` where no rule says which kind."""
    lines = [line.strip() for line in stderr.splitlines() if not any(noise in line for noise in _NOISE)]
    lines.sort(key=lambda line: _NO_CREDENTIALS not in line)
    text = " ".join(dict.fromkeys(filter(None, lines))) or "no message"  # kubectl repeats itself with each new attempt
    for sign, kind, remedy in _RULES:
        if sign in text:
            return (kind or otherwise)(f"{doing}: {text[:_SHOWN]}; {remedy}")
    return otherwise(f"{doing}: {text[:_SHOWN]}")
