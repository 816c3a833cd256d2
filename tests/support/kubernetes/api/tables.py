"""The Table answers behind `kubectl get`: columns as recorded, cells as the real printers write them."""

from datetime import UTC, datetime
from typing import Any

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.resources import document
from tests.support.kubernetes.store.store import held

_NONE = "<none>"


def _seconds(start: str, end: str = "") -> float:
    until = datetime.fromisoformat(end) if end else datetime.now(UTC)
    return (until - datetime.fromisoformat(start)).total_seconds()


def human_duration(seconds: float) -> str:
    """As kubectl shortens ages: 119s, 5m30s, 15m, 3h5m, 12h, 3d."""
    s = max(0, int(seconds))
    minutes, hours, days = s // 60, s // 3600, s // 86400
    if s < 120:
        return f"{s}s"
    if minutes < 10:
        return f"{minutes}m{s % 60}s" if s % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _age(obj: Json) -> str:
    return human_duration(_seconds(obj["metadata"]["creationTimestamp"]))


def pod_status(pod: Json) -> str:
    """The STATUS word. An evicted pod whose container had started reads Error, as in the real printer."""
    status = pod.get("status", {})
    word = status.get("reason") or status.get("phase", "Unknown")
    initial = status.get("initContainerStatuses", [])
    for index, container in enumerate(initial):
        ended, waiting = container["state"].get("terminated"), container["state"].get("waiting")
        if ended and ended["exitCode"] == 0:
            continue
        if ended:
            word = f"Init:{ended['reason']}"
        elif waiting and waiting.get("reason") not in (None, "PodInitializing"):
            word = f"Init:{waiting['reason']}"
        else:
            word = f"Init:{index}/{len(initial)}"
        break
    else:
        word = _containers_word(status, word)
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return word


def _containers_word(status: Json, word: str) -> str:
    running = False
    for container in reversed(status.get("containerStatuses", [])):
        state = container["state"]
        if state.get("waiting", {}).get("reason"):
            word = state["waiting"]["reason"]
        elif state.get("terminated", {}).get("reason"):
            word = state["terminated"]["reason"]
        elif container.get("ready") and "running" in state:
            running = True
    return "Running" if word == "Completed" and running else word


def _pod(pod: Json) -> list[Any]:
    status = pod.get("status", {})
    containers = status.get("containerStatuses", [])
    restarts = sum(container["restartCount"] for container in containers)
    last = [c["lastState"]["terminated"]["finishedAt"] for c in containers if c.get("lastState", {}).get("terminated")]
    shown = str(restarts) if not (restarts and last) else f"{restarts} ({human_duration(_seconds(max(last)))} ago)"
    ready = sum(bool(container["ready"]) for container in containers)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(pod['spec']['containers'])}",
        pod_status(pod),
        shown,
        _age(pod),
        status.get("podIP") or _NONE,
        pod["spec"].get("nodeName") or _NONE,
        status.get("nominatedNodeName") or _NONE,
        _NONE,
    ]


def _job(job: Json) -> list[Any]:
    spec, status = job["spec"], job.get("status", {})
    word = next((kind for kind in ("Complete", "Failed", "Suspended") if kind in held(job)), "Running")
    if job["metadata"].get("deletionTimestamp"):
        word = "Terminating"
    started = status.get("startTime")
    containers = spec["template"]["spec"]["containers"]
    selector = spec.get("selector", {}).get("matchLabels", {})
    return [
        job["metadata"]["name"],
        word,
        f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}",
        human_duration(_seconds(started, status.get("completionTime", ""))) if started else "",
        _age(job),
        ",".join(c["name"] for c in containers),
        ",".join(c.get("image", "") for c in containers),
        ",".join(f"{key}={value}" for key, value in selector.items()),
    ]


def _node(node: Json) -> list[Any]:
    info = node["status"]["nodeInfo"]
    words = ["Ready" if "Ready" in held(node) else "NotReady"]
    if node["spec"].get("unschedulable"):
        words.append("SchedulingDisabled")
    addresses = {a["type"]: a["address"] for a in node["status"]["addresses"]}
    return [
        node["metadata"]["name"],
        ",".join(words),
        _NONE,
        _age(node),
        info["kubeletVersion"],
        addresses.get("InternalIP", _NONE),
        addresses.get("ExternalIP", _NONE),
        info["osImage"],
        info["kernelVersion"],
        info["containerRuntimeVersion"],
    ]


_MODES = {"ReadWriteMany": "RWX", "ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteOncePod": "RWOP"}


def _claim(claim: Json) -> list[Any]:
    spec, status = claim["spec"], claim.get("status", {})
    return [
        claim["metadata"]["name"],
        "Terminating" if claim["metadata"].get("deletionTimestamp") else status.get("phase", ""),
        spec.get("volumeName", ""),
        status.get("capacity", {}).get("storage", ""),
        ",".join(_MODES[mode] for mode in status.get("accessModes", [])),
        spec.get("storageClassName", ""),
        "<unset>",
        _age(claim),
        spec.get("volumeMode", "Filesystem"),
    ]


def _event(event: Json) -> list[Any]:
    last = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    about = event["involvedObject"]
    return [
        human_duration(_seconds(last)),
        event.get("type", ""),
        event.get("reason", ""),
        f"{about['kind'].lower()}/{about['name']}",
        event.get("message", ""),
    ]


_PRINTERS: dict[str, Any] = {
    "pods": _pod,
    "jobs.batch": _job,
    "nodes": _node,
    "persistentvolumeclaims": _claim,
    "events": _event,
    "namespaces": lambda o: [o["metadata"]["name"], o.get("status", {}).get("phase", "Active"), _age(o)],
    "configmaps": lambda o: [o["metadata"]["name"], len(o.get("data", {})) + len(o.get("binaryData", {})), _age(o)],
    "secrets": lambda o: [o["metadata"]["name"], o.get("type", "Opaque"), len(o.get("data", {})), _age(o)],
}


def table(key: str, objects: list[Json], version: str, *, whole: bool, columns: bool = True) -> Json:
    """Rows of `objects`; `whole` puts the objects themselves into the rows (`includeObject=Object`)."""
    printer = _PRINTERS.get(key, lambda o: [o["metadata"]["name"], _age(o)])
    rows = []
    for obj in objects:
        partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": printer(obj), "object": obj if whole else partial})
    made: Json = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": version}}
    if columns:
        known = document("columns.json")
        made["columnDefinitions"] = known.get(key.partition(".")[0], known["others"])
    return {**made, "rows": rows}
