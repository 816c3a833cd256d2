"""Default fields that a real API server stores in objects, as far as the cluster's parts and our requests need them."""

from typing import Any

from tests.support.kubernetes.api.answers import Json

# Go omits these fields if they are false or empty: the API drops them, and leaving them out changes nothing.
_ZERO_IS_ABSENT = {"services": ("publishNotReadyAddresses", False), "persistentvolumes": ("storageClassName", "")}
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
    spec = obj["spec"]
    _set(spec, type="ClusterIP", clusterIPs=[spec["clusterIP"]])  # every Service here is headless
    obj.setdefault("status", {"loadBalancer": {}})


def namespace(obj: Json) -> None:
    obj["metadata"].setdefault("labels", {}).setdefault("kubernetes.io/metadata.name", obj["metadata"]["name"])
    _set(obj, spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})


def claim(obj: Json) -> None:
    obj.setdefault("status", {"phase": "Pending"})


def volume(obj: Json) -> None:
    obj.setdefault("status", {"phase": "Available"})


_BY_KEY = {
    "pods": pod,
    "jobs.batch": job,
    "services": service,
    "namespaces": namespace,
    "persistentvolumeclaims": claim,
    "persistentvolumes": volume,
}


def fill(key: str, obj: Json) -> None:
    """Add the kind's defaults to an object that already has its metadata."""
    name, zero = _ZERO_IS_ABSENT.get(key, ("", None))
    if name and obj["spec"].get(name) == zero:
        del obj["spec"][name]
    if key in _BY_KEY:
        _BY_KEY[key](obj)
