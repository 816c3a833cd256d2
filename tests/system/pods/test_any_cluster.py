"""Behaviour of kubectl required on every cluster: `pytest --kubeconfig PATH tests/system/pods` tests a real one.

On a real cluster the pod's image is `--cluster-image`, which needs sh, cat, sha256sum and sleep.
"""

import json
from typing import Any

import pytest

from tests.support.kubernetes.cluster import Faults
from tests.support.kubernetes.real_cluster import AnyCluster


def worker(namespace: str, image: str) -> dict[str, Any]:
    """A pod that passes Pod Security `restricted` and waits."""
    closed = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    user = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"name": "main", "image": image, "command": ["sleep", "3600"], "securityContext": closed}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "worker", "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "securityContext": user,
            "containers": [container],
        },
    }


@pytest.fixture
def pod(kube: AnyCluster, namespace: str, pytestconfig: pytest.Config) -> tuple[str, ...]:
    """First arguments of an exec into a pod that is Ready."""
    kube.apply(worker(namespace, pytestconfig.getoption("cluster_image")))
    ready = kube.kubectl("wait", "-n", namespace, "--for=condition=Ready", "pod/worker", "--timeout=100s")
    assert ready.returncode == 0, ready.stderr.decode()
    return ("exec", "-n", namespace, "worker", "-i", "--")


def test_a_changed_field_of_a_server_side_apply_is_in_the_diff_and_a_dropped_one_is_removed(
    kube: AnyCluster, namespace: str
) -> None:
    def apply(*arguments: str, **data: str) -> int:
        metadata = {"name": "owned", "namespace": namespace}
        body = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}).encode()
        return kube.kubectl(*arguments, "--server-side", "-f", "-", stdin=body).returncode

    def owned_object() -> dict[str, Any]:
        return next(item for item in kube.objects("configmaps", namespace) if item["metadata"]["name"] == "owned")

    assert apply("apply", a="1", b="2") == 0
    before = owned_object()
    assert apply("apply", a="1", b="2") == 0
    assert owned_object() == before, "an unchanged apply makes no new version"
    assert apply("diff", a="1", b="2") == 0
    assert apply("diff", a="1", b="3") == 1
    assert apply("apply", a="1") == 0
    assert owned_object()["data"] == {"a": "1"}


def test_an_omitted_false_field_has_no_owner_and_no_conflict(kube: AnyCluster, namespace: str) -> None:
    """So a field that was set to false by hand is overwritten without a conflict, unlike any other."""

    def service(**spec: Any) -> bytes:
        metadata = {"name": "s", "namespace": namespace}
        whole = {"clusterIP": "None", "selector": {"app": "s"}, **spec}
        return json.dumps({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": whole}).encode()

    def patch(spec: str) -> None:
        kube.output("patch", "service", "s", "-n", namespace, "--type=merge", f'--patch={{"spec":{spec}}}')

    argv = ("apply", "--server-side", "--field-manager=ours", "-f", "-")
    kube.output(*argv, stdin=service(publishNotReadyAddresses=True))
    patch('{"publishNotReadyAddresses":false}')
    (applied,) = (item for item in kube.objects("services", namespace) if item["metadata"]["name"] == "s")
    assert "publishNotReadyAddresses" not in applied["spec"]
    kube.output(*argv, stdin=service(publishNotReadyAddresses=True))
    patch('{"selector":{"app":"t"}}')
    refused = kube.kubectl(*argv, stdin=service(publishNotReadyAddresses=True))
    assert b"conflict" in refused.stderr


def test_an_exec_with_a_killed_kubelet_ends_with_exit_0(kube: AnyCluster, pod: tuple[str, ...], faults: Faults) -> None:
    """The reason why exit 0 of an exec proves nothing."""
    faults.exec("close-1000-without-status", after_stdout_bytes=4)
    completed = kube.kubectl(*pod, "sh", "-c", "echo partial; sleep 0.2; exit 7")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, b"part", b"")
