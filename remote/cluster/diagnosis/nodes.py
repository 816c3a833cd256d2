"""Which nodes can take one of our pods, and why not the others. Pure: nodes and pods as JSON in, findings out.

Not covered: whether the driver works (a pod shows that), and images that other pods will still pull to the node.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from remote.cluster.diagnosis.driver import Drivers
from remote.cluster.diagnosis.finding import Diagnosis
from remote.cluster.errors import reading_objects
from remote.cluster.labels import OWNER, PART_OF_LABEL, Object, label
from remote.cluster.quantities import amount, in_gib

GPU = "nvidia.com/gpu"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
PRODUCT = "nvidia.com/gpu.product"
ANY_PRODUCT = "any"
_OTHER_GPU = re.compile(r"nvidia\.com/(mig-|gpu\.shared)")  # a device plugin's names for parts of GPUs
PREEMPTIBLE = "oci.oraclecloud.com/oke-is-preemptible"
MIN_KUBELET = (1, 29)  # backoffLimitPerIndex is on by default
CUDA_12 = Drivers(since=525)  # where the image's base says nothing else: the least that CUDA 12 runs on


@dataclass(frozen=True, kw_only=True)
class NodeRequirements:
    """What one pod asks of a node. `image_bytes`: unpacked plus compressed; a first pull puts both on the disk.

    `product` is the label nvidia.com/gpu.product of the nodes to use, or `ANY_PRODUCT`; None: any, of whole GPUs.
    """

    instance_type: str
    preemptible: bool
    cpu: Decimal
    memory: Decimal
    scratch: Decimal
    tolerations: Sequence[Object]
    namespace: str
    gpus: int = 1
    one_per_node: bool = True
    product: str | None = None
    image: str | None = None
    image_bytes: int | None = None
    drivers: Drivers = CUDA_12


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One node: what it has, how many pods it can take, and what keeps it from qualifying.

    Free GPUs are None where pods may not be listed. `product` is the kind of GPU where the node has that label;
    `shared` is how many pods get the same GPU.
    """

    name: str
    instance_type: str
    product: str | None
    shared: int
    gpus: int
    gpus_free: int | None
    disk_bytes: Decimal
    kubelet: str
    driver: str | None
    is_candidate: bool
    room: int = 1
    findings: tuple[Diagnosis, ...] = ()

    @property
    def qualifies(self) -> bool:
        return not self.findings

    @property
    def pods(self) -> int:
        """How many of our pods it can take."""
        return self.room if self.qualifies else 0


@reading_objects()
def examine(nodes: Iterable[Object], pods: Sequence[Object] | None, need: NodeRequirements) -> list[NodeReport]:
    """A report for each node, those that qualify first. `pods`: of all namespaces, None where that may not be read."""
    reports = [_examine(node, None if pods is None else _on(node, pods), need) for node in nodes]
    return sorted(reports, key=lambda report: (not report.qualifies, not report.is_candidate, report.name))


def _on(node: Object, pods: Sequence[Object]) -> list[Object]:
    name = node["metadata"]["name"]
    return [pod for pod in pods if pod.get("spec", {}).get("nodeName") == name]


def _examine(node: Object, pods: Sequence[Object] | None, need: NodeRequirements) -> NodeReport:
    status, allocatable = node.get("status", {}), node.get("status", {}).get("allocatable") or {}
    others = [pod for pod in pods or [] if not _is_ours(pod, need)]
    gpus, kind = int(amount(allocatable.get(GPU, "0"))), label(node, INSTANCE_TYPE) or ""
    report = NodeReport(
        name=node["metadata"]["name"],
        instance_type=kind,
        product=label(node, PRODUCT),
        shared=_shared(node),
        gpus=gpus,
        gpus_free=None if pods is None else max(0, gpus - sum(map(_gpus_of, others))),
        disk_bytes=amount(allocatable.get("ephemeral-storage", "0")),
        kubelet=status.get("nodeInfo", {}).get("kubeletVersion", "?"),
        driver=label(node, "nvidia.com/cuda.driver-version.full") or label(node, "nvidia.com/cuda.driver.major"),
        is_candidate=kind == need.instance_type,
    )
    if kind != need.instance_type:
        # Nothing else about a node of another type matters.
        remedy = f"set cluster.instance_type to {kind} to use it" if kind and gpus else "it is not for these pods"
        reason = f"instance type is {kind or 'not labelled'}, not {need.instance_type}"
        found = [Diagnosis("instance-type", reason, remedy)]
    else:
        found = [*_health(node), *_kept_out(node, need), *_gpu(report, allocatable, pods, need)]
        found += [*_room(report, status, others, need), *_versions(report, need)]
    room = 1 if need.one_per_node else _fitting(report, status, others, need)
    return replace(report, room=room, findings=tuple(finding.of(f"node {report.name}") for finding in found))


