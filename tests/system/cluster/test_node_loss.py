"""A node that dies: its worker is replaced.

The tests' cluster does as Kubernetes 1.34 and 1.36 did (tests/support/kubernetes/controllers/jobs.py).
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.kubernetes import Cluster
from tests.support.pods import EVICTION_SCALE
from tests.system.cluster.conftest import Operator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, toleration_scale=EVICTION_SCALE) as cluster:
        yield cluster


def pods_of(operator: Operator, index: int) -> list[dict[str, Any]]:
    return [pod for pod in operator.objects("pods") if pod["metadata"]["name"].startswith(f"bench-{index}-")]


def lose_node_of(operator: Operator, index: int) -> tuple[str, str]:
    """Lose the node of a worker; return the names of its pod and node once the pod is being deleted."""
    (pod,) = pods_of(operator, index)
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    operator.cluster.faults.lose_node(node)

    def is_given_up() -> bool:
        old = next(pod for pod in pods_of(operator, index) if pod["metadata"]["name"] == name)
        return "deletionTimestamp" in old["metadata"]

    operator.cluster.wait_until(is_given_up, f"{name} to be given up")
    return name, node


def has_replacement(operator: Operator, index: int, name: str) -> bool:
    return any(
        pod["metadata"]["name"] != name and pod.get("status", {}).get("phase") == "Running"
        for pod in pods_of(operator, index)
    )


def test_the_worker_of_a_dead_node_is_replaced(deployed: Operator) -> None:
    cluster = deployed.cluster
    name, node = lose_node_of(deployed, 0)
    cluster.wait_until(lambda: has_replacement(deployed, 0, name), "the replacement")
    assert name in [pod["metadata"]["name"] for pod in pods_of(deployed, 0)], "it is listed until its node returns"
    output = deployed.inv("status")
    assert "2 of 2 pods are up" in output
    cluster.faults.restore_node(node)
    cluster.wait_until(lambda: len(pods_of(deployed, 0)) == 1, "the old pod to go")
