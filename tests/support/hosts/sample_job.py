"""The workers and the volume of pods.py as a given cluster gets them: its image, its volume, its patience.

Not shortened there: how long a node may be silent before Kubernetes gives it up, and the pause before an index gets its
next pod (10 s after its first failure, then twice as long each time). So a Job whose pods have failed is made anew.
Shortened: 1 s instead of 30 s until the pods of a node that was given up go.
"""

import copy
from typing import Any

from remote.cluster.manifests import Image
from remote.cluster.pull_secret import pull_secret
from remote.hosts.command import Secret
from tests.support.kubernetes.real_cluster import GivenCluster

PYTHON_THERE = ("python3",)
BENCH_THERE = "fake_bench.py"
_PULL_SECRET = "registry"


def shared_volume(name: str, namespace: str, **spec: Any) -> list[dict[str, Any]]:
    """A volume and the claim `shared` on it, bound to each other by name."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    bound_to = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "shared", "namespace": namespace}
    volume = {**common, **spec, "capacity": {"storage": "1Gi"}, "claimRef": bound_to}
    claim = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": claim},
    ]


def given_volume(cluster: GivenCluster) -> list[dict[str, Any]]:
    """The volume of --cluster-volume under a name of this namespace alone, its claim, and the image's pull secret."""
    made = shared_volume(cluster.home, cluster.home, **(cluster.gift.volume or {}))
    if cluster.gift.registry_user and cluster.gift.password:
        login = {"registry": Image.parse(cluster.gift.image).registry, "user": cluster.gift.registry_user}
        password = Secret(cluster.gift.password)
        made.append(pull_secret(name=_PULL_SECRET, namespace=cluster.home, password=password, **login)[0])
    return made


def given_job(cluster: GivenCluster, job: dict[str, Any]) -> dict[str, Any]:
    """The workers' Job with the given image, on the given kind of node."""
    made = copy.deepcopy(job)
    spec = made["spec"]["template"]["spec"]
    spec["containers"][0] |= {"image": cluster.gift.image, "imagePullPolicy": "IfNotPresent"}
    spec["imagePullSecrets"] = [{"name": _PULL_SECRET}]
    spec["nodeSelector"] = {"node.kubernetes.io/instance-type": cluster.gift.instance_type}
    spec["securityContext"] = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}
    for toleration in spec["tolerations"]:
        if "tolerationSeconds" in toleration:
            toleration["tolerationSeconds"] = 1
    return made


def renew(cluster: GivenCluster, job: dict[str, Any]) -> None:
    """Make the Job again where one of its pods has failed or is going."""
    pods = cluster.objects("pods", cluster.home)
    if all(p.get("status", {}).get("phase") == "Running" and not _is_used(p) for p in pods):
        return
    cluster.said("delete", "job", job["metadata"]["name"], "--cascade=foreground", f"--timeout={cluster.patience_sec}s")
    cluster.apply(job)


def _is_used(pod: dict[str, Any]) -> bool:
    failures = (pod["metadata"].get("annotations") or {}).get("batch.kubernetes.io/job-index-failure-count", "0")
    return failures != "0" or bool(pod["metadata"].get("deletionTimestamp"))
