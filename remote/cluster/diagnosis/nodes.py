"""Nodes that qualify for our pods, and findings about the others. Pure.

Not covered: a driver that is broken, or too old for the image's CUDA (a pod shows it), and images that other pods will
pull to the node.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from bench.records.units import format_gib
from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.diagnosis.node_health import OUT_OF_SERVICE, health_findings
from remote.cluster.labels import OWNER, PART_OF_LABEL, Object, label
from remote.cluster.manifests import Image
from remote.cluster.quantities import parse_quantity
from remote.cluster.settings import ANY_PRODUCT, GPU_RESOURCE, PodPlacement

INSTANCE_TYPE_LABEL = "node.kubernetes.io/instance-type"
GPU_PRODUCT_LABEL = "nvidia.com/gpu.product"
CORDONED_CAUSE = "cordoned"
_OTHER_GPU = re.compile(r"nvidia\.com/(mig-|gpu\.shared)")  # a device plugin's names for parts of GPUs
MIN_KUBELET = (1, 29)  # backoffLimitPerIndex is on by default
_DEVICE_PLUGIN = re.compile("nvidia.*device-plugin")  # nodes with RDMA also have others
MIN_DRIVER = 525  # the oldest that runs CUDA 12


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node: its resources, the pods that fit, and the reasons why it does not qualify.

    `gpus_free` is None if pods may not be listed. `gpu_product` is None if the node lacks that label.
    """

    name: str
    instance_type: str
    gpu_product: str | None
    pods_per_gpu: int
    gpus: int
    gpus_free: int | None
    disk_bytes: Decimal
    kubelet: str
    driver: str | None
    is_candidate: bool
    pod_capacity: int = 1
    findings: tuple[Diagnosis, ...] = ()

    @property
    def qualifies(self) -> bool:
        return not self.findings

    @property
    def pods(self) -> int:
        """Number of our pods that it can run."""
        return self.pod_capacity if self.qualifies else 0


def examine(
    nodes: Iterable[Object], pods: Sequence[Object] | None, placement: PodPlacement, image: Image | None = None
) -> list[NodeReport]:
    """Report on each node, those that qualify first. `pods`: those of all namespaces; None if they may not be read."""
    reports = [_examine(node, None if pods is None else _pods_on(node, pods), placement, image) for node in nodes]
    return sorted(reports, key=lambda report: (not report.qualifies, not report.is_candidate, report.name))


def _pods_on(node: Object, pods: Sequence[Object]) -> list[Object]:
    name = node["metadata"]["name"]
    return [pod for pod in pods if pod.get("spec", {}).get("nodeName") == name]


def _examine(node: Object, pods: Sequence[Object] | None, placement: PodPlacement, image: Image | None) -> NodeReport:
    status, allocatable = node.get("status", {}), node.get("status", {}).get("allocatable") or {}
    others = [pod for pod in pods or [] if not _is_ours(pod, placement)]
    gpus, kind = int(parse_quantity(allocatable.get(GPU_RESOURCE, "0"))), label(node, INSTANCE_TYPE_LABEL) or ""
    report = NodeReport(
        name=node["metadata"]["name"],
        instance_type=kind,
        gpu_product=label(node, GPU_PRODUCT_LABEL),
        pods_per_gpu=_pods_per_gpu(node),
        gpus=gpus,
        gpus_free=None if pods is None else max(0, gpus - sum(map(gpu_count, others))),
        disk_bytes=parse_quantity(allocatable.get("ephemeral-storage", "0")),
        kubelet=status.get("nodeInfo", {}).get("kubeletVersion", "?"),
        driver=label(node, "nvidia.com/cuda.driver-version.full") or label(node, "nvidia.com/cuda.driver.major"),
        is_candidate=has_gpus(node) if placement.instance_type is None else kind == placement.instance_type,
    )
    if not report.is_candidate:
        # Nothing else matters on a node of another type.
        remedy = f"set cluster.instance_type to {kind} to use it" if kind and gpus else "these pods do not use it"
        expected = "a type with GPUs" if placement.instance_type is None else placement.instance_type
        reason = f"instance type is {kind or 'not labelled'}, not {expected}"
        findings = [Diagnosis("instance-type", reason, remedy)]
    else:
        findings = [
            *health_findings(node, placement.provider),
            *_admission_findings(node, placement),
            *_gpu_findings(report, allocatable, pods, placement),
        ]
        findings += [*_capacity_findings(report, status, others, placement, image), *_version_findings(report)]
    pod_capacity = 1 if placement.section.one_per_node else _pod_capacity(report, status, others, placement)
    return replace(
        report,
        pod_capacity=pod_capacity,
        findings=tuple(finding.with_subject(f"node {report.name}") for finding in findings),
    )