def _shared(node: Object) -> int:
    """How many pods get the same GPU, by time-slicing or MPS."""
    replicas = label(node, "nvidia.com/gpu.replicas") or "1"
    return int(replicas) if replicas.isdecimal() and label(node, "nvidia.com/gpu.sharing-strategy") != "none" else 1


def _fitting(report: NodeReport, status: Object, others: Sequence[Object], need: NodeRequirements) -> int:
    """How many of our pods find GPUs, cores and memory at once."""
    free = _free(status, others)
    gpus = report.gpus if report.gpus_free is None else report.gpus_free
    return max(0, min(gpus // need.gpus, int(free["cpu"] // need.cpu), int(free["memory"] // need.memory)))


def _free(status: Object, others: Sequence[Object]) -> dict[str, Decimal]:
    allocatable = status.get("allocatable") or {}
    return {
        resource: amount(allocatable.get(resource, "0")) - sum((_requests(pod, resource) for pod in others), Decimal(0))
        for resource in ("cpu", "memory")
    }


def mixed(reports: Sequence[NodeReport]) -> list[str]:
    """The kinds of GPU of the nodes that qualify, as "NVIDIA-A10 (3 nodes)"; empty where there is one at most.

    A node without that label counts as one kind with all others.
    """
    kinds = Counter(report.product for report in reports if report.qualifies and report.product is not None)
    return (
        [f"{kind} ({count} node{'s' if count > 1 else ''})" for kind, count in kinds.items()] if len(kinds) > 1 else []
    )


def _health(node: Object) -> Iterator[Diagnosis]:
    conditions = {one["type"]: one for one in node.get("status", {}).get("conditions") or []}
    ready = conditions.get("Ready", {})
    if ready.get("status") != "True":
        reason = f"not Ready since {ready.get('lastTransitionTime', '?')}: {ready.get('message', 'it never reported')}"
        remedy = "restart or replace the node (OCI console: node pool, cycle); its pods move after 30 s"
        yield Diagnosis("not-ready", reason, remedy)
    for pressure in ("DiskPressure", "MemoryPressure", "PIDPressure"):
        if conditions.get(pressure, {}).get("status") == "True":
            yield Diagnosis("pressure", f"{pressure}: it takes no new pods", "free the node's disk or memory")


def _kept_out(node: Object, need: NodeRequirements) -> Iterator[Diagnosis]:
    """What keeps our pods from the node: cordon, taints, or that it is not preemptible."""
    name, spec = node["metadata"]["name"], node.get("spec", {})
    if spec.get("unschedulable"):
        yield Diagnosis("cordoned", "cordoned: it takes no new pods", f"kubectl uncordon {name}")
    if need.preemptible and label(node, PREEMPTIBLE) != "true":
        remedy = "set cluster.preemptible to false, and cluster.overlay to another than preemptible, to use it"
        yield Diagnosis("not-preemptible", "not a preemptible node", remedy)
    for taint in spec.get("taints") or []:
        if taint["effect"] == "PreferNoSchedule" or taint["key"].startswith("node.kubernetes.io/"):
            continue  # a preference, or what a condition above says already
        if not any(_tolerates(toleration, taint) for toleration in need.tolerations):
            remedy = f"kubectl taint node {name} {taint['key']}:{taint['effect']}-"
            if taint["key"] == PREEMPTIBLE:
                remedy = "set cluster.preemptible to true to use preemptible nodes"
            text = f"{taint['key']}={taint.get('value', '')}:{taint['effect']}"
            yield Diagnosis("taint", f"taint {text} is not tolerated", remedy)


def _tolerates(toleration: Object, taint: Object) -> bool:
    if toleration.get("effect") not in (None, taint["effect"]):
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return toleration.get("key") in (None, taint["key"])
    return bool(toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""))


def _gpu(
    report: NodeReport, allocatable: Object, pods: Sequence[Object] | None, need: NodeRequirements
) -> list[Diagnosis]:
    if report.gpus == 0:
        others = [f"{name}: {allocatable[name]}" for name in allocatable if _OTHER_GPU.match(name)]
        if others:
            reason = f"no {GPU} allocatable, but {', '.join(others)}: its GPUs are split or shared under other names"
            remedy = "set the GPU operator's mig.strategy to single, or renameByDefault to false, to use them"
            return [Diagnosis("split", reason, remedy)]
        plugin = next((pod for pod in pods or [] if _is_device_plugin(pod)), None)
        if pods is None:
            why, remedy = "no right to see whether the device plugin runs", "look at `kubectl get pods -A`"
        elif plugin is None:
            why = "no device plugin runs on it"
            remedy = "enable the NVIDIA GPU plugin add-on of OKE, or install the device plugin or GPU operator"
        else:
            why = f"its device plugin {_name(plugin)} is {_state(plugin)}"
            remedy = f"kubectl -n {_name(plugin).replace('/', ' logs ')}"
        return [Diagnosis("device-plugin", f"no {GPU} allocatable: {why}", remedy)]
    if need.product not in (None, ANY_PRODUCT, report.product):
        reason = f"its GPU is {report.product or 'not labelled'}, not {need.product}"
        return [Diagnosis("gpu-product", reason, f"set cluster.gpu to {report.product or 'null'} to use it")]
    if need.product is None and (report.shared > 1 or "-MIG-" in (report.product or "")):
        how = f"{report.shared} pods share each GPU" if report.shared > 1 else "its GPUs are split (MIG)"
        what = "other pods slow them down" if report.shared > 1 else "they are those of a part of a GPU"
        remedy = f"set cluster.gpu to {report.product or ANY_PRODUCT} to use it all the same"
        return [Diagnosis("gpu-shared", f"{how}: numbers measured there are not those of a whole GPU ({what})", remedy)]
    if report.gpus < need.gpus:
        return [
            Diagnosis("few-gpus", f"it has {report.gpus} GPUs, {need.gpus} asked for", "lower cluster.gpus_per_pod")
        ]
    if report.gpus_free is not None and report.gpus_free < need.gpus:
        holders = [_name(pod) for pod in pods or [] if _gpus_of(pod) and not _is_ours(pod, need)]
        by = (
            f" is taken by {', '.join(holders[:3])}"
            if report.gpus == 1
            else f"s: {report.gpus_free} of {report.gpus} free"
        )
        return [Diagnosis("gpu-taken", f"its GPU{by}", "wait for it, or stop it")]
    return []


def _room(report: NodeReport, status: Object, others: Sequence[Object], need: NodeRequirements) -> Iterator[Diagnosis]:
    for resource, free in _free(status, others).items():
        wanted = need.cpu if resource == "cpu" else need.memory
        if free < wanted:
            has, asked = map(in_gib if resource == "memory" else "{:g}".format, (free, wanted))
            remedy = f"lower cluster.{resource}, or use larger nodes"
            yield Diagnosis(f"no-{resource}", f"{resource}: {has} of it free, {asked} asked for", remedy)
    digest = need.image.rsplit("@", 1)[-1] if need.image and "@" in need.image else None
    names = [name for image in status.get("images") or [] for name in image.get("names") or []]
    has_image = digest is not None and any(digest in name for name in names)
    wanted = need.scratch + (0 if has_image else need.image_bytes or 0)
    if report.disk_bytes < wanted:
        disk = f"disk: {in_gib(report.disk_bytes)} allocatable"
        remedy = "grow the boot volume (node pool, 200 GB; on OKE also `oci-growfs`), or lower cluster.scratch"
        yield Diagnosis("disk", f"{disk}, {in_gib(wanted)} needed for the image and cluster.scratch", remedy)


def _versions(report: NodeReport, need: NodeRequirements) -> Iterator[Diagnosis]:
    kubelet = re.match(r"v?(\d+)\.(\d+)", report.kubelet)
    if kubelet is not None and (int(kubelet[1]), int(kubelet[2])) < MIN_KUBELET:
        least = ".".join(map(str, MIN_KUBELET))
        yield Diagnosis("kubelet", f"kubelet {report.kubelet}, older than {least}", "upgrade cluster and node pool")
    driver = re.match(r"\d+", report.driver or "")
    if driver is not None and not need.drivers.fits(int(driver[0])):
        reason = f"NVIDIA driver {report.driver}, and the image starts on {need.drivers}"
        remedy = "use a newer GPU node image, or set image.base to one of an older CUDA"
        yield Diagnosis("driver", reason, remedy)


def _requests(pod: Object, resource: str, which: str = "requests") -> Decimal:
    resources = [one.get("resources") or {} for one in pod.get("spec", {}).get("containers") or []]
    return sum((amount((one.get(which) or {}).get(resource, "0")) for one in resources), Decimal(0))


def _gpus_of(pod: Object) -> int:
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(_requests(pod, GPU)) or int(_requests(pod, GPU, "limits"))


def _name(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', '?')}/{pod['metadata']['name']}"


def _is_ours(pod: Object, need: NodeRequirements) -> bool:
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
