"""Kinds of objects in a deployment, and their API paths."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """API path of a kind. `is_optional`: its controller may not be installed."""

    api: str
    plural: str
    is_namespaced: bool = True
    is_optional: bool = False

    @property
    def group(self) -> str:
        return self.api.split("/")[2] if self.api.startswith("/apis/") else ""


KINDS: dict[str, Kind] = {
    "Namespace": Kind(api="/api/v1", plural="namespaces", is_namespaced=False),
    "PersistentVolume": Kind(api="/api/v1", plural="persistentvolumes", is_namespaced=False),
    "PersistentVolumeClaim": Kind(api="/api/v1", plural="persistentvolumeclaims"),
    "ServiceAccount": Kind(api="/api/v1", plural="serviceaccounts"),
    "ConfigMap": Kind(api="/api/v1", plural="configmaps"),
    "Secret": Kind(api="/api/v1", plural="secrets"),
    "Service": Kind(api="/api/v1", plural="services"),
    "Role": Kind(api="/apis/rbac.authorization.k8s.io/v1", plural="roles"),
    "RoleBinding": Kind(api="/apis/rbac.authorization.k8s.io/v1", plural="rolebindings"),
    "NetworkPolicy": Kind(api="/apis/networking.k8s.io/v1", plural="networkpolicies"),
    "PodDisruptionBudget": Kind(api="/apis/policy/v1", plural="poddisruptionbudgets"),
    "Job": Kind(api="/apis/batch/v1", plural="jobs"),
    "JobSet": Kind(api="/apis/jobset.x-k8s.io/v1alpha2", plural="jobsets", is_optional=True),
}

POD = Kind(api="/api/v1", plural="pods")
RESOURCE_QUOTA = Kind(api="/api/v1", plural="resourcequotas")
RUNTIME_CLASS = Kind(api="/apis/node.k8s.io/v1", plural="runtimeclasses", is_namespaced=False)
CSI_DRIVER = Kind(api="/apis/storage.k8s.io/v1", plural="csidrivers", is_namespaced=False)
STORAGE_CLASS = Kind(api="/apis/storage.k8s.io/v1", plural="storageclasses", is_namespaced=False)
