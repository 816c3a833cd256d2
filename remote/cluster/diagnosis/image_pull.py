"""Why an image cannot be pulled, from the words of kubelet and containerd.

Some causes look the same: a registry with Basic authentication answers 401 to a wrong password, to a secret that does
not exist and to no secret at all. With token authentication a wrong user or password fails at the token, and a missing
or foreign secret at the manifest.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from remote.cluster.labels import Object
from remote.hosts.host import one_line

PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)

# What another pull secret mends. A kubelet tries again with it after its back-off, which doubles up to 300 s.
LOGIN_CAUSES = ("unauthorized", "forbidden", "wrong-login", "secret-missing")
BACK_OFF_SEC = 330.0

_RENEW = "`inv deploy --renew-secret` with the auth token on standard input makes it again"
_FORMS = (
    "the user name is NAMESPACE/USER, NAMESPACE/oracleidentitycloudservice/USER or NAMESPACE/DOMAIN/USER "
    "(registry.user), the password an auth token and not the console's"
)
_NETWORK = "the nodes need a way to the registry: service gateway or NAT gateway, route and security list"


class _PullErrorRule(NamedTuple):
    """A pattern in the words of kubelet and containerd, and what it means."""

    pattern: str
    cause: str
    what: str
    remedy: str
    may_pass: bool = False  # by itself


_RULES = (
    _PullErrorRule(
        "no space left on device", "disk-full", "the node's disk is full", "grow its boot volume: `inv nodes`"
    ),
    _PullErrorRule(
        "toomanyrequests|429 Too Many Requests", "too-many-requests", "the registry limits requests", "wait", True
    ),
    _PullErrorRule(
        "no match(ing manifest| for platform)", "wrong-architecture", "not for this processor", "build it for amd64"
    ),
    _PullErrorRule(
        "x509: certificate signed by unknown authority",
        "unknown-authority",
        "the node does not trust the registry's certificate",
        "give the nodes that authority's certificate, or use a registry whose certificate they trust",
    ),
    _PullErrorRule(
        r"x509: certificate is valid for (?P<names>.+), not (?P<host>\S+)",
        "certificate-name",
        "the registry's certificate is for another name",
        "write the image's host as in the certificate",
    ),
    _PullErrorRule(
        "x509: certificate has expired",
        "certificate-expired",
        "the registry's certificate has expired, or the node's clock is wrong",
        "renew it, or set the clock",
    ),
    _PullErrorRule(
        "server gave HTTP response to HTTPS client",
        "plain-http",
        "the registry speaks HTTP without TLS",
        "give it a certificate; containerd refuses plain HTTP",
    ),
    _PullErrorRule(
        r"no such host|server misbehaving|lookup \S+ on \S+: .*(?:i/o timeout|connection refused)",
        "name-not-resolved",
        "the registry's name does not resolve on the node",
        "see the host in cluster.image (fra.ocir.io, ...) and the nodes' DNS",
        True,
    ),
    _PullErrorRule(
        "connection refused", "connection-refused", "nothing listens at the registry's address", _NETWORK, True
    ),
    _PullErrorRule(
        "network is unreachable|no route to host", "no-route", "the node has no route to it", _NETWORK, True
    ),
    _PullErrorRule(
        "i/o timeout|context deadline exceeded|TLS handshake timeout|DeadlineExceeded",
        "timeout",
        "the registry does not answer the node",
        f"{_NETWORK}; until then the node's other pulls wait too",
        True,
    ),
    _PullErrorRule(
        "failed to fetch (?:oauth|anonymous) token: unexpected status[^:]*: 401",
        "wrong-login",
        "the registry refuses user name or password of the pull secret",
        f"{_FORMS}; {_RENEW}",
    ),
    _PullErrorRule(
        r"\b401\b|[Uu]nauthorized", "unauthorized", "the registry asks for a login (401)", f"{_FORMS}; {_RENEW}"
    ),
    _PullErrorRule(
        r"\b403\b|[Ff]orbidden|denied",
        "forbidden",
        "the registry has no login for this image, or one without the right to read it (403)",
        f"the secret must be for this very host, and a policy must allow `read repos`; {_RENEW}",
    ),
    _PullErrorRule(
        "not found|manifest unknown|NotFound",
        "not-found",
        "the registry has no such image",
        "`inv push` puts it there and writes results/image.json; OCIR says this too where the user may not see it",
    ),
    _PullErrorRule(
        r"unexpected EOF|connection reset|50[0234]\b", "broken-off", "the pull broke off", "wait for the next", True
    ),
)


def known() -> list[tuple[str, str]]:
    """(what, remedy) of each cause."""
    return [(rule.what, rule.remedy) for rule in _RULES]


def explain_pull(reason: str, messages: Sequence[str], pod_spec: Object) -> tuple[str, str, str, bool]:
    """(cause, reason, remedy, whether it may pass by itself) of a container that waits with `reason`.

    `messages`: the container's own, then the pod's events, newest first. `pod_spec` says which secrets it uses.
    """
    image = next((container["image"] for container in pod_spec.get("containers", [])), "the image")
    if reason == "InvalidImageName":
        message = next((m for m in messages if "couldn't parse" in m or "invalid reference" in m), messages[0])
        return "invalid-name", f"{image}: {message.rsplit(': ', 1)[-1]}", "mend cluster.image", False
    if reason == "ErrImageNeverPull":
        remedy = "set imagePullPolicy to IfNotPresent, as manifests/ as shipped does"
        return "never-pull", f"{image} is not on the node, and the pod forbids pulling", remedy, False
    text = "\n".join(message for message in messages if _is_pull(message))
    secrets = [one["name"] for one in pod_spec.get("imagePullSecrets") or []]
    for pattern, cause, what, remedy, may_pass in _RULES:
        match = re.search(pattern, text)
        if match is None:
            continue
        if cause in ("unauthorized", "forbidden"):
            missing = next((m for m in messages if "Unable to retrieve some image pull secrets" in m), None)
            if missing is not None:
                name = ", ".join(re.findall(r"secrets \(([^)]*)\)", missing)) or "named in the pod"
                advice = f"`inv deploy` makes {name} with the auth token from standard input"
                return "secret-missing", f"{image}: there is no pull secret {name}", advice, False
            if not secrets:
                advice = "set cluster.pull_secret and registry.user, then `inv deploy`"
                return "no-secret", f"{image}: {what}; the pod names no pull secret", advice, False
        if cause == "not-found" and "@sha256:" in image:
            what = "the registry has no image of this digest"
        names = match.groupdict().get("names")
        return cause, f"{image}: {what}" + (f" ({names})" if names else ""), remedy, may_pass
    last = next((one_line(message) for message in messages if message), reason)
    return "pull", f"{image}: {last}", "see `kubectl describe pod`", True


def _is_pull(message: str) -> bool:
    return any(sign in message for sign in ("pull", "resolve reference", "authorize", "layer", "copy"))
