"""Which nodes qualify, and one reason with a remedy for each that does not."""

import copy
from decimal import Decimal
from typing import Any

import pytest

from remote.cluster.diagnosis.nodes import GPU, PREEMPTIBLE, NodeReport, NodeRequirements, examine, mixed
from remote.cluster.quantities import amount

GIB = Decimal(2**30)
TYPE = "VM.GPU.A10.1"
# As recorded from a node with OKE's labels; shortened.
NODE: dict[str, Any] = {
    "metadata": {"name": "node-3", "labels": {"node.kubernetes.io/instance-type": TYPE, "nvidia.com/gpu.count": "1"}},
    "spec": {"taints": [{"effect": "NoSchedule", "key": GPU, "value": "present"}]},
    "status": {
        "allocatable": {"cpu": "30", "memory": "24581692Ki", "ephemeral-storage": "267847642337", GPU: "1"},
        "conditions": [
            {"type": "DiskPressure", "status": "False"},
            {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
        ],
        "images": [{"names": ["registry.local/busybox@sha256:" + "11" * 32], "sizeBytes": 1}],
        "nodeInfo": {"kubeletVersion": "v1.34.9"},
    },
}


def need(**changes: Any) -> NodeRequirements:
    fields: dict[str, Any] = {
        "instance_type": TYPE,
        "preemptible": False,
        "cpu": Decimal(4),
        "memory": amount("16Gi"),
        "scratch": 10 * GIB,
        "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
        "namespace": "ours",
        "image": "h/r@sha256:" + "22" * 32,
        "image_bytes": int(35 * GIB),
    }
    return NodeRequirements(**(fields | changes))


def pod(name: str = "p", namespace: str = "other", gpus: int = 0, cpu: str = "1", **labels: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"nodeName": "node-3", "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": "Running"},
    }


def report(
    pods: list[dict[str, Any]] | None = None, *, needs: NodeRequirements | None = None, **changes: Any
) -> NodeReport:
    node = copy.deepcopy(NODE)
    for path, value in changes.items():
        place = node
        *above, last = path.split("__")
        for key in above:
            place = place[key]
        place[last] = value
    (found,) = examine([node], [] if pods is None else pods, needs or need())
    return found


def causes(found: NodeReport) -> list[str]:
    return [finding.cause for finding in found.findings]


def test_a_node_with_all_that_is_needed_qualifies() -> None:
    found = report()
    assert found.qualifies
    assert (found.gpus, found.gpus_free, found.kubelet, found.driver) == (1, 1, "v1.34.9", None)


READY = {"type": "Ready", "status": "False", "message": "Kubelet stopped posting node status."}
UNHEALTHY: dict[str, tuple[dict[str, Any], str]] = {
    "not ready": ({"status__conditions": [READY]}, "not-ready"),
    "unknown": ({"status__conditions": [{**READY, "status": "Unknown"}]}, "not-ready"),
    "never reported": ({"status__conditions": []}, "not-ready"),
    "disk pressure": (
        {"status__conditions": [*NODE["status"]["conditions"][1:], {"type": "DiskPressure", "status": "True"}]},
        "pressure",
    ),
    "cordoned": ({"spec__unschedulable": True}, "cordoned"),
    "foreign taint": ({"spec__taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]}, "taint"),
    "preemptible taint": ({"spec__taints": [{"key": PREEMPTIBLE, "value": "", "effect": "NoSchedule"}]}, "taint"),
    "no-execute gpu taint": ({"spec__taints": [{"key": GPU, "effect": "NoExecute"}]}, "taint"),
    "small disk": ({"status__allocatable": {**NODE["status"]["allocatable"], "ephemeral-storage": "38Gi"}}, "disk"),
    "little memory": ({"status__allocatable": {**NODE["status"]["allocatable"], "memory": "8Gi"}}, "no-memory"),
    "few cores": ({"status__allocatable": {**NODE["status"]["allocatable"], "cpu": "3900m"}}, "no-cpu"),
    "old kubelet": ({"status__nodeInfo": {"kubeletVersion": "v1.27.2"}}, "kubelet"),
    "old driver": (
        {"metadata__labels": {**NODE["metadata"]["labels"], "nvidia.com/cuda.driver-version.full": "470.82.01"}},
        "driver",
    ),
}


@pytest.mark.parametrize("what", UNHEALTHY)
def test_a_node_that_cannot_take_a_pod_says_why_and_what_to_do(what: str) -> None:
    changes, cause = UNHEALTHY[what]
    found = report(**changes)
    assert causes(found) == [cause]
    assert found.findings[0].remedy
    assert found.findings[0].subject == "node node-3"


def test_a_remedy_can_be_typed_as_it_stands() -> None:
    assert report(spec__unschedulable=True).findings[0].remedy == "kubectl uncordon node-3"
    tainted = report(spec__taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])
    assert tainted.findings[0].remedy == "kubectl taint node node-3 team:NoSchedule-"


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "anything", "effect": "PreferNoSchedule"},
        {"key": GPU, "value": "present", "effect": "NoSchedule"},
    ],
)
def test_a_taint_that_keeps_nobody_out_is_no_finding(taint: dict[str, str]) -> None:
    assert report(spec__taints=[taint]).qualifies


