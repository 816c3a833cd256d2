"""Read a tenancy's limits, clusters, node pools, repositories and exports, and derive settings from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from oci import regions
from oci.artifacts import ArtifactsClient
from oci.container_engine import ContainerEngineClient
from oci.core import VirtualNetworkClient
from oci.file_storage import FileStorageClient
from oci.identity import IdentityClient
from oci.limits import LimitsClient

from tasks.errors import UsageError
from tasks.oci.api_errors import Operation
from tasks.oci.clients import Json, TenancyApi, require_text
from tasks.oci.credentials import check_ocid, ocid_type

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
    cluster_id: str
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
    if name is not None and ocid_type(name):
        check_ocid("tenancy.kubeconfig: --cluster", name, "cluster")
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
    operation = Operation(action="reading the tenancy", permission="inspect tenancies")
    tenancy = api.get_object(operation, api.client(IdentityClient).get_tenancy, api.tenancy)
    return api.text_field(operation, tenancy, "name")


def get_user_name(api: TenancyApi) -> str | None:
    """Return the user's name as in registry.user; None for an instance or a session, which have no user id."""
    user_id = str(api.config.get("user", ""))
    if not user_id.startswith("ocid1.user."):
        return None
    operation = Operation(action="reading the user", permission="inspect users")
    user = api.get_object(operation, api.client(IdentityClient).get_user, user_id)
    return api.text_field(operation, user, "name")


def list_availability_domains(api: TenancyApi) -> list[str]:
    operation = Operation(action="listing availability domains", permission="inspect compartments")
    domains = api.list_all(operation, api.client(IdentityClient).list_availability_domains, api.tenancy)
    return [api.text_field(operation, domain, "name") for domain in domains]


def list_gpu_limits(api: TenancyApi) -> tuple[GpuLimit, ...]:
    """List the GPU limits of each availability domain that has any."""
    operation = Operation(action="reading GPU limits", permission="inspect resource-availability")
    client = api.client(LimitsClient)
    values = api.list_all(operation, client.list_limit_values, api.tenancy, "compute", scope_type="AD", name=GPU_LIMIT)
    limits = []
    for value in values:
        if value.get("value"):
            domain = api.text_field(operation, value, "availabilityDomain")
            arguments = ("compute", GPU_LIMIT, api.tenancy)
            availability = api.get_object(
                operation, client.get_resource_availability, *arguments, availability_domain=domain
            )
            used = api.parse(operation, lambda item: int(item.get("used") or 0), availability)
            limits.append(
                GpuLimit(domain=domain, maximum=api.parse(operation, lambda item: int(item["value"]), value), used=used)
            )
    return tuple(limits)


def list_clusters(api: TenancyApi, compartment: str) -> tuple[ClusterInfo, ...]:
    """List the compartment's clusters that are not deleted, with their node pools."""
    client = api.client(ContainerEngineClient)
    operation = Operation(action="listing clusters", permission="read clusters")
    clusters = api.list_all(operation, client.list_clusters, compartment)
    pools = list_node_pools(api, compartment)
    existing = [cluster for cluster in clusters if cluster.get("lifecycleState") not in ("DELETED", "DELETING")]
    return tuple(api.parse(operation, lambda cluster: _parse_cluster(cluster, pools), cluster) for cluster in existing)


def list_node_pools(api: TenancyApi, compartment: str) -> list[NodePoolInfo]:
    client = api.client(ContainerEngineClient)
    operation = Operation(action="listing node pools", permission="read cluster-node-pools")
    pools = api.list_all(operation, client.list_node_pools, compartment)
    existing = [pool for pool in pools if pool.get("lifecycleState") not in ("DELETED", "DELETING")]
    return [api.parse(operation, _parse_node_pool, pool) for pool in existing]


def _parse_node_pool(item: Json) -> NodePoolInfo:
    """Parse a node pool; for `TenancyApi.parse`, which reports a malformed one."""
    size = int((item.get("nodeConfigDetails") or {}).get("size") or 0)
    if not 0 <= size < 1 << 31:
        raise ValueError("size")
    return NodePoolInfo(
        name=str(item.get("name", "?")),
        cluster_id=str(item.get("clusterId", "")),
        shape=str(item.get("nodeShape", "?")),
        size=size,
    )


def _parse_cluster(item: Json, pools: Sequence[NodePoolInfo]) -> ClusterInfo:
    endpoints = item.get("endpoints") or {}
    return ClusterInfo(
        id=require_text(item.get("id")),
        name=str(item.get("name", "?")),
        version=str(item.get("kubernetesVersion", "?")),
        state=str(item.get("lifecycleState", "?")),
        public_endpoint=endpoints.get("publicEndpoint"),
        private_endpoint=endpoints.get("privateEndpoint"),
        pools=tuple(pool for pool in pools if pool.cluster_id == item["id"]),
    )


def list_repositories(api: TenancyApi, compartment: str) -> tuple[str, ...]:
    operation = Operation(action="listing repositories", permission="inspect repos")
    repositories = api.list_all(operation, api.client(ArtifactsClient).list_container_repositories, compartment)
    return tuple(sorted(api.text_field(operation, repository, "displayName") for repository in repositories))


def list_exports(api: TenancyApi, compartment: str) -> tuple[Export, ...]:
    """List the exports of the compartment's mount targets, in every availability domain."""
    storage, network = api.client(FileStorageClient), api.client(VirtualNetworkClient)
    operation = Operation(action="listing mount targets", permission="read file-family")
    exports = []
    for domain in list_availability_domains(api):
        for target in api.list_all(operation, storage.list_mount_targets, compartment, domain):
            if target.get("lifecycleState") != "ACTIVE" or not target.get("privateIpIds"):
                continue
            address_operation = Operation(action="reading a mount target's address", permission="use private-ips")
            ip_id = api.parse(operation, lambda item: require_text(item["privateIpIds"][0]), target)
            export_set_id = api.text_field(operation, target, "exportSetId")
            private_ip = api.get_object(address_operation, network.get_private_ip, ip_id)
            address = api.text_field(address_operation, private_ip, "ipAddress")
            name = api.text_field(operation, target, "displayName")
            for export in api.list_all(operation, storage.list_exports, export_set_id=export_set_id):
                path = api.text_field(operation, export, "path")
                file_system = api.text_field(operation, export, "fileSystemId")
                exports.append(Export(mount_target=name, address=address, path=path, file_system=file_system))
    return tuple(exports)
