"""Read a tenancy's limits, clusters, node pools, repositories and exports, and derive settings from them."""

from collections.abc import Sequence
from typing import Any

from oci import regions
from oci.artifacts import ArtifactsClient
from oci.container_engine import ContainerEngineClient
from oci.container_engine.models import ClusterEndpoints, NodePoolNodeConfigDetails
from oci.core import VirtualNetworkClient
from oci.file_storage import FileStorageClient
from oci.identity import IdentityClient
from oci.limits import LimitsClient

from tasks.errors import UsageError
from tasks.oci.clients import TenancyApi, required

GPU_LIMIT = "gpu-a10-count"  # counts GPUs of the shapes VM.GPU.A10.* and BM.GPU.A10.4
DEFAULT_REPOSITORY = "qlora-fleet"
Json = dict[str, Any]


def choose_cluster(clusters: Sequence[Json], name: str | None) -> Json:
    """Return the cluster with this name or OCID, or the only one. Raises UsageError with the existing ones."""
    matching = [cluster for cluster in clusters if name is None or name in (cluster["name"], cluster["id"])]
    if len(matching) == 1:
        return matching[0]
    known = ", ".join(f"{cluster['name']} ({cluster['id']})" for cluster in matching or clusters)
    remedy = (
        "type: inv tenancy.kubeconfig --cluster OCID" if known else "set tenancy.compartment to another compartment"
    )
    named = f" named {name}" if name else ""
    raise UsageError(
        f"{len(matching)} clusters{named} in this compartment; there are: {known or 'none'}", remedy=remedy
    )


def registry_host(region: str) -> str:
    """Return the region's registry, fra.ocir.io for eu-frankfurt-1."""
    key = next((key for key, name in regions.REGIONS_SHORT_NAMES.items() if name == region), None)
    return f"{key}.ocir.io" if key and len(key) == 3 else f"ocir.{region}.oci.oraclecloud.com"


def derive_settings(survey: Json) -> dict[str, Json]:
    """Derive settings by section. A setting with several candidates is left out."""
    repositories, exports = survey["repositories"], survey["exports"]
    pools = [pool for cluster in survey["clusters"] for pool in cluster["pools"] if ".GPU" in pool["shape"]]
    is_default = DEFAULT_REPOSITORY in repositories or len(repositories) != 1
    repository = DEFAULT_REPOSITORY if is_default else repositories[0]
    settings: dict[str, Json] = {
        "registry": {"image": f"{registry_host(survey['region'])}/{survey['namespace']}/{repository}:1"}
    }
    if survey["user"] is not None:
        settings["registry"]["user"] = f"{survey['namespace']}/{survey['user']}"
    if len(pools) == 1:
        settings["fleet"] = {"kind": "pods", **({"size": pools[0]["size"]} if pools[0]["size"] else {})}
        settings["cluster"] = {"instance_type": pools[0]["shape"]}
    if len(exports) == 1:
        settings.setdefault("cluster", {})["volume"] = {"handle": exports[0]["handle"]}
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


def list_gpu_limits(api: TenancyApi) -> list[Json]:
    """List the GPU limits of each availability domain that has any, with the GPUs in use by the whole tenancy."""
    request = ("reading GPU limits", "inspect resource-availability")
    client = api.client(LimitsClient)
    method = client.list_limit_values
    limits = []
    for limit in api.list_all(*request, method, api.tenancy, "compute", scope_type="AD", name=GPU_LIMIT):
        if limit.value:
            domain = required(limit, "availability_domain")
            available = api.get(
                *request,
                client.get_resource_availability,
                "compute",
                GPU_LIMIT,
                api.tenancy,
                availability_domain=domain,
            )
            limits.append({"domain": domain, "maximum": limit.value, "used": available.used or 0})
    return limits


def list_clusters(api: TenancyApi, compartment: str) -> list[Json]:
    """List the compartment's clusters that are not deleted, with their node pools and the requested size of each."""
    client = api.client(ContainerEngineClient)
    clusters = api.list_all("listing clusters", "read clusters", client.list_clusters, compartment)
    pools = api.list_all("listing node pools", "read cluster-node-pools", client.list_node_pools, compartment)
    return [
        {
            "id": required(cluster, "id"),
            "name": required(cluster, "name"),
            "version": str(cluster.kubernetes_version),
            "state": str(cluster.lifecycle_state),
            "public_endpoint": (cluster.endpoints or ClusterEndpoints()).public_endpoint,
            "private_endpoint": (cluster.endpoints or ClusterEndpoints()).private_endpoint,
            "pools": [
                {
                    "name": required(pool, "name"),
                    "shape": required(pool, "node_shape"),
                    "size": (pool.node_config_details or NodePoolNodeConfigDetails()).size or 0,
                }
                for pool in pools
                if _exists(pool) and pool.cluster_id == cluster.id
            ],
        }
        for cluster in clusters
        if _exists(cluster)
    ]


def _exists(item: Any) -> bool:
    return item.lifecycle_state not in ("DELETED", "DELETING")


def list_repositories(api: TenancyApi, compartment: str) -> list[str]:
    method = api.client(ArtifactsClient).list_container_repositories
    repositories = api.list_all("listing repositories", "inspect repos", method, compartment)
    return sorted(required(repository, "display_name") for repository in repositories)


def list_exports(api: TenancyApi, compartment: str) -> list[Json]:
    """List the exports of the compartment's mount targets, each with its value of cluster.volume.handle."""
    storage, network = api.client(FileStorageClient), api.client(VirtualNetworkClient)
    method = api.client(IdentityClient).list_availability_domains
    domains = api.list_all("listing availability domains", "inspect compartments", method, api.tenancy)
    request = ("listing mount targets", "read file-family")
    exports = []
    for domain in domains:
        for target in api.list_all(*request, storage.list_mount_targets, compartment, required(domain, "name")):
            if target.lifecycle_state != "ACTIVE" or not target.private_ip_ids:
                continue
            ip_id = target.private_ip_ids[0]
            address = api.get("reading a mount target's address", "use private-ips", network.get_private_ip, ip_id)
            export_set = required(target, "export_set_id")
            ip, name = required(address, "ip_address"), required(target, "display_name")
            for export in api.list_all(*request, storage.list_exports, export_set_id=export_set):
                handle = f"{required(export, 'file_system_id')}:{ip}:{required(export, 'path')}"
                exports.append({"mount_target": name, "handle": handle})
    return exports
