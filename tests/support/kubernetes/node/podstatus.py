"""A pod's status, computed from its worker's state."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tests.support.kubernetes.api.answers import Json, deep_copy
from tests.support.kubernetes.node.container import Container
from tests.support.kubernetes.store.store import set_condition

if TYPE_CHECKING:
    from tests.support.kubernetes.node.podworker import PodWorker


def _container_status(worker: PodWorker, container: Container) -> Json:
    seed = f"{worker.uid}{container.name}".encode()
    identity = f"containerd://{hashlib.sha256(seed).hexdigest()}"
    state = deep_copy(container.state)
    if container in worker.main.values() and worker.initial and not worker.initialized and "waiting" in state:
        state = {"waiting": {"reason": "PodInitializing"}}
    made: Json = {
        "name": container.name,
        "image": container.spec["image"],
        "imageID": "",
        "lastState": {},
        "ready": container.ready and container.running,
        "restartCount": 0,
        "started": container.running,
        "state": state,
    }
    if "waiting" not in state:
        made["containerID"] = identity
        made["imageID"] = "sha256:" + hashlib.sha256(container.spec["image"].encode()).hexdigest()
    if "terminated" in state:
        state["terminated"]["containerID"] = identity
    return made


def _phase(worker: PodWorker) -> str:
    codes = [container.exit_code for container in worker.main.values()]
    if worker.finished:
        initial = [container.exit_code for container in worker.initial.values()]
        return "Succeeded" if not worker.reason and all(code == 0 for code in codes + initial) else "Failed"
    ran = any(container.running or container.exit_code is not None for container in worker.main.values())
    return "Running" if ran else "Pending"


def status_of(worker: PodWorker, pod: Json) -> Json:
    """Return the pod's status, including the conditions written by the scheduler."""
    made: Json = {"status": deep_copy(pod.get("status", {}))}
    phase = _phase(worker)
    unready = [container.name for container in worker.main.values() if not (container.ready and container.running)]
    if phase == "Succeeded":
        reason: Json = {"reason": "PodCompleted"}
    elif phase == "Failed":
        reason = {"reason": "PodFailed"}
    else:
        message = f"containers with unready status: [{' '.join(unready)}]"
        reason = {"reason": "ContainersNotReady", "message": message} if unready else {}
    is_over = phase in ("Succeeded", "Failed")
    set_condition(made, "PodReadyToStartContainers", worker.address and not is_over)
    initialized = worker.initialized or not worker.initial
    names = " ".join(name for name, container in worker.initial.items() if container.exit_code != 0)
    lacking = {"reason": "ContainersNotInitialized", "message": f"containers with incomplete status: [{names}]"}
    set_condition(made, "Initialized", initialized, **({} if initialized else lacking))
    for kind in ("Ready", "ContainersReady"):
        set_condition(made, kind, not (unready or is_over), **reason)
    if worker.disrupted:
        set_condition(made, "DisruptionTarget", True, reason=worker.disrupted, message=worker.message.strip())
    status: Json = made["status"]
    status |= {
        "phase": phase,
        "hostIP": worker.node.address,
        "hostIPs": [{"ip": worker.node.address}],
        "startTime": worker.started_at,
        "containerStatuses": [_container_status(worker, container) for container in worker.main.values()],
    }
    if worker.initial:
        status["initContainerStatuses"] = [_container_status(worker, c) for c in worker.initial.values()]
    if worker.address:
        status |= {"podIP": worker.address, "podIPs": [{"ip": worker.address}]}
    if worker.reason:
        status |= {"reason": worker.reason, "message": worker.message}
    return status
