"""Tests of kubectl's recorded error messages."""

import pytest

from remote.hosts.pods.errors import ClusterError, Conflict, Forbidden, Misconfigured, Unreachable
from remote.hosts.pods.kubectl import to_cluster_error

# Recorded standard error, the exception, and a token of its message.
STDERR_CASES: dict[str, tuple[str, type[ClusterError], str]] = {
    "forbidden": (
        'Error from server (Forbidden): configmaps "c2" is forbidden: User "dev" cannot patch resource "configmaps" in '
        'API group "" in the namespace "err"',
        Forbidden,
        "administrator",
    ),
    "bad token": (
        'E1120 20:05:21.734829 6090 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group '
        'list"\nerror: You must be logged in to the server (the server has asked for the client to provide '
        "credentials)",
        Misconfigured,
        "renew the kubeconfig",
    ),
    "credential program": (
        "ServiceError: {'status': 401}\n(Forbidden) Unauthorized: connection refused\n"
        * 6
        + 'E1122 06:37:46.385142 14701 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API '
        'group list: Get \\"https://127.0.0.1:1/api?timeout=32s\\": getting credentials: exec: executable oci failed '
        'with exit code 1"\nUnable to connect to the server: getting credentials: exec: executable oci failed with '
        "exit code 1",
        Misconfigured,
        "kubectl apply: Unable to connect to the server: getting credentials: exec: executable oci failed with exit "
        "code 1 ServiceError: {'status': 401} (Forbidden) Unauthorized: connection refused; ",
    ),
    "conflict": (
        'error: Apply failed with 1 conflict: conflict with "other-tool": .data.a\nPlease review the fields above',
        Conflict,
        "--force-conflicts",
    ),
    "namespace going": (
        'Error from server (Forbidden): error when creating "err/cmterm.json": configmaps "c" is forbidden: unable to '
        "create new content in namespace err-term because it is being terminated",
        Unreachable,
        "`kubectl delete jobs --all`",
    ),
    "kind missing": (
        'error: resource mapping not found for name: "q" namespace: "err" from "err/crd.json": no matches for kind '
        '"LocalQueue" in version "kueue.x-k8s.io/v1beta1"\nensure CRDs are installed first',
        Misconfigured,
        "cluster.overlay",
    ),
    "server down": (
        "error: dial tcp 127.0.0.1:6449: connect: connection refused",
        Unreachable,
        "127.0.0.1:6449",
    ),
    "name": (
        "error: dial tcp: lookup api.no-such-name.example on 10.96.0.10:53: no such host",
        Unreachable,
        "api.no-such-name.example",
    ),
    "authority": (
        "tls: failed to verify certificate: x509: certificate signed by unknown authority",
        Misconfigured,
        "",
    ),
    "node": ("error: Internal error: error dialing backend: x509: certificate has expired", Unreachable, "`inv nodes`"),
    "context": ('error: context "production" does not exist', Misconfigured, "set cluster.context"),
    "quota": ('Error from server (Forbidden): pods "q" is forbidden: exceeded quota: gpu-quota', ClusterError, "quota"),
    "stuck": ("error: timed out waiting for the condition on jobs/bench", ClusterError, "--force"),
    "new": ("error: something unknown", ClusterError, "something unknown"),
}


@pytest.mark.parametrize("case", STDERR_CASES)
def test_an_error_of_kubectl_becomes_one_line_of_the_right_exception(case: str) -> None:
    stderr, kind, token = STDERR_CASES[case]
    error = to_cluster_error("kubectl apply", stderr)
    assert type(error) is kind
    assert token in str(error)
    assert "\n" not in str(error)
    assert "memcache.go" not in str(error)


def test_an_unknown_error_becomes_the_callers_exception() -> None:
    error = to_cluster_error(
        "kubectl exec", "I1120 websocket.go:296] Unknown stream id 1, discarding message\n", Unreachable
    )
    assert (type(error), str(error)) == (Unreachable, "kubectl exec: no message")