def test_a_node_of_another_type_is_told_once_and_nothing_else_about_it() -> None:
    found = report(metadata__labels={"node.kubernetes.io/instance-type": "VM.Standard"}, spec__unschedulable=True)
    assert causes(found) == ["instance-type"]
    assert not found.is_candidate
    assert "cluster.instance_type" in found.findings[0].remedy


def test_a_node_without_labels_at_all_is_told_too() -> None:
    assert "not labelled" in report(metadata__labels=None).findings[0].reason


NO_GPU = {key: value for key, value in NODE["status"]["allocatable"].items() if key != GPU}


def test_without_a_device_plugin_that_is_the_reason() -> None:
    (finding,) = report(status__allocatable=NO_GPU).findings
    assert (finding.cause, "no device plugin runs" in finding.reason) == ("device-plugin", True)


def test_a_device_plugin_that_crashes_is_named_with_where_to_look() -> None:
    plugin = pod("nvidia-device-plugin-daemonset-x1", "kube-system")
    plugin["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    (finding,) = report([plugin], status__allocatable=NO_GPU).findings
    assert "CrashLoopBackOff" in finding.reason
    assert finding.remedy == "kubectl -n kube-system logs nvidia-device-plugin-daemonset-x1"


def test_a_gpu_that_somebody_holds_is_named_with_its_holder() -> None:
    found = report([pod("notebook", gpus=1)])
    assert (causes(found), found.gpus_free) == (["gpu-taken"], 0)
    assert "other/notebook" in found.findings[0].reason


BY_LIMIT = pod("notebook") | {
    "spec": {"nodeName": "node-3", "containers": [{"resources": {"limits": {GPU: "1"}}}]},
}


@pytest.mark.parametrize(
    ("there", "expected", "free"),
    [
        pytest.param(BY_LIMIT, ["gpu-taken"], 0, id="a GPU by limit alone"),
        pytest.param(pod("train", gpus=3), ["gpu-taken"], 0, id="more GPUs than its device plugin has left"),
        pytest.param(pod("train", gpus=1) | {"status": {"phase": "Succeeded"}}, [], 1, id="a finished pod"),
        pytest.param(pod(cpu="27"), ["no-cpu"], 1, id="cores that others asked for"),
        pytest.param(
            pod("bench-0", "ours", gpus=1, cpu="29", **{"app.kubernetes.io/part-of": "qlora-fleet"}), [], 1, id="ours"
        ),
    ],
)
def test_what_other_pods_hold_is_not_free(there: dict[str, Any], expected: list[str], free: int) -> None:
    found = report([there])
    assert (causes(found), found.gpus_free) == (expected, free)


def labelled(**labels: str) -> dict[str, Any]:
    more = {f"nvidia.com/{name.replace('_', '.', 1).replace('_', '-')}": value for name, value in labels.items()}
    return {"metadata__labels": {**NODE["metadata"]["labels"], **more}}


SHARED = labelled(gpu_product="NVIDIA-A10-SHARED", gpu_replicas="4", gpu_sharing_strategy="time-slicing")
SPLIT = labelled(gpu_product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", gpu_replicas="1", gpu_sharing_strategy="none")


@pytest.mark.parametrize(
    ("labels", "words"), [(SHARED, "4 pods share each GPU: numbers measured there are not"), (SPLIT, "split (MIG)")]
)
def test_a_part_of_a_gpu_is_used_only_when_asked_for_and_said_what_that_does_to_numbers(
    labels: dict[str, Any], words: str
) -> None:
    (finding,) = report(**labels).findings
    product = labels["metadata__labels"]["nvidia.com/gpu.product"]
    assert finding.cause == "gpu-shared"
    assert words in finding.reason
    assert finding.remedy == f"set cluster.gpu to {product} to use it all the same"
    for asked in (product, "any"):
        assert report(needs=need(product=asked), **labels).qualifies
    assert causes(report(needs=need(product="NVIDIA-H100"), **labels)) == ["gpu-product"]


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_parts_of_gpus_under_other_names_are_named(name: str) -> None:
    (finding,) = report(status__allocatable={**NO_GPU, name: "7"}).findings
    assert (finding.cause, f"{name}: 7" in finding.reason) == ("split", True)


def test_nodes_with_different_kinds_of_gpu_are_told_apart() -> None:
    a10, a100 = labelled(gpu_product="NVIDIA-A10"), labelled(gpu_product="NVIDIA-A100-SXM4-40GB")
    assert mixed([report(**a10), report(**a10), report()]) == []
    assert mixed([report(**a10), report(**a10), report(**a100)]) == [
        "NVIDIA-A10 (2 nodes)",
        "NVIDIA-A100-SXM4-40GB (1 node)",
    ]
    assert mixed([report(**a10), report(**a100, spec__unschedulable=True)]) == [], "it gets no pod"


@pytest.mark.parametrize(
    ("gpus", "each", "one_per_node", "pods"),
    [("8", 1, True, 1), ("8", 1, False, 7), ("8", 2, False, 4), ("3", 2, False, 1), ("1", 2, False, 0)],
)
def test_a_node_takes_as_many_pods_as_its_gpus_and_cores_allow(
    gpus: str, each: int, one_per_node: bool, pods: int
) -> None:
    """30 cores: seven pods of four."""
    there = {**NODE["status"]["allocatable"], GPU: gpus, "memory": "512Gi"}
    assert report(needs=need(gpus=each, one_per_node=one_per_node), status__allocatable=there).pods == pods


def test_where_pods_may_not_be_listed_free_gpus_are_unknown_and_no_reason() -> None:
    (found,) = examine([NODE], None, need())
    assert (found.gpus_free, found.qualifies) == (None, True)


def test_an_image_that_is_there_needs_no_more_room() -> None:
    here = need(image="registry.local/busybox@sha256:" + "11" * 32, image_bytes=int(400 * GIB))
    assert report(needs=here).qualifies
    assert causes(report(needs=need(image_bytes=int(400 * GIB)))) == ["disk"]


def test_preemptible_nodes_are_used_only_when_asked_for() -> None:
    labels = {**NODE["metadata"]["labels"], PREEMPTIBLE: "true"}
    taints = [{"key": PREEMPTIBLE, "value": "", "effect": "NoSchedule"}]
    wish = need(preemptible=True, tolerations=[{"key": PREEMPTIBLE, "operator": "Exists"}])
    assert report(needs=wish, metadata__labels=labels, spec__taints=taints).qualifies
    assert causes(report(needs=wish, spec__taints=[])) == ["not-preemptible"]


def test_nodes_that_qualify_come_first() -> None:
    other = copy.deepcopy(NODE)
    other["metadata"]["name"] = "a-cordoned"
    other["spec"]["unschedulable"] = True
    assert [one.name for one in examine([other, NODE], [], need())] == ["node-3", "a-cordoned"]
