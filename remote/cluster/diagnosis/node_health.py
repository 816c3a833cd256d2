"""Health of a node, from its conditions and labels. Pure.

Conditions come from the kubelet (Ready, pressure) and from agents that check GPUs and links: OKE's stack (GpuXid and
21 more), OKE's node auto repair (GPURowRemap), AKS (GPUMissing), NVSentinel (GpuMemWatch), EKS
(AcceleratedHardwareReady). They are recognized by the beginning of their names. Labels come from OKE's active health
checks, from its node auto repair and from NVSentinel.
"""

import re
from collections.abc import Iterator

from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.labels import Object
from remote.providers import Provider

HARDWARE_CAUSE = "hardware"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_HARDWARE = re.compile(r"gpu|nvlink|nvidia|dcgm|xid|pcie|nodehaspcie|rdma|hca|cdfp|acceleratedhardware", re.IGNORECASE)
_GOOD_IF_TRUE = re.compile(r"(Ready|Healthy)\Z")  # the other conditions are named after a problem
_ACTIVE_CHECK = "oke.oraclecloud.com/active-health-checks-"  # followed by the check; its value is pass or fail
_QUARANTINE_LABELS = ("oci.oraclecloud.com/node-problem-detected", "dgxc.nvidia.com/nvsentinel-state")
_HEALTHY_VALUES = ("", "none", "healthy", "remediation-succeeded")


def out_of_service_command(node: str) -> str:
    """Return the command that ends the pods of a node that is off.

    Deletion by force does not: such a pod stays until its Job has counted it.
    """
    return f"kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"


def health_findings(node: Object, provider: Provider) -> Iterator[Diagnosis]:
    """Yield what makes the node unfit: not Ready, pressure, a problem of its hardware."""
    conditions = {condition["type"]: condition for condition in node.get("status", {}).get("conditions") or []}
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        reason = f"not Ready since {ready.get('lastTransitionTime', '?')}: {ready.get('message', 'it never reported')}"
        remedy = provider.texts["node-not-ready"]
        if ready.get("status") == "Unknown":  # the kubelet reports nothing: the node may be off
            remedy = (
                f"{remedy}; if it is really off, end its pods: `{out_of_service_command(node['metadata']['name'])}`"
            )
        yield Diagnosis("not-ready", reason, remedy)
    for pressure in ("DiskPressure", "MemoryPressure", "PIDPressure"):
        if conditions.get(pressure, {}).get("status") == "True":
            yield Diagnosis("pressure", f"{pressure}: it accepts no new pods", "free the node's disk or memory")
    remedy = "cordon it with `inv nodes --cordon`, then replace it"
    for kind, condition in conditions.items():
        if _HARDWARE.match(kind) and condition["status"] == ("False" if _GOOD_IF_TRUE.search(kind) else "True"):
            yield Diagnosis(HARDWARE_CAUSE, f"{kind}: {condition.get('message') or 'no message'}", remedy)
    for name, value in (node["metadata"].get("labels") or {}).items():
        is_failed = name.startswith(_ACTIVE_CHECK) and value == "fail"
        if is_failed or (name in _QUARANTINE_LABELS and value.lower() not in _HEALTHY_VALUES):
            yield Diagnosis(HARDWARE_CAUSE, f"label {name}={value}", remedy)
