"""What a tenancy has, as this project needs it, and the settings that follow from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oci import regions
from oci.artifacts import ArtifactsClient
from oci.container_engine import ContainerEngineClient
from oci.core import VirtualNetworkClient
from oci.file_storage import FileStorageClient
from oci.identity import IdentityClient
from oci.limits import LimitsClient

from tasks.oci.access.clients import Access, Json, text
from tasks.oci.access.errors import ServiceCall

GPU_LIMIT = "gpu-a10-count"  # of the shapes VM.GPU.A10.* and BM.GPU.A10.4, in GPUs
REPOSITORY = "qlora-fleet"


@dataclass(frozen=True, kw_only=True)
class GpuLimit:
    """GPUs of one availability domain: those allowed, and those in use by the whole tenancy."""

    domain: str
    most: int
    used: int


@dataclass(frozen=True, kw_only=True)
class NodePoolInfo:
    """A node pool. `size`: nodes that are wanted; `nodes`: those there are, as the API has them."""

    id: str
    name: str
    cluster_id: str
    shape: str
    size: int
    nodes: tuple[Mapping[str, Any], ...] = ()

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
    public: str | None
    private: str | None
    pools: tuple[NodePoolInfo, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Export:
    """A path of a file system behind a mount target; `handle` is what cluster.fss.volume_handle takes."""

    mount_target: str
    address: str
    path: str
    file_system: str

    @property
    def handle(self) -> str:
        return f"{self.file_system}:{self.address}:{self.path}"


@dataclass(frozen=True, kw_only=True)
class TenancySurvey:
    """All of it. `unread` are errors of what could not be asked; its part is then empty."""

    region: str
    namespace: str
    compartment: str
    tenancy: str | None = None
    user: str | None = None
    limits: tuple[GpuLimit, ...] = ()
    clusters: tuple[ClusterInfo, ...] = ()
    repositories: tuple[str, ...] = ()
    exports: tuple[Export, ...] = ()
    unread: tuple[str, ...] = field(default=())

    @property
    def registry(self) -> str:
        return registry_host(self.region)


def registry_host(region: str) -> str:
    """The region's registry, fra.ocir.io for eu-frankfurt-1."""
    key = next((key for key, name in regions.REGIONS_SHORT_NAMES.items() if name == region), None)
    return f"{key}.ocir.io" if key and len(key) == 3 else f"ocir.{region}.oci.oraclecloud.com"


def settings_for(found: TenancySurvey) -> dict[str, dict[str, Any]]:
    """The settings that follow, by section. Where the tenancy has several of a thing, that setting is left out."""
    settings: dict[str, dict[str, Any]] = {}
    repository = (
        REPOSITORY if REPOSITORY in found.repositories or len(found.repositories) != 1 else found.repositories[0]
    )
    registry = {"image": f"{found.registry}/{found.namespace}/{repository}:1"}
    if found.user is not None:
        registry["user"] = f"{found.namespace}/{found.user}"
    settings["registry"] = registry
    pools = [pool for cluster in found.clusters for pool in cluster.pools if pool.has_gpus]
    if len(pools) == 1:
        settings["fleet"] = {"kind": "pods", **({"size": pools[0].size} if pools[0].size else {})}
        settings["cluster"] = {"instance_type": pools[0].shape}
    if len(found.exports) == 1:
        settings.setdefault("cluster", {})["fss"] = {"volume_handle": found.exports[0].handle}
    return settings


def tenancy_name(entry: Access) -> str:
    asked = ServiceCall(doing="asking for the tenancy", right="inspect tenancies")
    return entry.text(asked, entry.one(asked, entry.client(IdentityClient).get_tenancy, entry.tenancy), "name")


def user_name(entry: Access) -> str | None:
    """As the registry wants it after the namespace; None for an instance and for a session, which do not say."""
    user = str(entry.config.get("user", ""))
    if not user.startswith("ocid1.user."):
        return None
    asked = ServiceCall(doing="asking who this user is", right="inspect users")
    return entry.text(asked, entry.one(asked, entry.client(IdentityClient).get_user, user), "name")


def domains(entry: Access) -> list[str]:
    asked = ServiceCall(doing="listing availability domains", right="inspect compartments")
    listed = entry.all(asked, entry.client(IdentityClient).list_availability_domains, entry.tenancy)
    return [entry.text(asked, one, "name") for one in listed]


