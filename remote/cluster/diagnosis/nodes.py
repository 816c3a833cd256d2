"""Which nodes can take one of our pods, and why not the others. Pure: nodes and pods as JSON in, verdicts out.

Not covered: whether the driver works (a pod finds that out), and images that other pods will still pull to the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from remote.cluster.diagnosis.pods import Finding
from remote.cluster.labels import OWNER, PART_OF_LABEL, Object, label
from remote.cluster.quantity import amount, in_gib

GPU = "nvidia.com/gpu"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PREEMPTIBLE = "oci.oraclecloud.com/oke-is-preemptible"
# backoffLimitPerIndex is on by default since 1.29; driver 525 is the least that CUDA 12 runs on.
MIN_KUBELET, MIN_DRIVER = (1, 29), 525


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one pod asks of a node. `image_bytes`: unpacked plus compressed; a first pull puts both on the disk."""

    instance_type: str
    preemptible: bool
    cpu: Decimal
    memory: Decimal
    scratch: Decimal
    tolerations: Sequence[Object]
    namespace: str
    image: str | None = None
    image_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node: what it has, and what keeps it from qualifying. Free GPUs are None where pods may not be listed."""

    name: str
    instance_type: str
    gpus: int
    gpus_free: int | None
    disk_bytes: Decimal
    kubelet: str
    driver: str | None
    is_candidate: bool
    findings: tuple[Finding, ...] = ()

    @property
    def qualifies(self) -> bool:
        return not self.findings


def examine(nodes: Iterable[Object], pods: Sequence[Object] | None, need: Need) -> list[NodeReport]:
    """A report for each node, those that qualify first. `pods`: of all namespaces, None where that may not be read."""
    reports = [_examine(node, None if pods is None else _on(node, pods), need) for node in nodes]
    return sorted(reports, key=lambda report: (not report.qualifies, not report.is_candidate, report.name))


def _on(node: Object, pods: Sequence[Object]) -> list[Object]:
    name = node["metadata"]["name"]
    return [pod for pod in pods if pod.get("spec", {}).get("nodeName") == name]


def _examine(node: Object, pods: Sequence[Object] | None, need: Need) -> NodeReport:
    meta, status = node["metadata"], node.get("status", {})
    labels, allocatable = meta.get("labels") or {}, status.get("allocatable") or {}
    gpus = int(amount(allocatable.get(GPU, "0")))
    free = None if pods is None else gpus - sum(_gpus_of(pod) for pod in pods if not _is_ours(pod, need))
    kind = labels.get(INSTANCE_TYPE, "")
    driver = labels.get("nvidia.com/cuda.driver-version.full") or labels.get("nvidia.com/cuda.driver.major")
    report = NodeReport(
        name=meta["name"],
        instance_type=kind,
        gpus=gpus,
        gpus_free=free,
        disk_bytes=amount(allocatable.get("ephemeral-storage", "0")),
        kubelet=status.get("nodeInfo", {}).get("kubeletVersion", "?"),
        driver=driver,
        is_candidate=kind == need.instance_type,
    )
    found: list[tuple[str, str, str]] = []
    if kind != need.instance_type:
        # All else about a node of another kind is nobody's concern here.
        remedy = f"set cluster.instance_type to {kind} to use it" if kind and gpus else "it is not for these pods"
        found.append(("instance-type", f"instance type is {kind or 'not labelled'}, not {need.instance_type}", remedy))
    else:
        found += _health(node, need)
        found += _gpu(report, pods)
        found += _room(report, allocatable, status, pods, need)
        found += _versions(report)
    subject = f"node {report.name}"
    findings = tuple(Finding(subject=subject, cause=c, reason=r, remedy=d) for c, r, d in found)
    return replace(report, findings=findings)


def _health(node: Object, need: Need) -> list[tuple[str, str, str]]:
    name, found = node["metadata"]["name"], []
    conditions = {one["type"]: one for one in node.get("status", {}).get("conditions") or []}
    ready = conditions.get("Ready")
    if ready is None or ready["status"] != "True":
        since = (ready or {}).get("lastTransitionTime", "?")
        message = (ready or {}).get("message", "it never reported")
        remedy = "restart or replace the node (OCI console: node pool, cycle); its pods move after 30 s"
        found.append(("not-ready", f"not Ready since {since}: {message}", remedy))
    found += [
        ("pressure", f"{pressure}: it takes no new pods", "free the node's disk or memory")
        for pressure in ("DiskPressure", "MemoryPressure", "PIDPressure")
        if conditions.get(pressure, {}).get("status") == "True"
    ]
    if node.get("spec", {}).get("unschedulable"):
        found.append(("cordoned", "cordoned: it takes no new pods", f"kubectl uncordon {name}"))
    is_preemptible = label(node, PREEMPTIBLE) == "true"
    if need.preemptible and not is_preemptible:
        remedy = "set cluster.preemptible to false, and cluster.overlay to another than preemptible, to use it"
        found.append(("not-preemptible", "not a preemptible node", remedy))
    for taint in node.get("spec", {}).get("taints") or []:
        if taint["effect"] == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
            continue  # a wish, or the shadow of a condition that is named above
        if not any(_tolerates(toleration, taint) for toleration in need.tolerations):
            text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            if taint["key"] == PREEMPTIBLE:
                remedy = "set cluster.preemptible to true to use preemptible nodes"
            else:
                remedy = f"kubectl taint node {name} {taint['key']}:{taint['effect']}-"
            found.append(("taint", f"taint {text} is not tolerated", remedy))
    return found


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _gpu(report: NodeReport, pods: Sequence[Object] | None) -> list[tuple[str, str, str]]:
    if report.gpus == 0:
        plugin = next((pod for pod in pods or [] if _is_device_plugin(pod)), None)
        if pods is None:
            why, remedy = "whether the device plugin runs may not be read", "look at `kubectl get pods -A`"
        elif plugin is None:
            why = "no device plugin runs on it"
            remedy = "enable the NVIDIA GPU plugin add-on of OKE, or install the device plugin or GPU operator"
        else:
            name = f"{plugin['metadata'].get('namespace', '?')}/{plugin['metadata']['name']}"
            why = f"its device plugin {name} is {_state(plugin)}"
            remedy = f"kubectl -n {name.replace('/', ' logs ')}"
        return [("device-plugin", f"no {GPU} allocatable: {why}", remedy)]
    if report.gpus_free is not None and report.gpus_free < 1:
        holders = [f"{p['metadata'].get('namespace')}/{p['metadata']['name']}" for p in pods or [] if _gpus_of(p)]
        return [("gpu-taken", f"its GPU is taken by {', '.join(holders[:3])}", "wait for it, or stop it")]
    return []


def _room(
    report: NodeReport, allocatable: Object, status: Object, pods: Sequence[Object] | None, need: Need
) -> list[tuple[str, str, str]]:
    found = []
    for resource, wanted, setting in (("cpu", need.cpu, "cluster.cpu"), ("memory", need.memory, "cluster.memory")):
        has = amount(allocatable.get(resource, "0"))
        taken = sum((_requests(pod, resource) for pod in pods or [] if not _is_ours(pod, need)), Decimal(0))
        if has - taken < wanted:
            has_text, want_text = (
                (in_gib(has - taken), in_gib(wanted)) if resource == "memory" else (f"{has - taken:g}", f"{wanted:g}")
            )
            reason = f"{resource}: {has_text} of it free, {want_text} asked for"
            found.append((f"no-{resource}", reason, f"lower {setting}, or use larger nodes"))
    digest = need.image.rsplit("@", 1)[-1] if need.image and "@" in need.image else None
    has_image = digest is not None and any(
        digest in name for image in status.get("images") or [] for name in image.get("names") or []
    )
    image_bytes = 0 if has_image or need.image_bytes is None else need.image_bytes
    wanted = need.scratch + image_bytes
    if report.disk_bytes < wanted:
        reason = (
            f"disk: {in_gib(report.disk_bytes)} allocatable, {in_gib(wanted)} needed for the image and cluster.scratch"
        )
        remedy = "grow the boot volume (node pool, 200 GB; on OKE also `oci-growfs`), or lower cluster.scratch"
        found.append(("disk", reason, remedy))
    return found


def _versions(report: NodeReport) -> list[tuple[str, str, str]]:
    found = []
    kubelet = re.match(r"v?(\d+)\.(\d+)", report.kubelet)
    if kubelet is not None and (int(kubelet[1]), int(kubelet[2])) < MIN_KUBELET:
        least = ".".join(map(str, MIN_KUBELET))
        found.append(("kubelet", f"kubelet {report.kubelet}, older than {least}", "upgrade cluster and node pool"))
    driver = re.match(r"\d+", report.driver or "")
    if driver is not None and int(driver[0]) < MIN_DRIVER:
        remedy = "use a newer GPU node image"
        found.append(("driver", f"NVIDIA driver {report.driver}, older than {MIN_DRIVER}", remedy))
    return found


def _requests(pod: Object, resource: str) -> Decimal:
    containers = pod.get("spec", {}).get("containers") or []
    requests = [(one.get("resources") or {}).get("requests") or {} for one in containers]
    return sum((amount(request.get(resource, "0")) for request in requests), Decimal(0))


def _gpus_of(pod: Object) -> int:
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(_requests(pod, GPU)) or int(
        sum(
            amount(((one.get("resources") or {}).get("limits") or {}).get(GPU, "0"))
            for one in pod.get("spec", {}).get("containers") or []
        )
    )


def _is_ours(pod: Object, need: Need) -> bool:
    return pod["metadata"].get("namespace") == need.namespace and label(pod, PART_OF_LABEL) == OWNER


def _is_device_plugin(pod: Object) -> bool:
    name = pod["metadata"]["name"]
    return "nvidia" in name and "device-plugin" in name


def _state(pod: Object) -> str:
    for container in pod.get("status", {}).get("containerStatuses") or []:
        waiting = container.get("state", {}).get("waiting")
        if waiting:
            return str(waiting.get("reason", "waiting"))
    return str(pod.get("status", {}).get("phase", "?"))
