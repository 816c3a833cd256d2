"""Settings of the cluster and of its shared volume, and what they mean for its provider's nodes."""

from collections import ChainMap
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bench.records.validation import AUTO, FieldError, setting
from remote.cluster.quantities import parse_quantity
from remote.providers import PROVIDERS, Provider

GPU_RESOURCE, ANY_PRODUCT = "nvidia.com/gpu", "any"

_NAME: dict[str, Any] = {  # RFC 1123 label
    "pattern": r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
    "expected": "a Kubernetes name (lower-case letters, digits, '-')",
}
_LABEL: dict[str, Any] = {"pattern": r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$", "expected": "a node's label"}
_QUANTITY: dict[str, Any] = {
    "pattern": r"^[1-9][0-9]*(m|k|M|G|T|Ki|Mi|Gi|Ti)?$",
    "expected": "a Kubernetes quantity like 4, 500m or 24Gi",
}


@dataclass(frozen=True, kw_only=True)
class VolumeSection:
    """Shared file system; without it, results are lost with a pod unless they are collected before."""

    handle: str | None = setting(
        None,
        "NFS: SERVER:/EXPORT; OCI's FSS: FILE-SYSTEM-OCID:MOUNT-TARGET-IP:/EXPORT; null: no shared volume",
        pattern=r"^\S+:/\S*$",
        expected="text like SERVER:/EXPORT",
    )


@dataclass(frozen=True, kw_only=True)
class ClusterSection:
    """Kubernetes cluster of inv nodes, deploy, status, logs, teardown."""

    provider: str = setting(
        AUTO,
        "cloud: oci, or generic for any other; auto: by the registry's host, the volume and the nodes' labels",
        choices=ChainMap[str, Any]({AUTO: None}, PROVIDERS),
    )
    kubeconfig: str | None = setting(None, "kubeconfig file; null: $KUBECONFIG, then ~/.kube/config")
    context: str | None = setting(None, "kubeconfig context; null: the current one")
    namespace: str = setting("qlora-fleet", "namespace; `inv deploy` creates it if it is missing", **_NAME)
    overlay: str = setting(
        "pods",
        "pods (fleet.size workers), interactive, job-1gpu, job-4gpu, job-4gpu-jobset, job-4gpu-kueue",
        choices=("pods", "interactive", "job-1gpu", "job-4gpu", "job-4gpu-jobset", "job-4gpu-kueue"),
    )
    image: str | None = setting(
        None, "image with its digest, HOST/REPOSITORY@sha256:...; null: the image in results/image.json"
    )
    pull_secret: str | None = setting(
        AUTO, "secret with the registry login; auto: ocir-secret or registry-login; null: the image is public", **_NAME
    )
    instance_type: str | None = setting(
        None,
        "label node.kubernetes.io/instance-type of the nodes; null: VM.GPU.A10.1 on OCI, elsewhere any GPU",
        **_LABEL,
    )
    preemptible: bool = setting(False, "true: use preemptible nodes only")
    one_per_node: bool = setting(
        True, "false: as many pods per node as fit; they share its cores, memory bandwidth and disk"
    )
    gpus_per_pod: int = setting(1, "GPUs per pod; a trial with one rank uses the first", ge=1, le=16)
    gpu: str | None = setting(
        None,
        "label nvidia.com/gpu.product of the nodes; null: one kind, whole GPUs; any: also mixed or shared GPUs",
        **_LABEL,
    )
    cpu: str = setting("4", "CPU request per pod, in cores", **_QUANTITY)
    cpu_limit: str | None = setting(
        None, "CPU limit per pod, in cores, for a quota on limits.cpu; null: no limit", **_QUANTITY
    )
    memory: str = setting("24Gi", "memory request and limit per pod; includes /dev/shm", **_QUANTITY)
    shm: str = setting("4Gi", "size of /dev/shm, which data loaders and NCCL use; at most cluster.memory", **_QUANTITY)
    scratch: str = setting("10Gi", "local disk per pod for caches, and for results without FSS", **_QUANTITY)
    queue: str = setting("qlora-fleet", "Kueue LocalQueue of the -kueue overlay", **_NAME)
    ready_timeout_sec: float = setting(
        1800.0, "time that `inv deploy` waits for the pods; a first pull takes minutes", unit="seconds", ge=1, le=86_400
    )
    volume: VolumeSection = field(default_factory=VolumeSection)

    def __post_init__(self) -> None:
        """Check what two settings must fulfil. Raises FieldError."""
        if parse_quantity(self.shm) > parse_quantity(self.memory):
            detail = f"expected at most cluster.memory, {self.memory}, of which it is a part, found {self.shm}"
            raise FieldError("shm", detail)
        if self.cpu_limit is not None and parse_quantity(self.cpu_limit) < parse_quantity(self.cpu):
            raise FieldError("cpu_limit", f"expected at least cluster.cpu, {self.cpu}, found {self.cpu_limit}")


@dataclass(frozen=True, kw_only=True)
class PodPlacement:
    """Nodes and registry login of a deployment's pods: section cluster with the defaults of its provider.

    `preemptible_label`: label of the nodes to use, and key of their taint; None: any nodes.
    """

    section: ClusterSection
    provider: Provider
    overlay: str
    instance_type: str | None
    pull_secret: str | None
    preemptible_label: str | None

    @property
    def tolerations(self) -> list[dict[str, Any]]:
        """Tolerations of the pods, in addition to those of pods that run for long."""
        tolerations = [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}]
        if self.preemptible_label is not None:
            tolerations.append({"key": self.preemptible_label, "operator": "Exists"})
        return tolerations

    @property
    def requests(self) -> dict[str, Decimal]:
        """Cores and bytes of memory that each pod requests."""
        return {"cpu": parse_quantity(self.section.cpu), "memory": parse_quantity(self.section.memory)}

    @property
    def scratch(self) -> Decimal:
        """Bytes on the node's disk; without a shared volume the pod has a second local folder, for results."""
        return parse_quantity(self.section.scratch) * (1 if self.section.volume.handle else 2)
