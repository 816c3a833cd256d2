"""Labels of the fleet's objects, and those that Kubernetes puts on a Job's pods."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]  # the API's JSON

FIELD_MANAGER = OWNER = "qlora-fleet"
OWNER_LABEL = "app.kubernetes.io/managed-by"
PART_OF_LABEL = "app.kubernetes.io/part-of"
PART_OF = f"{PART_OF_LABEL}={OWNER}"
COMPONENT_LABEL = "app.kubernetes.io/component"
JOB_LABEL = "batch.kubernetes.io/job-name"
WORKER, TRAIN = "worker", "train"
WORKLOADS = ("Job", "JobSet")
RUN_ANNOTATION = "qlora-fleet/run"  # run ID, on the Job of a training that runs without the operator


def label(resource: Object, name: str) -> str | None:
    """Return the value of an object's label; None if it has no such label."""
    value: str | None = (resource["metadata"].get("labels") or {}).get(name)
    return value


def is_owned(resource: Object) -> bool:
    """Return True if `inv deploy` created this object."""
    return label(resource, OWNER_LABEL) == OWNER


def job_spec(workload: Object) -> Object:
    """Return the spec of a Job, or of the one Job of a JobSet."""
    spec: Object = workload.get("spec", {})
    return spec["replicatedJobs"][0]["template"]["spec"] if workload["kind"] == "JobSet" else spec
