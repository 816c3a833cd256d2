"""Test of `inv image.verify --on-node` with real kubectl: the pod runs the check and is deleted.

The image is a stand-in (tests/support/hosts/image_python). Not covered: a GPU, and the image itself.
"""

from tests.support.paths import ROOT
from tests.system.cluster.conftest import Operator


def test_the_self_check_runs_on_a_gpu_node_and_leaves_nothing(operator: Operator) -> None:
    verify = ("image.verify", "--on-node")
    assert f"namespace {operator.namespace}; `inv deploy`" in operator.inv(*verify, code=2)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": operator.namespace, "labels": labels}
    operator.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    operator.settings["fleet"]["pods"] = {"python": str(ROOT / "tests" / "support" / "hosts" / "image_python")}
    output = operator.inv(*verify)
    assert "CUDA 12.8: a device is visible" in output
    assert "two steps were trained" in output
    assert f"{operator.image} on node node-" in output
    assert ": intact" in output
    assert operator.objects("pods") == []
