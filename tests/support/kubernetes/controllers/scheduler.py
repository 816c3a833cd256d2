"""Scheduler: assigns pods to nodes by taints, node selectors and GPUs; every node has room for anything else.

A pod that fits nowhere has the message of a missing GPU, whatever it lacks.

Not covered: affinity (a node of the tests has one GPU), preemption, topology spread, priorities, topology of volumes,
preferred rules (the least loaded node wins).
"""

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.store.store import Store, set_condition

_GPU = "nvidia.com/gpu"


def _tolerates(spec: Json, taint: Json) -> bool:
    return any(
        toleration.get("key") in (None, taint["key"])
        and toleration.get("effect") in (None, taint["effect"])
        and (toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("value"))
        for toleration in spec.get("tolerations", ())
    )


def _gpus(pod: Json) -> int:
    containers = pod["spec"]["containers"]
    return sum(int(each.get("resources", {}).get("limits", {}).get(_GPU, 0)) for each in containers)


class Scheduler:
    """Scheduler that binds all pending pods in each pass."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def run(self) -> None:
        waiting = [
            pod
            for pod in self._store.list("pods")
            if not pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        ]
        for pod in sorted(waiting, key=lambda pod: pod["metadata"]["creationTimestamp"]):
            self._place(pod)

    def _place(self, pod: Json) -> None:
        nodes, load = self._store.list("nodes"), dict[str, list[int]]()
        for other in self._store.list("pods"):
            if other.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                load.setdefault(other["spec"].get("nodeName", ""), []).append(_gpus(other))
        fitting = [name for node in nodes if self._fits(pod, node, load.get(name := node["metadata"]["name"], []))]
        if fitting and self._claims_are_bound(pod):
            self._bind(pod, min(fitting, key=lambda name: (len(load.get(name, [])), name)))
        else:
            self._refuse(pod, len(nodes))

    def _claims_are_bound(self, pod: Json) -> bool:
        names = [
            v["persistentVolumeClaim"]["claimName"]
            for v in pod["spec"].get("volumes", [])
            if "persistentVolumeClaim" in v
        ]
        claims = [self._store.find("persistentvolumeclaims", pod["metadata"]["namespace"], name) for name in names]
        return all(claim and claim["status"]["phase"] == "Bound" for claim in claims)

    @staticmethod
    def _fits(pod: Json, node: Json, gpus_here: list[int]) -> bool:
        spec = pod["spec"]
        return (
            not node["spec"].get("unschedulable")
            and all(_tolerates(spec, taint) for taint in node["spec"].get("taints") or [])
            and (spec.get("nodeSelector") or {}).items() <= node["metadata"]["labels"].items()
            and _gpus(pod) + sum(gpus_here) <= int(node["status"]["allocatable"][_GPU])
        )

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]

        def change(changed: Json) -> None:
            changed["spec"]["nodeName"] = node
            set_condition(changed, "PodScheduled", True)

        self._store.edit("pods", metadata["namespace"], metadata["name"], change)

    def _refuse(self, pod: Json, total: int) -> None:
        none, metadata = f"0/{total} nodes are available: {total}", pod["metadata"]
        message = f"{none} Insufficient {_GPU}. preemption: {none} Preemption is not helpful for scheduling."
        if all(c.get("message") != message for c in pod["status"].get("conditions", [])):
            self._store.edit(
                "pods",
                metadata["namespace"],
                metadata["name"],
                lambda changed: set_condition(changed, "PodScheduled", False, reason="Unschedulable", message=message),
            )
