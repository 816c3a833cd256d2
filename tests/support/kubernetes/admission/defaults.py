"""Default fields that a real API server stores in objects, as far as the cluster's parts and our requests need them."""

from typing import Any

from tests.support.kubernetes.api.answers import Json

_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _set(at: Json, **values: Any) -> None:
    for name, value in values.items():
        at.setdefault(name, value)


def pod_spec(spec: Json) -> None:
    """Set the defaults of pods and of pod templates; `pod` adds those that admission sets in real pods."""
    _set(spec, restartPolicy="Always", terminationGracePeriodSeconds=30, securityContext={})
    for container in spec["containers"]:
        _set(container, imagePullPolicy="IfNotPresent", resources={})


def pod(obj: Json) -> None:
    spec = obj["spec"]
    pod_spec(spec)
    for container in spec["containers"]:
        if limits := container["resources"].get("limits"):
            container["resources"]["requests"] = {**limits, **container["resources"].get("requests", {})}
    tolerations = spec.setdefault("tolerations", [])
    for key in _NOT_READY:
        covered = any(t.get("key") in (None, key) and t.get("effect") in (None, "", "NoExecute") for t in tolerations)
        if not covered:
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    obj.setdefault("status", {"phase": "Pending"})


def job(obj: Json) -> None:
    spec = obj["spec"]
    _set(spec, completionMode="NonIndexed", suspend=False)
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    labels = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    template = spec["template"].setdefault("metadata", {})
    template["labels"] = {**template.get("labels", {}), **labels, "controller-uid": uid, "job-name": name}
    obj["metadata"].setdefault("labels", dict(template["labels"]))
    pod_spec(spec["template"]["spec"])
    obj.setdefault("status", {})


def service(obj: Json) -> None:
    if obj["spec"].get("publishNotReadyAddresses") is False:  # Go omits what is false, and so the API drops it
        del obj["spec"]["publishNotReadyAddresses"]
    _set(obj["spec"], type="ClusterIP")


def claim(obj: Json) -> None:
    obj.setdefault("status", {"phase": "Pending"})


def volume(obj: Json) -> None:
    obj.setdefault("status", {"phase": "Available"})


_BY_KEY = {
    "pods": pod,
    "jobs.batch": job,
    "services": service,
    "persistentvolumeclaims": claim,
    "persistentvolumes": volume,
}


def fill(key: str, obj: Json) -> None:
    """Add the kind's defaults to an object that already has its metadata."""
    if key in _BY_KEY:
        _BY_KEY[key](obj)
