"""A node that dies: its worker is replaced, and the printed commands end its pod and take the node back.

The tests' cluster does as Kubernetes 1.34 and 1.36 did (tests/support/kubernetes/controllers/jobs.py).
"""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.support.kubernetes import Cluster
from tests.support.pods import EVICTION_SCALE
from tests.system.cluster.conftest import Operator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3, toleration_scale=EVICTION_SCALE) as cluster:
        yield cluster


def phases(operator: Operator, index: int) -> dict[str, str]:
    """Return the phase of each pod of a worker by its name, "going" for one that is being deleted."""
    pods = [pod for pod in operator.objects("pods") if pod["metadata"]["name"].startswith(f"bench-{index}-")]
    return {
        pod["metadata"]["name"]: "going" if "deletionTimestamp" in pod["metadata"] else pod["status"]["phase"]
        for pod in pods
    }


def test_the_worker_of_a_dead_node_is_replaced_and_its_pod_ended_by_the_printed_command(deployed: Operator) -> None:
    cluster = deployed.cluster
    ((name, _),) = phases(deployed, 0).items()
    node = next(pod["spec"]["nodeName"] for pod in deployed.objects("pods") if pod["metadata"]["name"] == name)
    cluster.faults.lose_node(node)
    cluster.wait_until(lambda: sorted(phases(deployed, 0).values()) == ["Running", "going"], "the replacement")
    assert phases(deployed, 0)[name] == "going", "it is listed until its node returns"
    assert "2 of 2 pods are up" in deployed.inv("status")

    (command,) = re.findall(r"`kubectl (taint [^`]+)`", deployed.inv("nodes"))
    assert f" {node} " in command
    cluster.output(*shlex.split(command))
    cluster.wait_until(lambda: name not in phases(deployed, 0), "the old pod to go")
    cluster.faults.restore_node(node)
    (command,) = re.findall(r"kubectl (taint node \S+ \S+-)", deployed.inv("nodes"))
    cluster.output(*shlex.split(command))
    assert "3 nodes qualify" in deployed.inv("nodes")
