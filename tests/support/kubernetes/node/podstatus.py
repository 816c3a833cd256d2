"""A pod's status, computed from its worker's state: the fields that kubectl and our requests read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.kubernetes.api.answers import Json, deep_copy
from tests.support.kubernetes.store.store import set_condition

if TYPE_CHECKING:
    from tests.support.kubernetes.node.podworker import PodWorker


def _phase(worker: PodWorker) -> str:
    container = worker.container
    if worker.finished:
        return "Succeeded" if container.exit_code == 0 else "Failed"
    return "Running" if container.running or container.exit_code is not None else "Pending"


def status_of(worker: PodWorker, pod: Json) -> Json:
    """Return the pod's status, including the conditions written by the scheduler."""
    made: Json = {"status": deep_copy(pod.get("status", {}))}
    container = worker.container
    is_ready = container.ready and container.running
    message = "" if is_ready else f"containers with unready status: [{container.spec['name']}]"
    set_condition(made, "Ready", is_ready and not worker.finished, message=message)
    state = {"name": container.spec["name"], "ready": is_ready, "state": deep_copy(container.state)}
    status: Json = made["status"]
    status |= {"phase": _phase(worker), "startTime": worker.started_at, "containerStatuses": [state]}
    if worker.address:
        status["podIP"] = worker.address
    return status
