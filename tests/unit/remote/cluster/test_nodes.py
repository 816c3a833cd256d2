"""Tests of the nodes that qualify, and of reason and remedy for each that does not."""

import copy
from decimal import Decimal
from typing import Any

import pytest

from remote.cluster.diagnosis.nodes import (
    GPU_RESOURCE,
    DriverRange,
    NodeReport,
    NodeRequirements,
    examine,
    mixed_gpu_products,
    parse_drivers,
)
from remote.cluster.quantities import parse_quantity
from remote.providers import PROVIDERS

OCI = PROVIDERS["oci"]
GIB = Decimal(2**30)
TYPE = "VM.GPU.A10.1"
# Recorded from a node with OKE's labels; shortened.
NODE: dict[str, Any] = {
    "metadata": {"name": "node-3", "labels": {"node.kubernetes.io/instance-type": TYPE, "nvidia.com/gpu.count": "1"}},
    "spec": {"taints": [{"effect": "NoSchedule", "key": GPU_RESOURCE, "value": "present"}]},
    "status": {
        "allocatable": {"cpu": "30", "memory": "24581692Ki", "ephemeral-storage": "267847642337", GPU_RESOURCE: "1"},
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
        "memory": parse_quantity("16Gi"),
        "scratch": 10 * GIB,
        "tolerations": [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
        "namespace": "ours",
        "image": "h/r@sha256:" + "22" * 32,
        "image_bytes": int(35 * GIB),
        "provider": OCI,
    }
    return NodeRequirements(**(fields | changes))


def pod(name: str = "p", namespace: str = "other", gpus: int = 0, cpu: str = "1", **labels: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": "1Gi", **({GPU_RESOURCE: str(gpus)} if gpus else {})}
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
        section = node
        *parents, last = path.split("__")
        for key in parents:
            section = section[key]
        section[last] = value
    (node_report,) = examine([node], [] if pods is None else pods, needs or need())
    return node_report


def causes(node_report: NodeReport) -> list[str]:
    return [finding.cause for finding in node_report.findings]


def test_a_node_with_all_that_is_needed_qualifies() -> None:
    node_report = report()
    assert node_report.qualifies
    assert (node_report.gpus, node_report.gpus_free, node_report.kubelet, node_report.driver) == (1, 1, "v1.34.9", None)


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
    "preemptible taint": (
        {"spec__taints": [{"key": OCI.preemptible_label, "value": "", "effect": "NoSchedule"}]},
        "taint",
    ),
    "no-execute gpu taint": ({"spec__taints": [{"key": GPU_RESOURCE, "effect": "NoExecute"}]}, "taint"),
    "small disk": ({"status__allocatable": {**NODE["status"]["allocatable"], "ephemeral-storage": "38Gi"}}, "disk"),
    "little memory": ({"status__allocatable": {**NODE["status"]["allocatable"], "memory": "8Gi"}}, "no-memory"),
    "few cores": ({"status__allocatable": {**NODE["status"]["allocatable"], "cpu": "3900m"}}, "no-cpu"),
    "old kubelet": ({"status__nodeInfo": {"kubeletVersion": "v1.27.2"}}, "kubelet"),
    "old driver": (
        {"metadata__labels": {**NODE["metadata"]["labels"], "nvidia.com/cuda.driver-version.full": "470.82.01"}},
        "driver",
    ),
}


@pytest.mark.parametrize("case", UNHEALTHY)
def test_a_node_that_cannot_run_a_pod_has_a_cause_and_a_remedy(case: str) -> None:
    changes, cause = UNHEALTHY[case]
    node_report = report(**changes)
    assert causes(node_report) == [cause]
    assert node_report.findings[0].remedy
    assert node_report.findings[0].subject == "node node-3"


def test_a_remedy_can_be_typed_as_it_stands() -> None:
    assert report(spec__unschedulable=True).findings[0].remedy == "kubectl uncordon node-3"
    tainted = report(spec__taints=[{"key": "team", "value": "b", "effect": "NoSchedule"}])
    assert tainted.findings[0].remedy == "kubectl taint node node-3 team:NoSchedule-"


@pytest.mark.parametrize(
    "taint",
    [
        {"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"},
        {"key": "anything", "effect": "PreferNoSchedule"},
        {"key": GPU_RESOURCE, "value": "present", "effect": "NoSchedule"},
    ],
)
def test_a_tolerated_taint_is_not_a_finding(taint: dict[str, str]) -> None:
    assert report(spec__taints=[taint]).qualifies


def test_a_node_of_another_type_is_told_once_and_nothing_else_about_it() -> None:
    node_report = report(metadata__labels={"node.kubernetes.io/instance-type": "VM.Standard"}, spec__unschedulable=True)
    assert causes(node_report) == ["instance-type"]
    assert not node_report.is_candidate
    assert "cluster.instance_type" in node_report.findings[0].remedy


def test_a_node_without_labels_at_all_is_told_too() -> None:
    assert "not labelled" in report(metadata__labels=None).findings[0].reason


NO_GPU = {key: value for key, value in NODE["status"]["allocatable"].items() if key != GPU_RESOURCE}


def test_without_a_device_plugin_that_is_the_reason() -> None:
    (finding,) = report(status__allocatable=NO_GPU).findings
    assert (finding.cause, "device plugin" in finding.reason) == ("device-plugin", True)


def test_a_device_plugin_that_crashes_is_named_with_where_to_look() -> None:
    plugin = pod("nvidia-device-plugin-daemonset-x1", "kube-system")
    plugin["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    (finding,) = report([plugin], status__allocatable=NO_GPU).findings
    assert "CrashLoopBackOff" in finding.reason
    assert finding.remedy == "kubectl -n kube-system logs nvidia-device-plugin-daemonset-x1"


def test_a_gpu_in_use_is_reported_with_its_pod() -> None:
    node_report = report([pod("notebook", gpus=1)])
    assert (causes(node_report), node_report.gpus_free) == (["gpu-taken"], 0)
    assert "other/notebook" in node_report.findings[0].reason


BY_LIMIT = pod("notebook") | {
    "spec": {"nodeName": "node-3", "containers": [{"resources": {"limits": {GPU_RESOURCE: "1"}}}]},
}


@pytest.mark.parametrize(
    ("other_pod", "expected", "free"),
    [
        pytest.param(BY_LIMIT, ["gpu-taken"], 0, id="a GPU by limit only"),
        pytest.param(pod("train", gpus=3), ["gpu-taken"], 0, id="more GPUs than its device plugin has"),
        pytest.param(pod("train", gpus=1) | {"status": {"phase": "Succeeded"}}, [], 1, id="a finished pod"),
        pytest.param(pod(cpu="27"), ["no-cpu"], 1, id="cores that others requested"),
        pytest.param(
            pod("bench-0", "ours", gpus=1, cpu="29", **{"app.kubernetes.io/part-of": "qlora-fleet"}), [], 1, id="ours"
        ),
    ],
)
def test_resources_of_other_pods_are_not_free(other_pod: dict[str, Any], expected: list[str], free: int) -> None:
    node_report = report([other_pod])
    assert (causes(node_report), node_report.gpus_free) == (expected, free)


def labelled(**labels: str) -> dict[str, Any]:
    gpu_labels = {f"nvidia.com/{name.replace('_', '.', 1).replace('_', '-')}": value for name, value in labels.items()}
    return {"metadata__labels": {**NODE["metadata"]["labels"], **gpu_labels}}


SHARED = labelled(gpu_product="NVIDIA-A10-SHARED", gpu_replicas="4", gpu_sharing_strategy="time-slicing")
SPLIT = labelled(gpu_product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", gpu_replicas="1", gpu_sharing_strategy="none")


@pytest.mark.parametrize(("labels", "token"), [(SHARED, "4 pods share each GPU"), (SPLIT, "MIG")])
def test_a_part_of_a_gpu_is_used_only_on_request_and_its_reason_names_the_sharing(
    labels: dict[str, Any], token: str
) -> None:
    (finding,) = report(**labels).findings
    product = labels["metadata__labels"]["nvidia.com/gpu.product"]
    assert finding.cause == "gpu-shared"
    assert token in finding.reason
    assert f"set cluster.gpu to {product}" in finding.remedy
    for asked in (product, "any"):
        assert report(needs=need(gpu_product=asked), **labels).qualifies
    assert causes(report(needs=need(gpu_product="NVIDIA-H100"), **labels)) == ["gpu-product"]


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"])
def test_parts_of_gpus_under_other_names_are_named(name: str) -> None:
    (finding,) = report(status__allocatable={**NO_GPU, name: "7"}).findings
    assert (finding.cause, f"{name}: 7" in finding.reason) == ("split", True)


def test_nodes_with_different_kinds_of_gpu_are_told_apart() -> None:
    a10, a100 = labelled(gpu_product="NVIDIA-A10"), labelled(gpu_product="NVIDIA-A100-SXM4-40GB")
    assert mixed_gpu_products([report(**a10), report(**a10), report()]) == []
    assert mixed_gpu_products([report(**a10), report(**a10), report(**a100)]) == [
        "NVIDIA-A10 (2 nodes)",
        "NVIDIA-A100-SXM4-40GB (1 node)",
    ]
    assert mixed_gpu_products([report(**a10), report(**a100, spec__unschedulable=True)]) == [], "it runs no pod"


@pytest.mark.parametrize(
    ("gpus", "each", "one_per_node", "pods"),
    [("8", 1, True, 1), ("8", 1, False, 7), ("8", 2, False, 4), ("3", 2, False, 1), ("1", 2, False, 0)],
)
def test_a_node_takes_as_many_pods_as_its_gpus_and_cores_allow(
    gpus: str, each: int, one_per_node: bool, pods: int
) -> None:
    """30 cores: seven pods of four."""
    allocatable = {**NODE["status"]["allocatable"], GPU_RESOURCE: gpus, "memory": "512Gi"}
    assert report(needs=need(gpus=each, one_per_node=one_per_node), status__allocatable=allocatable).pods == pods


def test_where_pods_may_not_be_listed_free_gpus_are_unknown_and_no_reason() -> None:
    (node_report,) = examine([NODE], None, need())
    assert (node_report.gpus_free, node_report.qualifies) == (None, True)


def test_an_image_on_the_node_needs_no_more_disk() -> None:
    local_image = need(image="registry.local/busybox@sha256:" + "11" * 32, image_bytes=int(400 * GIB))
    assert report(needs=local_image).qualifies
    assert causes(report(needs=need(image_bytes=int(400 * GIB)))) == ["disk"]


def test_preemptible_nodes_are_used_only_when_asked_for() -> None:
    labels = {**NODE["metadata"]["labels"], OCI.preemptible_label: "true"}
    taints = [{"key": OCI.preemptible_label, "value": "", "effect": "NoSchedule"}]
    preemptible = need(preemptible=True, tolerations=[{"key": OCI.preemptible_label, "operator": "Exists"}])
    assert report(needs=preemptible, metadata__labels=labels, spec__taints=taints).qualifies
    assert causes(report(needs=preemptible, spec__taints=[])) == ["not-preemptible"]


def test_nodes_that_qualify_come_first() -> None:
    other = copy.deepcopy(NODE)
    other["metadata"]["name"] = "a-cordoned"
    other["spec"]["unschedulable"] = True
    assert [node_report.name for node_report in examine([other, NODE], [], need())] == ["node-3", "a-cordoned"]


BRANDS = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws")
# Value of nvidia/cuda:12.8.1-base-ubuntu24.04.
CUDA_12_8 = " ".join(
    ("cuda>=12.8", *(f"brand={brand},driver>={n},driver<{n + 1}" for n in (535, 550, 560, 565) for brand in BRANDS))
)


def test_the_base_of_the_profile_starts_on_570_and_four_older_branches() -> None:
    drivers = parse_drivers(CUDA_12_8)
    assert drivers == DriverRange(minimum=570, older=(535, 550, 560, 565))
    assert str(drivers) == "570 or newer, or of 535, 550, 560, 565"
    assert [branch for branch in (525, 530, 535, 545, 550, 555, 560, 565, 570, 580) if not drivers.fits(branch)] == [
        *(525, 530, 545, 555)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cuda>=13.0", DriverRange(minimum=580)),
        ("cuda>=12.1 brand=tesla,driver>=450,driver<451", DriverRange(minimum=530, older=(450,))),
        ("cuda>=12.8 driver>=600,driver<602", DriverRange(minimum=570)),
        ("cuda>=99.0", None),
        ("", None),
        ("nonsense cuda>=", None),
        ("driver>=535,driver<536", None),
    ],
)
def test_other_requirements(text: str, expected: DriverRange | None) -> None:
    assert parse_drivers(text) == expected


def test_a_hostile_requirement_takes_no_time() -> None:
    assert parse_drivers("cuda>=12.8 driver>=0,driver<999999999999999999") == DriverRange(minimum=570)


@pytest.mark.parametrize(("driver", "fits"), [("525.60.13", False), ("535.183.01", True), ("570.86.15", True)])
def test_a_nodes_driver_is_checked_against_the_images_requirement(driver: str, fits: bool) -> None:
    labels = {"node.kubernetes.io/instance-type": "VM.GPU.A10.1", "nvidia.com/cuda.driver-version.full": driver}
    required_drivers = parse_drivers(CUDA_12_8)
    assert required_drivers is not None
    assert ("driver" in causes(report(needs=need(drivers=required_drivers), metadata__labels=labels))) is not fits
