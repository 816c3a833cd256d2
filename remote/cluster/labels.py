"""The labels by which the fleet's objects are found, and those that Kubernetes puts on a Job's pods."""

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]  # the API's JSON

FIELD_MANAGER = OWNER = "qlora-fleet"
OWNER_LABEL = "app.kubernetes.io/managed-by"
PART_OF_LABEL = "app.kubernetes.io/part-of"
PART_OF = f"{PART_OF_LABEL}={OWNER}"
COMPONENT_LABEL = "app.kubernetes.io/component"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
JOB_LABEL = "batch.kubernetes.io/job-name"
SERVE, FIRST = "serve", "adapter"  # the Job of a server, and the container that runs before it
RUN_ANNOTATION = "qlora-fleet/run"  # of a Job that trains by itself: its run


def label(one: Object, name: str) -> str | None:
    """The value of an object's label; None where it has no such label."""
    value: str | None = (one["metadata"].get("labels") or {}).get(name)
    return value


def is_owned(one: Object) -> bool:
    """Whether `inv deploy` made this object."""
    return label(one, OWNER_LABEL) == OWNER
