"""Causes of a failed image pull, from the messages of kubelet and containerd.

Some causes are indistinguishable: a registry with Basic authentication answers 401 to a wrong password, to a missing
secret and to no secret. With token authentication a wrong user or password fails at the token, and a missing or foreign
secret at the manifest.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from remote.cluster.labels import Object
from remote.hosts.base import collapse_whitespace
from remote.providers import GENERIC, Provider, registry_provider

PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)

# Causes that another pull secret fixes. The kubelet retries after its back-off, which doubles up to 300 s.
LOGIN_CAUSES = ("unauthorized", "forbidden", "wrong-login", "secret-missing")
MAX_BACK_OFF_SEC = 330.0

_RENEWAL_ADVICE = "renew it: `inv deploy --renew-secret` with the {password} on standard input"


class _PullErrorRule(NamedTuple):
    """A pattern in a message of kubelet or containerd, and its meaning. `may_pass`: it may pass without a change.

    The {names} in `remedy` are those of `Provider.texts`.
    """

    pattern: str
    cause: str
    problem: str
    remedy: str
    may_pass: bool = False


_RULES = (
    _PullErrorRule("no space left on device", "disk-full", "the node's disk is full", "grow it: `inv nodes`"),
    _PullErrorRule(
        "toomanyrequests|429 Too Many Requests", "too-many-requests", "the registry limits requests", "wait", True
    ),
    _PullErrorRule(
        "no match(ing manifest| for platform)",
        "wrong-architecture",
        "no image for this processor",
        "build it for amd64",
    ),
    _PullErrorRule(
        "x509: certificate signed by unknown authority",
        "unknown-authority",
        "the node does not trust the registry's certificate",
        "install that authority's certificate on the nodes, or use a registry whose certificate they trust",
    ),
    _PullErrorRule(
        r"x509: certificate is valid for (?P<names>.+), not (?P<host>\S+)",
        "certificate-name",
        "the registry's certificate is for another name",
        "use the certificate's host name in cluster.image",
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
        "the registry uses HTTP without TLS",
        "install a certificate there; containerd refuses plain HTTP",
    ),
    _PullErrorRule(
        r"no such host|server misbehaving|lookup \S+ on \S+: .*(?:i/o timeout|connection refused)",
        "name-not-resolved",
        "the registry's name does not resolve on the node",
        "{registry-host}",
        True,
    ),
    _PullErrorRule(
        "connection refused",
        "connection-refused",
        "nothing listens at the registry's address",
        "{registry-network}",
        True,
    ),
    _PullErrorRule(
        "network is unreachable|no route to host", "no-route", "the node has no route to it", "{registry-network}", True
    ),
    _PullErrorRule(
        "i/o timeout|context deadline exceeded|TLS handshake timeout|DeadlineExceeded",
        "timeout",
        "the registry does not answer the node",
        "{registry-network}; until then the node's other pulls wait, too",
        True,
    ),
    _PullErrorRule(
        "failed to fetch (?:oauth|anonymous) token: unexpected status[^:]*: 401",
        "wrong-login",
        "the registry rejects user name or password of the pull secret",
        f"{{registry-login}}; {_RENEWAL_ADVICE}",
    ),
    _PullErrorRule(
        r"\b401\b|[Uu]nauthorized",
        "unauthorized",
        "the registry requires a login (401)",
        f"{{registry-login}}; {_RENEWAL_ADVICE}",
    ),
    _PullErrorRule(
        r"\b403\b|[Ff]orbidden|denied",
        "forbidden",
        "the registry got no login for this image, or one without permission to read it (403)",
        f"{{registry-read}}; {_RENEWAL_ADVICE}",
    ),
    _PullErrorRule(
        "not found|manifest unknown|NotFound",
        "not-found",
        "the registry has no such image",
        "{image-missing}",
    ),
    _PullErrorRule(
        r"unexpected EOF|connection reset|50[0234]\b",
        "broken-off",
        "the pull was interrupted",
        "wait for the next attempt",
        True,
    ),
)


def explain_pull(
    reason: str, messages: Sequence[str], pod_spec: Object, provider: Provider = GENERIC
) -> tuple[str, str, str, bool]:
    """Explain a container that waits with `reason`: (cause, reason, remedy, may it pass without a change?).

    `messages`: the container's own, then those of the pod's events, newest first. `provider`: that of the nodes.
    """
    image = next((container["image"] for container in pod_spec.get("containers", [])), "the image")
    network = {"registry-network": provider.texts["registry-network"]}
    texts = {**registry_provider(image.partition("/")[0]).texts, **network}
    if reason == "InvalidImageName":
        message = next((m for m in messages if "couldn't parse" in m or "invalid reference" in m), messages[0])
        return "invalid-name", f"{image}: {message.rsplit(': ', 1)[-1]}", "fix cluster.image", False
    if reason == "ErrImageNeverPull":
        remedy = "set imagePullPolicy to IfNotPresent, as in the shipped manifests/"
        return "never-pull", f"{image} is not on the node, and the pod forbids pulling", remedy, False
    text = "\n".join(message for message in messages if _is_about_pull(message))
    secrets = [reference["name"] for reference in pod_spec.get("imagePullSecrets") or []]
    for pattern, cause, problem, remedy, may_pass in _RULES:
        match = re.search(pattern, text)
        if match is None:
            continue
        if cause in ("unauthorized", "forbidden"):
            missing = next((m for m in messages if "Unable to retrieve some image pull secrets" in m), None)
            if missing is not None:
                name = ", ".join(re.findall(r"secrets \(([^)]*)\)", missing)) or "named in the pod"
                advice = f"create {name}: `inv deploy` with the {texts['password']} on standard input"
                return "secret-missing", f"{image}: there is no pull secret {name}", advice, False
            if not secrets:
                advice = "set cluster.pull_secret and registry.user, then `inv deploy`"
                return "no-secret", f"{image}: {problem}; the pod names no pull secret", advice, False
        if cause == "not-found" and "@sha256:" in image:
            problem = "the registry has no image of this digest"
        names = match.groupdict().get("names")
        return cause, f"{image}: {problem}" + (f" ({names})" if names else ""), remedy.format_map(texts), may_pass
    last = next((collapse_whitespace(message) for message in messages if message), reason)
    return "pull", f"{image}: {last}", "see `kubectl describe pod`", True


def _is_about_pull(message: str) -> bool:
    return any(sign in message for sign in ("pull", "resolve reference", "authorize", "layer", "copy"))
