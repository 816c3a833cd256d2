"""Provider `oci`: Oracle Cloud Infrastructure with OKE, OCIR and File Storage. What needs its SDK is in tasks.oci.

OCIR: `<region-key>.ocir.io/<namespace>/<repository>:<tag>` or `ocir.<region-id>.oci.oraclecloud.com/...`, and three
forms of user name. Its 401 does not say which part was wrong; usually it is the form of the user name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.records.validation import setting
from remote.providers.provider import Provider

_REGISTRY = re.compile(r"(?P<key>[^.]+)\.ocir\.io\Z|ocir\.(?P<region>[^.]+)\.oci\.oraclecloud\.com\Z")
_REGION_KEY = re.compile(r"[a-z]{3}\Z")
_REGION_ID = re.compile(r"[a-z]{2,3}-[a-z]+-[0-9]{1,2}\Z")
_FILE_SYSTEM = re.compile(r"[^\s:]+:[^\s:]+:/\S*\Z")
_LABEL_PREFIXES = ("oci.oraclecloud.com/", "oke.oraclecloud.com/")


@dataclass(frozen=True, kw_only=True)
class TenancySection:
    """Oracle Cloud tenancy of inv tenancy and tenancy.*."""

    config_file: str = setting("~/.oci/config", "configuration file of the OCI CLI")
    profile: str = setting("DEFAULT", "profile in config_file")
    region: str | None = setting(None, "region, e.g. eu-frankfurt-1; null: that of the profile")
    compartment: str | None = setting(
        None, "name or OCID of the compartment with clusters, repositories and file systems; null: the root"
    )


class Oci(Provider):
    name = "oci"
    image_form = "REGION-KEY.ocir.io/NAMESPACE/REPOSITORY:TAG"
    user_forms = "NAMESPACE/USER, NAMESPACE/oracleidentitycloudservice/USER or NAMESPACE/DOMAIN/USER"
    password_name = "auth token"  # noqa: S105 - a word for messages
    create_repository_command = "inv tenancy.repository"
    pull_secret = "ocir-secret"  # noqa: S105 - the name of a Kubernetes object
    instance_type = "VM.GPU.A10.1"
    preemptible_label = "oci.oraclecloud.com/oke-is-preemptible"
    volume_form = "FILE-SYSTEM-OCID:MOUNT-TARGET-IP:/EXPORT"
    price_table = "prices.yaml"
    commands = ("tasks.oci.commands",)
    checks = ("tasks.doctor.checks.oci",)
    remedies: ClassVar[Mapping[str, str]] = {
        "kubeconfig": "`inv tenancy.kubeconfig` writes one; or set cluster.kubeconfig or KUBECONFIG",
        "node-not-ready": "restart or replace the node (OCI console: node pool, cycle); its pods move after 30 s",
        "device-plugin": "enable OKE's NVIDIA GPU plugin add-on, or install the device plugin or the GPU operator",
        "disk": "grow the boot volume (node pool, 200 GB; on OKE also `oci-growfs`), or lower cluster.scratch",
        "node-pool": "see `inv nodes`; lower fleet.size, or grow the node pool",
        "volume-driver": (
            "have it installed (on OKE: the add-on for File Storage), or set cluster.volume.handle to null"
        ),
        "volume-mount": (
            "the node must reach the mount target: security list with TCP 111, 2048-2050 and UDP 111, 2048; check "
            "address and export in cluster.volume.handle"
        ),
        "registry-host": "check the host in cluster.image (fra.ocir.io, ...) and the nodes' DNS",
        "registry-network": (
            "the nodes need a way to the registry: service gateway or NAT gateway, route and security list"
        ),
        "registry-login": f"registry.user is {user_forms}; the password is an auth token, not the console's password",
        "registry-read": "the secret must be for this host, and a policy must allow `read repos`",
        "registry-push": "add a policy with `manage repos` in that compartment, or correct registry.image",
        "image-missing": (
            "push it: `inv push`, which writes results/image.json; OCIR answers the same if the user may not see the "
            "image"
        ),
    }

    def owns_registry(self, host: str) -> bool:
        return _REGISTRY.match(host.lower()) is not None

    def owns_node(self, node: Mapping[str, Any]) -> bool:
        labels = node.get("metadata", {}).get("labels") or {}
        provider_id = str(node.get("spec", {}).get("providerID", ""))
        return provider_id.startswith(("ocid1.", "oci://")) or any(name.startswith(_LABEL_PREFIXES) for name in labels)

    def owns_volume(self, handle: str) -> bool:
        return _FILE_SYSTEM.match(handle) is not None

    def image_problem(self, host: str, parts: Sequence[str]) -> str | None:
        match = _REGISTRY.match(host.lower())
        if match is None:
            return None
        if match["key"] is not None and not _REGION_KEY.match(match["key"]):
            return f"{match['key']!r} is not a region key; expected three letters: fra, iad, phx"
        if match["region"] is not None and not _REGION_ID.match(match["region"]):
            return f"{match['region']!r} is not a region; expected one like eu-frankfurt-1"
        if len(parts) < 2:
            return f"OCIR needs the tenancy's namespace: {host}/NAMESPACE/REPOSITORY:TAG"
        return None

    def user_problem(self, user: str, path: str) -> str | None:
        (namespace, inner, _), parts = path.partition("/"), user.split("/")
        if inner and parts[0] != namespace:
            return f"{user!r} does not begin with the tenancy's namespace, {namespace}/, as the image does"
        if len(parts) not in (2, 3) or not all(parts):
            return f"{user!r} is not of the form {self.user_forms}"
        return None

    def volume_source(self, handle: str) -> dict[str, Any] | None:
        if self.owns_volume(handle):
            return {"csi": {"driver": "fss.csi.oraclecloud.com", "volumeHandle": handle}}
        return super().volume_source(handle)
