"""Provider: everything that differs between clouds, as one object. Pure.

A provider is a subclass that overrides the fields and methods in which it differs from any Kubernetes with any
registry. Its remedies replace those of `REMEDIES` by key.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

# Remedies that depend on the provider, as they are on any Kubernetes with any registry.
REMEDIES: Mapping[str, str] = {
    "kubeconfig": "set cluster.kubeconfig or KUBECONFIG",
    "node-not-ready": "restart or replace the node; its pods move after 30 s",
    "device-plugin": "install NVIDIA's device plugin or the GPU operator",
    "disk": "grow the node's disk, or lower cluster.scratch",
    "node-pool": "see `inv nodes`; lower fleet.size, or add GPU nodes",
    "volume-driver": "install that CSI driver, or set cluster.volume.handle to null",
    "volume-mount": (
        "the node must reach the file server (NFS: TCP 111 and 2049); check address and export in cluster.volume.handle"
    ),
    "registry-host": "check the host in cluster.image and the nodes' DNS",
    "registry-network": "the nodes need a way to the registry: check routes, firewall and proxy",
    "registry-login": "check registry.user and its password",
    "registry-read": "the secret must be for this host, and its user must be allowed to pull the image",
    "registry-push": "allow the user to push there, or correct registry.image",
    "image-missing": "push it: `inv push`, which writes results/image.json",
}
_NFS = re.compile(r"(?P<server>[A-Za-z0-9][A-Za-z0-9.-]*):(?P<path>/\S*)\Z")


class Provider:
    """A cloud: by default any Kubernetes with any registry of the OCI distribution specification.

    `remote/providers/__init__.py` registers one object of each subclass.
    """

    name: ClassVar[str] = "generic"  # value of cluster.provider
    # Registry
    image_form: ClassVar[str] = "HOST/REPOSITORY:TAG"  # how an image is named, for messages
    user_forms: ClassVar[str | None] = None  # how a user is named, for messages; None: as the registry likes
    password_name: ClassVar[str] = "password"  # noqa: S105 - what the registry calls the password
    create_repository_command: ClassVar[str | None] = None  # command that makes a repository; None: pushing makes it
    pull_secret: ClassVar[str] = "registry-login"  # noqa: S105 - of the pull secret if cluster.pull_secret is auto
    # Nodes
    instance_type: ClassVar[str | None] = None  # if cluster.instance_type is null; None: any node with GPUs
    preemptible_label: ClassVar[str | None] = None  # label of preemptible nodes, "true", and key of their taint
    # Shared volume, prices, modules of the package tasks, which are imported when they are used
    volume_form: ClassVar[str] = "SERVER:/EXPORT (NFS)"  # form of cluster.volume.handle, for messages
    price_table: ClassVar[str | None] = None  # file in reports/ with list prices; None: prices are in the settings only
    commands: ClassVar[tuple[str, ...]] = ()  # modules of `inv` commands
    checks: ClassVar[Sequence[str]] = ()  # modules with checks of `inv doctor`
    remedies: ClassVar[Mapping[str, str]] = {}  # replacements in REMEDIES

    @property
    def texts(self) -> dict[str, str]:
        """Remedies by key, and the registry's word for a password, for the {names} in a text."""
        return {**REMEDIES, "password": self.password_name, **self.remedies}

    def owns_registry(self, host: str) -> bool:  # noqa: ARG002 - a provider without a registry of its own
        """Return True if the registry at this host is the provider's own."""
        return False

    def owns_node(self, node: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Return True if the node, as the API's JSON, is a machine of this provider."""
        return False

    def owns_volume(self, handle: str) -> bool:  # noqa: ARG002
        """Return True if the handle names a volume that only this provider has."""
        return False

    def image_problem(self, host: str, parts: Sequence[str]) -> str | None:  # noqa: ARG002
        """Return why the provider's registry at `host` cannot have an image with this path; None if it can."""
        return None

    def user_problem(self, user: str, path: str) -> str | None:  # noqa: ARG002
        """Return why the provider's registry would reject this user for images at `path`; None if the form is right."""
        return None

    def volume_source(self, handle: str) -> dict[str, Any] | None:
        """Return the source of a PersistentVolume, an export over NFS; None if the handle has not the right form."""
        nfs = _NFS.match(handle)
        return None if nfs is None else {"nfs": {"server": nfs["server"], "path": nfs["path"]}}
