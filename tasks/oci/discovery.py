"""Read a tenancy's limits, clusters, node pools, repositories and exports, and derive settings from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oci import regions
from oci.artifacts import ArtifactsClient
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import (
    ClusterEndpoints,
    ClusterSummary,
    NodePoolNodeConfigDetails,
    NodePoolSummary,
)
from oci.core import VirtualNetworkClient
from oci.file_storage import FileStorageClient
from oci.identity import IdentityClient
from oci.limits import LimitsClient

from tasks.errors import UsageError
from tasks.oci.clients import TenancyApi, required

GPU_LIMIT = "gpu-a10-count"  # counts GPUs of the shapes VM.GPU.A10.* and BM.GPU.A10.4
DEFAULT_REPOSITORY = "qlora-fleet"


@dataclass(frozen=True, kw_only=True)
class GpuLimit:
    """GPU limit of one availability domain, and the GPUs in use by the whole tenancy."""

    domain: str
    maximum: int
    used: int


@dataclass(frozen=True, kw_only=True)
class NodePoolInfo:
    """A node pool. `size` is the requested number of nodes."""

    name: str
    shape: str
    size: int

    @property
    def has_gpus(self) -> bool:
        return ".GPU" in self.shape


@dataclass(frozen=True, kw_only=True)
class ClusterInfo:
    """An OKE cluster with its node pools."""

    id: str
    name: str
    version: str
    state: str
    public_endpoint: str | None
    private_endpoint: str | None
    pools: tuple[NodePoolInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Export:
    """An exported path of a file system; `volume_handle` is the value for cluster.volume.handle."""

    mount_target: str
    address: str
    path: str
    file_system: str

    @property
    def volume_handle(self) -> str:
        return f"{self.file_system}:{self.address}:{self.path}"


@dataclass(frozen=True, kw_only=True)
class TenancySurvey:
    """Everything read from a tenancy. `errors` lists failed requests; their fields are empty."""

    region: str
    namespace: str
    compartment: str
    tenancy: str | None = None
    user: str | None = None
    limits: tuple[GpuLimit, ...] = ()
    clusters: tuple[ClusterInfo, ...] = ()
    repositories: tuple[str, ...] = ()
    exports: tuple[Export, ...] = ()
    errors: tuple[str, ...] = field(default=())

    @property
    def registry(self) -> str:
        return registry_host(self.region)


def choose_cluster(clusters: Sequence[ClusterInfo], name: str | None) -> ClusterInfo:
    """Return the cluster with this name or OCID, or the only one. Raises UsageError with the existing ones."""
    matching = [cluster for cluster in clusters if name is None or name in (cluster.name, cluster.id)]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(f"{cluster.name} ({cluster.id})" for cluster in matching or clusters)
    if not matching:
        remedy = f"existing ones: {known}" if known else "set tenancy.compartment to another compartment"
        raise UsageError(f"no cluster{f' {name}' if name else ''} in this compartment", remedy=remedy)
    raise UsageError(
        f"{len(matching)} clusters{f' named {name}' if name else ''}: {known}",
        remedy="type: inv tenancy.kubeconfig --cluster OCID",
    )


def registry_host(region: str) -> str:
    """Return the region's registry, fra.ocir.io for eu-frankfurt-1."""
    key = next((key for key, name in regions.REGIONS_SHORT_NAMES.items() if name == region), None)
    return f"{key}.ocir.io" if key and len(key) == 3 else f"ocir.{region}.oci.oraclecloud.com"


def derive_settings(survey: TenancySurvey) -> dict[str, dict[str, Any]]:
    """Derive settings by section. A setting with several candidates is left out."""
    settings: dict[str, dict[str, Any]] = {}
    is_default = DEFAULT_REPOSITORY in survey.repositories or len(survey.repositories) != 1
    repository = DEFAULT_REPOSITORY if is_default else survey.repositories[0]
    registry = {"image": f"{survey.registry}/{survey.namespace}/{repository}:1"}
    if survey.user is not None:
        registry["user"] = f"{survey.namespace}/{survey.user}"
    settings["registry"] = registry
    pools = [pool for cluster in survey.clusters for pool in cluster.pools if pool.has_gpus]
    if len(pools) == 1:
        settings["fleet"] = {"kind": "pods", **({"size": pools[0].size} if pools[0].size else {})}
        settings["cluster"] = {"instance_type": pools[0].shape}
    if len(survey.exports) == 1:
        settings.setdefault("cluster", {})["volume"] = {"handle": survey.exports[0].volume_handle}
    return settings