def has_gpus(node: Object) -> bool:
    """Return True if the node has NVIDIA GPUs: allocatable, whole or in parts, or by a label of feature discovery."""
    resources = node.get("status", {}).get("allocatable") or {}
    return any(name.startswith("nvidia.com/") for name in (*resources, *(node["metadata"].get("labels") or {})))


def _pods_per_gpu(node: Object) -> int:
    """Return how many pods share one GPU by time-slicing or MPS."""
    replicas = label(node, "nvidia.com/gpu.replicas") or "1"
    return int(replicas) if replicas.isdecimal() and label(node, "nvidia.com/gpu.sharing-strategy") != "none" else 1


def _pod_capacity(report: NodeReport, status: Object, others: Sequence[Object], placement: PodPlacement) -> int:
    """Return how many of our pods fit, by GPUs, cores and memory."""
    free = _free_resources(status, others)
    gpus = report.gpus if report.gpus_free is None else report.gpus_free
    rooms = [int(free[resource] // wanted) for resource, wanted in placement.requests.items()]
    return max(0, min(gpus // placement.section.gpus_per_pod, *rooms))


def _free_resources(status: Object, others: Sequence[Object]) -> dict[str, Decimal]:
    allocatable = status.get("allocatable") or {}
    return {
        resource: parse_quantity(allocatable.get(resource, "0"))
        - sum((_requested(pod, resource) for pod in others), Decimal(0))
        for resource in ("cpu", "memory")
    }


def _admission_findings(node: Object, placement: PodPlacement) -> Iterator[Diagnosis]:
    """Find reasons why the node does not admit our pods: cordon, taints, or not preemptible."""
    name, spec, required_label = node["metadata"]["name"], node.get("spec", {}), placement.preemptible_label
    if spec.get("unschedulable"):
        yield Diagnosis(CORDONED_CAUSE, "cordoned: it accepts no new pods", f"kubectl uncordon {name}")
    if required_label is not None and label(node, required_label) != "true":
        yield Diagnosis("not-preemptible", "not a preemptible node", "to use it, set cluster.preemptible to false")
    for taint in spec.get("taints") or []:
        is_own = taint["key"].startswith("node.kubernetes.io/") and taint["key"] != OUT_OF_SERVICE
        if taint["effect"] == "PreferNoSchedule" or is_own:
            continue  # a preference, or reported by a condition above
        tolerated = [
            each.get("effect", taint["effect"]) for each in placement.tolerations if each["key"] == taint["key"]
        ]
        if taint["effect"] not in tolerated:
            remedy = f"kubectl taint node {name} {taint['key']}:{taint['effect']}-"
            if taint["key"] == placement.provider.preemptible_label:
                remedy = "to use preemptible nodes, set cluster.preemptible to true"
            text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            yield Diagnosis("taint", f"taint {text} is not tolerated", remedy)


def _gpu_findings(
    report: NodeReport, allocatable: Object, pods: Sequence[Object] | None, placement: PodPlacement
) -> list[Diagnosis]:
    if report.gpus == 0:
        others = [f"{name}: {allocatable[name]}" for name in allocatable if _OTHER_GPU.match(name)]
        if others:
            reason = f"no {GPU_RESOURCE} allocatable, but {', '.join(others)}: split or shared GPUs with other names"
            remedy = "to use them, set the GPU operator's mig.strategy to single, or renameByDefault to false"
            return [Diagnosis("split", reason, remedy)]
        plugin = next((pod for pod in pods or [] if _DEVICE_PLUGIN.search(pod["metadata"]["name"])), None)
        reason, remedy = "no device plugin was found on it", placement.provider.texts["device-plugin"]
        if plugin is not None:
            reason = f"see its device plugin {_full_name(plugin)}"
            remedy = f"kubectl -n {_full_name(plugin).replace('/', ' logs ')}"
        return [Diagnosis("device-plugin", f"no {GPU_RESOURCE} allocatable: {reason}", remedy)]
    product, wanted = placement.section.gpu, placement.section.gpus_per_pod
    if product not in (None, ANY_PRODUCT, report.gpu_product):
        reason = f"its GPU is {report.gpu_product or 'not labelled'}, not {product}"
        return [Diagnosis("gpu-product", reason, f"to use it, set cluster.gpu to {report.gpu_product or 'null'}")]
    if product is None and (report.pods_per_gpu > 1 or "-MIG-" in (report.gpu_product or "")):
        state = f"{report.pods_per_gpu} pods share each GPU" if report.pods_per_gpu > 1 else "its GPUs are split (MIG)"
        remedy = f"to use it nevertheless, set cluster.gpu to {report.gpu_product or ANY_PRODUCT}"
        return [Diagnosis("gpu-shared", f"{state}: measurements are not those of a whole GPU", remedy)]
    if report.gpus < wanted:
        reason = f"it has {report.gpus} GPUs, {wanted} requested"
        return [Diagnosis("few-gpus", reason, "lower cluster.gpus_per_pod")]
    if report.gpus_free is not None and report.gpus_free < wanted:
        holders = [_full_name(pod) for pod in pods or [] if gpu_count(pod) and not _is_ours(pod, placement)]
        reason = f"{report.gpus_free} of {report.gpus} GPUs free, the others in use by {', '.join(holders[:3])}"
        return [Diagnosis("gpu-taken", reason, "wait for the other pods, or stop them")]
    return []


def _capacity_findings(
    report: NodeReport, status: Object, others: Sequence[Object], placement: PodPlacement, image: Image | None
) -> Iterator[Diagnosis]:
    for resource, free in _free_resources(status, others).items():
        wanted = placement.requests[resource]
        if free < wanted:
            free_text, wanted_text = map(format_gib if resource == "memory" else "{:g}".format, (free, wanted))
            remedy = f"lower cluster.{resource}, or use larger nodes"
            yield Diagnosis(f"no-{resource}", f"{resource}: {free_text} free, {wanted_text} requested", remedy)
    names = [name for present in status.get("images") or [] for name in present.get("names") or []]
    is_missing = image is not None and not any(image.digest in name for name in names)
    wanted = placement.scratch + (image.size_bytes or 0 if image is not None and is_missing else 0)
    if report.disk_bytes < wanted:
        disk = f"disk: {format_gib(report.disk_bytes)} allocatable"
        reason = f"{disk}, {format_gib(wanted)} needed for the image and cluster.scratch"
        yield Diagnosis("disk", reason, placement.provider.texts["disk"])


def _version_findings(report: NodeReport) -> Iterator[Diagnosis]:
    kubelet = re.match(r"v?(\d+)\.(\d+)", report.kubelet)
    if kubelet is not None and (int(kubelet[1]), int(kubelet[2])) < MIN_KUBELET:
        minimum = ".".join(map(str, MIN_KUBELET))
        yield Diagnosis("kubelet", f"kubelet {report.kubelet}, older than {minimum}", "upgrade cluster and node pool")
    driver = re.match(r"\d+", report.driver or "")
    if driver is not None and int(driver[0]) < MIN_DRIVER:
        reason = f"NVIDIA driver {report.driver}, older than {MIN_DRIVER}"
        yield Diagnosis("driver", reason, "use a newer GPU node image")


def _requested(pod: Object, resource: str, section: str = "requests") -> Decimal:
    containers = pod.get("spec", {}).get("containers") or []
    amounts = [(container.get("resources") or {}).get(section) or {} for container in containers]
    return sum((parse_quantity(amount.get(resource, "0")) for amount in amounts), Decimal(0))


def gpu_count(pod: Object) -> int:
    """Return the GPUs that a pod uses; 0 once it has ended."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(_requested(pod, GPU_RESOURCE)) or int(_requested(pod, GPU_RESOURCE, "limits"))


def _full_name(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', '?')}/{pod['metadata']['name']}"


def _is_ours(pod: Object, placement: PodPlacement) -> bool:
    return pod["metadata"].get("namespace") == placement.section.namespace and label(pod, PART_OF_LABEL) == OWNER
