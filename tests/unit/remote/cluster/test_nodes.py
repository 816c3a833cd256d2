"""Tests of the nodes that qualify, and of cause and remedy for each that does not; nodes.yaml has the cases."""

import copy
import dataclasses
from typing import Any

import pytest

from remote.cluster.diagnosis.nodes import (
    NodeReport,
    examine,
)
from remote.cluster.manifests import Image
from remote.cluster.settings import GPU_RESOURCE, ClusterSection, PodPlacement
from remote.providers import PROVIDERS
from tests.support.cases import Case, load_cases

TYPE = "VM.GPU.A10.1"
# Recorded from a node with OKE's labels; shortened.
NODE: dict[str, Any] = {
    "metadata": {"name": "NODE", "labels": {"node.kubernetes.io/instance-type": TYPE, "nvidia.com/gpu.count": "1"}},
    "spec": {"taints": [{"effect": "NoSchedule", "key": GPU_RESOURCE, "value": "present"}]},
    "status": {
        "allocatable": {"cpu": "30", "memory": "24581692Ki", "ephemeral-storage": "267847642337", GPU_RESOURCE: "1"},
        "conditions": [
            {"type": "DiskPressure", "status": "False"},
            {"type": "Ready", "status": "True", "message": "kubelet is posting ready status"},
        ],
        "images": [{"names": ["registry.local/busybox@sha256:1111"], "sizeBytes": 1}],
        "nodeInfo": {"kubeletVersion": "v1.34.9"},
    },
}
CASES = load_cases(__file__, "nodes.yaml")


def place(preemptible_label: str | None = None, **settings: Any) -> PodPlacement:
    oci = PROVIDERS["oci"]
    return PodPlacement(
        section=ClusterSection(namespace="ours", memory="16Gi", scratch="5Gi", **settings),
        provider=oci,
        overlay="pods",
        instance_type=TYPE,
        pull_secret=None,
        preemptible_label=preemptible_label,
    )


def pod(
    name: str = "p",
    namespace: str = "other",
    cpu: int = 1,
    gpus: int = 0,
    gpu_limit: int = 0,
    phase: str = "Running",
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    requests = {"cpu": str(cpu), "memory": "1Gi", **({GPU_RESOURCE: str(gpus)} if gpus else {})}
    limits = {GPU_RESOURCE: str(gpu_limit)} if gpu_limit else {}
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"nodeName": "NODE", "containers": [{"resources": {"requests": requests, "limits": limits}}]},
        "status": {"phase": phase},
    }


def changed_node(changes: Case) -> dict[str, Any]:
    node = copy.deepcopy(NODE)
    for target, key in ((node["metadata"], "labels"), (node["status"], "allocatable")):
        merged = target[key] | changes.get(key, {})
        target[key] = {name: value for name, value in merged.items() if value is not None}
    node["spec"] |= {key: changes[key] for key in ("taints", "unschedulable") if key in changes}
    node["status"] |= {key: changes[key] for key in ("conditions",) if key in changes}
    node["status"]["nodeInfo"] = {"kubeletVersion": changes.get("kubelet", "v1.34.9")}
    return node


def report(case: Case, **placement: Any) -> NodeReport:
    listed, image = case.get("pods", []), {"digest": "sha256:2222", "size_bytes": 35 << 30, **case.get("image", {})}
    pods = None if listed is None else [pod(**fields) for fields in listed]
    placed = dataclasses.replace(place(**case.get("settings", {})), **case.get("placement", {}) | placement)
    (node_report,) = examine([changed_node(case.get("node", {}))], pods, placed, Image(repository="h/r", **image))
    return node_report


@pytest.mark.parametrize("case", CASES)
def test_the_report_of_a_node(case: Case) -> None:
    node_report = report(case)
    first = node_report.findings[0] if node_report.findings else None
    facts = {name: getattr(node_report, name, getattr(first, name, None)) for name in case["expected"]}
    assert facts | {"causes": [finding.cause for finding in node_report.findings]} == case["expected"]
    assert node_report.qualifies == (not case["expected"]["causes"])
    assert all(finding.remedy and finding.subject == "node NODE" for finding in node_report.findings)


def test_nodes_that_qualify_come_first() -> None:
    other = changed_node({"unschedulable": True})
    other["metadata"]["name"] = "A-CORDONED"
    assert [node_report.name for node_report in examine([other, NODE], [], place())] == ["NODE", "A-CORDONED"]