def get_tenancy_name(api: TenancyApi) -> str:
    method = api.client(IdentityClient).get_tenancy
    return required(api.get("reading the tenancy", "inspect tenancies", method, api.tenancy), "name")


def get_user_name(api: TenancyApi) -> str | None:
    """Return the user's name as in registry.user; None for an instance or a session, which have no user id."""
    user_id = api.credentials.config.get("user")
    if not user_id:
        return None
    method = api.client(IdentityClient).get_user
    return required(api.get("reading the user", "inspect users", method, user_id), "name")


def list_gpu_limits(api: TenancyApi) -> tuple[GpuLimit, ...]:
    """List the GPU limits of each availability domain that has any."""
    request = ("reading GPU limits", "inspect resource-availability")
    client = api.client(LimitsClient)
    limits = []
    for limit in api.list_all(
        *request, client.list_limit_values, api.tenancy, "compute", scope_type="AD", name=GPU_LIMIT
    ):
        if limit.value:
            domain = required(limit, "availability_domain")
            method = client.get_resource_availability
            available = api.get(*request, method, "compute", GPU_LIMIT, api.tenancy, availability_domain=domain)
            limits.append(GpuLimit(domain=domain, maximum=limit.value, used=available.used or 0))
    return tuple(limits)


def list_clusters(api: TenancyApi, compartment: str) -> tuple[ClusterInfo, ...]:
    """List the compartment's clusters that are not deleted, with their node pools."""
    client = api.client(ContainerEngineClient)
    clusters = api.list_all("listing clusters", "read clusters", client.list_clusters, compartment)
    pools = api.list_all("listing node pools", "read cluster-node-pools", client.list_node_pools, compartment)
    return tuple(
        _describe_cluster(cluster, [pool for pool in pools if _exists(pool) and pool.cluster_id == cluster.id])
        for cluster in clusters
        if _exists(cluster)
    )


def _exists(item: ClusterSummary | NodePoolSummary) -> bool:
    return item.lifecycle_state not in ("DELETED", "DELETING")


def _describe_cluster(cluster: ClusterSummary, pools: Sequence[NodePoolSummary]) -> ClusterInfo:
    endpoints = cluster.endpoints or ClusterEndpoints()
    return ClusterInfo(
        id=required(cluster, "id"),
        name=required(cluster, "name"),
        version=str(cluster.kubernetes_version),
        state=str(cluster.lifecycle_state),
        public_endpoint=endpoints.public_endpoint,
        private_endpoint=endpoints.private_endpoint,
        pools=tuple(
            NodePoolInfo(
                name=required(pool, "name"),
                shape=required(pool, "node_shape"),
                size=(pool.node_config_details or NodePoolNodeConfigDetails()).size or 0,
            )
            for pool in pools
        ),
    )


def list_repositories(api: TenancyApi, compartment: str) -> tuple[str, ...]:
    method = api.client(ArtifactsClient).list_container_repositories
    repositories = api.list_all("listing repositories", "inspect repos", method, compartment)
    return tuple(sorted(required(repository, "display_name") for repository in repositories))


def list_exports(api: TenancyApi, compartment: str) -> tuple[Export, ...]:
    """List the exports of the compartment's mount targets, in every availability domain."""
    storage, network = api.client(FileStorageClient), api.client(VirtualNetworkClient)
    method = api.client(IdentityClient).list_availability_domains
    domains = api.list_all("listing availability domains", "inspect compartments", method, api.tenancy)
    request = ("listing mount targets", "read file-family")
    exports: list[Export] = []
    for domain in domains:
        for target in api.list_all(*request, storage.list_mount_targets, compartment, required(domain, "name")):
            if target.lifecycle_state != "ACTIVE" or not target.private_ip_ids:
                continue
            ip_id = target.private_ip_ids[0]
            address = api.get("reading a mount target's address", "use private-ips", network.get_private_ip, ip_id)
            export_set = required(target, "export_set_id")
            exports += [
                Export(
                    mount_target=required(target, "display_name"),
                    address=required(address, "ip_address"),
                    path=required(export, "path"),
                    file_system=required(export, "file_system_id"),
                )
                for export in api.list_all(*request, storage.list_exports, export_set_id=export_set)
            ]
    return tuple(exports)
