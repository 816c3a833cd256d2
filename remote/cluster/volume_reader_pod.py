"""Pod without a GPU that mounts the volumes of a Job of the deployment. Pure."""

import copy
from typing import Any

from remote.cluster.labels import COMPONENT_LABEL, OWNER, OWNER_LABEL, PART_OF_LABEL, Object

READER = "reader"
_IDLE_SCRIPT = 'mkdir -p "$HOME" "$TMPDIR"; trap \'exit 143\' TERM; while :; do sleep 3600 & wait $!; done'
_RESOURCE_REQUESTS = {"cpu": "100m", "memory": "512Mi"}


def make_reader_job(workload: Object) -> dict[str, Any] | None:
    """Make a Job of one pod with the image, account and volumes of a Job or JobSet; None if it mounts no claim."""
    spec = workload["spec"]
    if workload["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    template = spec["template"]
    if not any("persistentVolumeClaim" in volume for volume in template["spec"].get("volumes") or []):
        return None
    pod = {key: copy.deepcopy(value) for key, value in template["spec"].items() if key not in ("affinity", "subdomain")}
    container = pod["containers"][0]
    container |= {
        "args": ["sh", "-c", _IDLE_SCRIPT],
        "resources": {"requests": _RESOURCE_REQUESTS, "limits": {"memory": "512Mi"}},
    }
    labels = {PART_OF_LABEL: OWNER, OWNER_LABEL: OWNER, COMPONENT_LABEL: READER}
    metadata = {"name": READER, "namespace": workload["metadata"]["namespace"], "labels": labels}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
