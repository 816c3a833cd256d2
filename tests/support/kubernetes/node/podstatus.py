"""A pod's status, computed from its worker's state: the fields that kubectl and our requests read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.kubernetes.api.answers import Json, deep_copy
from tests.support.kubernetes.node.container import Container
from tests.support.kubernetes.store.store import set_condition

if TYPE_CHECKING:
    from tests.support.kubernetes.node.podworker import PodWorker


def _container_status(container: Container) -> Json:
    return {
        "name": container.name,
        "image": container.spec["image"],
        "imageID": "",
        "ready": container.ready and container.running,
        "restartCount": 0,
        "state": deep_copy(container.state),
    }


def _phase(worker: PodWorker) -> str:
    if worker.finished:
        return "Succeeded" if all(container.exit_code == 0 for container in worker.containers.values()) else "Failed"
    ran = any(container.running or container.exit_code is not None for container in worker.containers.values())
    return "Running" if ran else "Pending"


def status_of(worker: PodWorker, pod: Json) -> Json:
    """Return the pod's status, including the conditions written by the scheduler."""
    made: Json = {"status": deep_copy(pod.get("status", {}))}
    unready = [
        container.name for container in worker.containers.values() if not (container.ready and container.running)
    ]
    message = f"containers with unready status: [{' '.join(unready)}]"
    reason = {"reason": "ContainersNotReady", "message": message} if unready else {}
    set_condition(made, "Ready", not (unready or worker.finished), **reason)
    status: Json = made["status"]
    status |= {
        "phase": _phase(worker),
        "startTime": worker.started_at,
        "containerStatuses": [_container_status(container) for container in worker.containers.values()],
    }
    if worker.address:
        status["podIP"] = worker.address
    return status