def gpu_limits(entry: Access) -> tuple[GpuLimit, ...]:
    """Of every availability domain with a limit above nought."""
    asked = ServiceCall(doing="reading GPU limits", right="inspect resource-availability")
    client = entry.client(LimitsClient)
    values = entry.all(asked, client.list_limit_values, entry.tenancy, "compute", scope_type="AD", name=GPU_LIMIT)
    found = []
    for value in values:
        if value.get("value"):
            domain = entry.text(asked, value, "availabilityDomain")
            ask = (client.get_resource_availability, "compute", GPU_LIMIT, entry.tenancy)
            used = entry.read(asked, _used, entry.one(asked, *ask, availability_domain=domain))
            found.append(GpuLimit(domain=domain, most=entry.read(asked, _value, value), used=used))
    return tuple(found)


def _value(one: Json) -> int:
    return int(one["value"])


def _used(one: Json) -> int:
    return int(one.get("used") or 0)


def clusters(entry: Access, compartment: str) -> tuple[ClusterInfo, ...]:
    """The compartment's clusters that are not deleted, with their pools; the nodes of a pool are not asked for."""
    client = entry.client(ContainerEngineClient)
    asked = ServiceCall(doing="listing clusters", right="read clusters")
    listed = entry.all(asked, client.list_clusters, compartment)
    pools = node_pools(entry, compartment)
    there = [one for one in listed if one.get("lifecycleState") not in ("DELETED", "DELETING")]
    return tuple(entry.read(asked, lambda one: _cluster(one, pools), one) for one in there)


def node_pools(entry: Access, compartment: str) -> list[NodePoolInfo]:
    client = entry.client(ContainerEngineClient)
    asked = ServiceCall(doing="listing node pools", right="read cluster-node-pools")
    listed = entry.all(asked, client.list_node_pools, compartment)
    there = [one for one in listed if one.get("lifecycleState") not in ("DELETED", "DELETING")]
    return [entry.read(asked, pool_of, one) for one in there]


def pool_of(one: Json) -> NodePoolInfo:
    """The pool that an object of the API is. For `Access.read`, which says where it is none."""
    size = int((one.get("nodeConfigDetails") or {}).get("size") or 0)
    if not 0 <= size < 1 << 31:
        raise ValueError("size")
    return NodePoolInfo(
        id=text(one.get("id")),
        name=str(one.get("name", "?")),
        cluster_id=str(one.get("clusterId", "")),
        shape=str(one.get("nodeShape", "?")),
        size=size,
        nodes=tuple(node for node in one.get("nodes") or () if _is_there(node)),
    )


def _is_there(node: Json) -> bool:
    if not isinstance(node.get("nodeError") or {}, dict):  # whose message is shown
        raise TypeError("nodeError")
    return bool(node.get("lifecycleState") != "DELETED")


def _cluster(one: Json, pools: Sequence[NodePoolInfo]) -> ClusterInfo:
    ends = one.get("endpoints") or {}
    return ClusterInfo(
        id=text(one.get("id")),
        name=str(one.get("name", "?")),
        version=str(one.get("kubernetesVersion", "?")),
        state=str(one.get("lifecycleState", "?")),
        public=ends.get("publicEndpoint"),
        private=ends.get("privateEndpoint"),
        pools=tuple(pool for pool in pools if pool.cluster_id == one["id"]),
    )


def repositories(entry: Access, compartment: str) -> tuple[str, ...]:
    asked = ServiceCall(doing="listing repositories", right="inspect repos")
    listed = entry.all(asked, entry.client(ArtifactsClient).list_container_repositories, compartment)
    return tuple(sorted(entry.text(asked, one, "displayName") for one in listed))


def exports(entry: Access, compartment: str) -> tuple[Export, ...]:
    """What the compartment's mount targets export, in every availability domain."""
    storage, network = entry.client(FileStorageClient), entry.client(VirtualNetworkClient)
    asked = ServiceCall(doing="listing mount targets", right="read file-family")
    found = []
    for domain in domains(entry):
        for target in entry.all(asked, storage.list_mount_targets, compartment, domain):
            if target.get("lifecycleState") != "ACTIVE" or not target.get("privateIpIds"):
                continue
            ask = ServiceCall(doing="asking for a mount target's address", right="use private-ips")
            ip, exported = entry.read(asked, _first_ip, target), entry.text(asked, target, "exportSetId")
            address = entry.text(ask, entry.one(ask, network.get_private_ip, ip), "ipAddress")
            name = entry.text(asked, target, "displayName")
            for one in entry.all(asked, storage.list_exports, export_set_id=exported):
                path, system = entry.text(asked, one, "path"), entry.text(asked, one, "fileSystemId")
                found.append(Export(mount_target=name, address=address, path=path, file_system=system))
    return tuple(found)


def _first_ip(target: Json) -> str:
    return text(target["privateIpIds"][0])
