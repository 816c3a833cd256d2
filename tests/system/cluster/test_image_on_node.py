"""`inv image.verify --on-node` with real kubectl: a pod that runs, answers, and is gone.

The image is a stand-in (tests/support/hosts/image_python). Not covered: a GPU, and the image itself.
"""

import sys

import pytest

from tests.support.kubernetes.real_cluster import GivenCluster
from tests.support.paths import ROOT
from tests.system.cluster.conftest import Operator


def test_the_self_check_runs_on_a_gpu_node_and_nothing_of_it_stays(operator: Operator) -> None:
    if isinstance(operator.cluster, GivenCluster):
        pytest.skip("the stand-in of the image's Python is on this machine alone")
    verify = ("image.verify", "--on-node")
    assert f"no namespace {operator.namespace}; `inv deploy`" in operator.inv(*verify, code=2)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": operator.namespace, "labels": labels}
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    operator.settings["fleet"]["pods"] = {"python": str(ROOT / "tests" / "support" / "hosts" / "image_python")}
    said = operator.inv(*verify)
    assert "CUDA 12.8: a device is visible" in said
    assert "two steps were trained" in said
    assert f"{operator.image} on node node-" in said
    assert ": intact" in said
    assert operator.objects("pods") == []
    # An image without a self-check: what Python says of that comes back, and the exit code with it.
    operator.settings["fleet"]["pods"] = {"python": sys.executable}
    said = operator.inv(*verify, code=1)
    assert "/opt/qlora-fleet/selfcheck.py" in said
    assert operator.objects("pods") == []
