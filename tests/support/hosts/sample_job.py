"""The Job and the volume of pods.py adapted to a real cluster: its image, its volume, its timeouts.

Not shortened: the time until Kubernetes considers a silent node lost, and the pause before an index gets its next pod
(10 s after its first failure, doubled each time), so a Job whose pods have failed is recreated. Shortened: the pods of
a lost node are evicted after 1 s instead of 30 s.
"""

import copy
from typing import Any

from remote.cluster.manifests import Image, pull_secret
from remote.hosts.command import Secret
from tests.support.kubernetes.real_cluster import RealCluster

POD_PYTHON = ("python3",)
POD_BENCH_FILE = "fake_bench.py"
_PULL_SECRET = "registry"


def shared_volume(name: str, namespace: str, **spec: Any) -> list[dict[str, Any]]:
    """Make a volume and the claim `shared`, bound to each other by name."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bound_to = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "shared", "namespace": namespace}
    volume = {**common, **spec, "capacity": {"storage": "1Gi"}, "claimRef": bound_to}
    claim = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim},
    ]


def real_cluster_volume(cluster: RealCluster) -> list[dict[str, Any]]:
    """Make the volume of --cluster-volume, named after the namespace, its claim, and the image's pull secret."""
    objects = shared_volume(cluster.default_namespace, cluster.default_namespace, **(cluster.options.volume or {}))
    if cluster.options.registry_user and cluster.options.password:
        login = {"registry": Image.parse(cluster.options.image).registry, "user": cluster.options.registry_user}
        password = Secret(cluster.options.password)
        objects.append(
            pull_secret(name=_PULL_SECRET, namespace=cluster.default_namespace, password=password, **login)[0]
        )
    return objects


def real_cluster_job(cluster: RealCluster, job: dict[str, Any]) -> dict[str, Any]:
    """Return the workers' Job with the cluster's image and instance type."""
    adapted = copy.deepcopy(job)
    spec = adapted["spec"]["template"]["spec"]
    spec["containers"][0] |= {"image": cluster.options.image, "imagePullPolicy": "IfNotPresent"}
    spec["imagePullSecrets"] = [{"name": _PULL_SECRET}]
    spec["nodeSelector"] = {"node.kubernetes.io/instance-type": cluster.options.instance_type}
    spec["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    for toleration in spec["tolerations"]:
        if "tolerationSeconds" in toleration:
            toleration["tolerationSeconds"] = 1
    return adapted


def recreate_failed_job(cluster: RealCluster, job: dict[str, Any]) -> None:
    """Recreate the Job if one of its pods has failed or is being deleted."""
    pods = cluster.objects("pods", cluster.default_namespace)
    if all(p.get("status", {}).get("phase") == "Running" and not _failed_or_deleted(p) for p in pods):
        return
    cluster.output(
        "delete", "job", job["metadata"]["name"], "--cascade=foreground", f"--timeout={cluster.patience_sec}s"
    )
    cluster.apply(job)


def _failed_or_deleted(pod: dict[str, Any]) -> bool:
    failures = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-index-failure-count", "0")
    return failures != "0" or bool(pod["metadata"].get("deletionTimestamp"))
