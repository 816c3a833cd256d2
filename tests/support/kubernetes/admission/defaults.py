"""Default fields that a real API server stores in objects; without them every apply reports `configured`."""

from typing import Any

from tests.support.kubernetes.api.answers import Json

# Go omits these fields if they are false: the API drops them, they have no owner, and leaving them out changes nothing.
_FALSE_IS_ABSENT = {"services": ("publishNotReadyAddresses",), "pods": ("hostIPC", "hostNetwork", "hostPID")}
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def _set(at: Json, **values: Any) -> None:
    for name, value in values.items():
        at.setdefault(name, value)


def _container(container: Json) -> None:
    image = container.get("image", "")
    latest = "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest"))
    _set(container, imagePullPolicy="Always" if latest else "IfNotPresent", resources={})
    _set(container, terminationMessagePath="/dev/termination-log", terminationMessagePolicy="File")
    for entry in container.get("env", []):
        if "fieldRef" in entry.get("valueFrom", {}):
            _set(entry["valueFrom"]["fieldRef"], apiVersion="v1")


def pod_spec(spec: Json) -> None:
    """Set the defaults of pods and of pod templates; `pod` adds those that admission sets in real pods."""
    _set(spec, dnsPolicy="ClusterFirst", restartPolicy="Always", schedulerName="default-scheduler")
    _set(spec, terminationGracePeriodSeconds=30, securityContext={})
    if "serviceAccountName" in spec:
        _set(spec, serviceAccount=spec["serviceAccountName"])
    for container in spec["containers"]:
        _container(container)


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
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    _set(spec, parallelism=1, completionMode="NonIndexed", suspend=False, manualSelector=False)
    _set(spec, podReplacementPolicy="TerminatingOrFailed")
    # With a limit per index, the Job's own limit is effectively infinite.
    _set(spec, backoffLimit=2147483647 if "backoffLimitPerIndex" in spec else 6)
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
    _set(spec, type="ClusterIP", sessionAffinity="None", internalTrafficPolicy="Cluster")
    _set(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack")
    _set(spec, clusterIPs=[spec["clusterIP"]])  # every Service here is headless
    obj.setdefault("status", {"loadBalancer": {}})


def namespace(obj: Json) -> None:
    obj["metadata"].setdefault("labels", {}).setdefault("kubernetes.io/metadata.name", obj["metadata"]["name"])
    _set(obj, spec={"finalizers": ["kubernetes"]}, status={"phase": "Active"})


def claim(obj: Json) -> None:
    _set(obj["spec"], volumeMode="Filesystem")
    obj.setdefault("status", {"phase": "Pending"})


def volume(obj: Json) -> None:
    _set(obj["spec"], volumeMode="Filesystem", persistentVolumeReclaimPolicy="Retain")
    obj.setdefault("status", {"phase": "Available"})


_BY_KEY = {
    "pods": pod,
    "jobs.batch": job,
    "services": service,
    "namespaces": namespace,
    "persistentvolumeclaims": claim,
    "persistentvolumes": volume,
}


# Likewise an empty text; the class of a claim is a pointer, and stays.
_EMPTY_IS_ABSENT = {"persistentvolumes": ("storageClassName",)}


def fill(key: str, obj: Json) -> None:
    """Add the kind's defaults to an object that already has its metadata."""
    for name in _FALSE_IS_ABSENT.get(key, ()):
        if obj["spec"].get(name) is False:
            del obj["spec"][name]
    for name in _EMPTY_IS_ABSENT.get(key, ()):
        if obj["spec"].get(name) == "":
            del obj["spec"][name]
    if key in _BY_KEY:
        _BY_KEY[key](obj)
