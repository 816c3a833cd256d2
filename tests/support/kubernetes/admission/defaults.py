"""Default fields that a real API server stores in objects, as far as the cluster's parts and our requests need them."""

from tests.support.kubernetes.api.answers import Json

_PHASES = {"pods": "Pending", "persistentvolumeclaims": "Pending", "persistentvolumes": "Available"}


def fill(key: str, obj: Json) -> None:
    """Add the kind's defaults to an object that already has its metadata."""
    if key in _PHASES:
        obj.setdefault("status", {"phase": _PHASES[key]})
    if key == "services" and obj["spec"].get("publishNotReadyAddresses") is False:
        del obj["spec"]["publishNotReadyAddresses"]  # Go omits what is false, and so the API drops it
    if key == "jobs.batch":
        obj.setdefault("status", {})
        labels = obj["spec"]["template"].setdefault("metadata", {}).setdefault("labels", {})
        labels["batch.kubernetes.io/job-name"] = obj["metadata"]["name"]
