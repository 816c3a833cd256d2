"""Health of a node, from its conditions and labels. Pure.

Conditions come from the kubelet (Ready, pressure) and from agents that check GPUs and links: OKE's stack (GpuXid and
21 more), OKE's node auto repair (GPURowRemap), AKS (GPUMissing), NVSentinel (GpuMemWatch), EKS
(AcceleratedHardwareReady). They are recognized by the beginning of their names. Labels come from OKE's active health
checks, from its node auto repair and from NVSentinel.

A check that has no result, or has stopped reporting, says nothing: such a node is "unknown", not "well".
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.labels import Object, label
from remote.providers import Provider

WELL, UNKNOWN, SICK = "well", "unknown", "sick"
HARDWARE_CAUSE = "hardware"
UNKNOWN_CAUSE = "health-unknown"
# Node Problem Detector renews its conditions every 5 minutes (--k8s-exporter-heartbeat-period), like the kubelet.
STALE_SEC = 900.0
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_HARDWARE = re.compile(r"gpu|nvlink|nvidia|dcgm|xid|pcie|nodehaspcie|rdma|hca|cdfp|acceleratedhardware", re.IGNORECASE)
_GOOD_IF_TRUE = re.compile(r"(Ready|Healthy)\Z")  # the other conditions are named after a problem
_ACTIVE_CHECK = "oke.oraclecloud.com/active-health-checks-"  # followed by the check; its value is pass or fail
_QUARANTINE_LABELS = ("oci.oraclecloud.com/node-problem-detected", "dgxc.nvidia.com/nvsentinel-state")
_HEALTHY_VALUES = ("", "none", "healthy", "remediation-succeeded")


def out_of_service_command(node: str) -> str:
    """Return the command that ends the pods of a node that is off, and so lets a Job with a policy replace them.

    Deletion by force does not: such a pod stays until its Job has counted it.
    """
    return f"kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"


def health_findings(node: Object, provider: Provider) -> Iterator[Diagnosis]:
    """Yield what makes the node unfit: not Ready, pressure, a problem of its hardware."""
    conditions = _conditions(node)
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
    for kind, condition in _hardware_conditions(node).items():
        if _is_problem(kind, condition) and not _is_stale(condition, ready):
            yield Diagnosis(HARDWARE_CAUSE, f"{kind}: {condition.get('message') or 'no message'}", remedy)
    for name, value in _failed_labels(node):
        yield Diagnosis(HARDWARE_CAUSE, f"label {name}={value}", remedy)


def unknown_findings(node: Object) -> list[Diagnosis]:
    """Return one finding if checks of the hardware have no current result; empty otherwise."""
    ready = _conditions(node).get("Ready", {})
    stale = [kind for kind, condition in _hardware_conditions(node).items() if _is_unknown(condition, ready)]
    if not stale:
        return []
    names = ", ".join(stale[:3]) + (f" and {len(stale) - 3} more" if len(stale) > 3 else "")
    reason = f"health unknown: no current result of {names}"
    remedy = "check the agent that sets them, or test the node: `dcgmi diag -r 3` on it"
    return [Diagnosis(UNKNOWN_CAUSE, reason, remedy)]


def node_health(node: Object, provider: Provider) -> str | None:
    """Return WELL, UNKNOWN or SICK; None if nothing on the node checks its hardware."""
    if any(finding.cause == HARDWARE_CAUSE for finding in health_findings(node, provider)):
        return SICK
    if unknown_findings(node):
        return UNKNOWN
    return WELL if _hardware_conditions(node) or any(_active_checks(node)) else None


def _conditions(node: Object) -> dict[str, Mapping[str, Any]]:
    return {str(condition["type"]): condition for condition in node.get("status", {}).get("conditions") or []}


def _hardware_conditions(node: Object) -> dict[str, Mapping[str, Any]]:
    return {kind: condition for kind, condition in _conditions(node).items() if _HARDWARE.match(kind)}


def _is_problem(kind: str, condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("status") == ("False" if _GOOD_IF_TRUE.search(kind) else "True"))


def _is_unknown(condition: Mapping[str, Any], ready: Mapping[str, Any]) -> bool:
    return condition.get("status") not in ("True", "False") or _is_stale(condition, ready)


def _is_stale(condition: Mapping[str, Any], ready: Mapping[str, Any]) -> bool:
    """Check whether the condition was renewed long before the kubelet's; both times are of the node's own clock."""
    heartbeat, newest = (_parse_time(each.get("lastHeartbeatTime")) for each in (condition, ready))
    return newest is not None and heartbeat is not None and (newest - heartbeat).total_seconds() > STALE_SEC


def _parse_time(text: object) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return parsed if parsed.tzinfo is not None else None


def _active_checks(node: Object) -> Iterator[tuple[str, str]]:
    for name, value in (node["metadata"].get("labels") or {}).items():
        if name.startswith(_ACTIVE_CHECK) and not name.endswith("-last-run"):
            yield name, str(value)


def _failed_labels(node: Object) -> Iterator[tuple[str, str]]:
    yield from ((name, value) for name, value in _active_checks(node) if value == "fail")
    for name in _QUARANTINE_LABELS:
        value = label(node, name)
        if value is not None and value.lower() not in _HEALTHY_VALUES:
            yield name, value
