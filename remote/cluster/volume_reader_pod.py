"""A pod without a GPU that sees what the pods of a Job see: from the Job in the cluster to another Job. Pure."""

import copy
from typing import Any

from remote.cluster.labels import COMPONENT_LABEL, OWNER, OWNER_LABEL, PART_OF_LABEL, Object

READER = "reader"
_STAYS = 'mkdir -p "$HOME" "$TMPDIR"; trap \'exit 143\' TERM; while :; do sleep 3600 & wait $!; done'
_SMALL = {"cpu": "100m", "memory": "512Mi"}


def reader_of(workload: Object) -> dict[str, Any] | None:
    """A Job of one pod with the image, account and volumes of a training's Job or JobSet; None for any other."""
    spec = workload["spec"]
    if workload["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    before = spec["template"]
    if (before["metadata"].get("labels") or {}).get(COMPONENT_LABEL) != "train":
        return None
    pod = {key: copy.deepcopy(value) for key, value in before["spec"].items() if key not in ("affinity", "subdomain")}
    container = pod["containers"][0]
    container |= {"args": ["sh", "-c", _STAYS], "resources": {"requests": _SMALL, "limits": {"memory": "512Mi"}}}
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
