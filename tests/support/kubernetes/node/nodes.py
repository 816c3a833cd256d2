"""Nodes: their objects, and their faults."""

import asyncio
from dataclasses import dataclass, field

from tests.support.kubernetes.api.answers import Json, deep_copy
from tests.support.kubernetes.store.resources import document
from tests.support.kubernetes.store.store import Store, now

UNREACHABLE, OUT_OF_SERVICE = "node.kubernetes.io/unreachable", "node.kubernetes.io/out-of-service"


@dataclass(kw_only=True)
class Node:
    """A node. `up` is set while its kubelet is connected to the API server."""

    name: str
    address: str
    up: asyncio.Event = field(default_factory=asyncio.Event)
    exec_answer: str = ""  # error of connections to the kubelet: "connection refused", "no route to host", "silence"
    present_images: set[str] = field(default_factory=set)


class Nodes:
    """All nodes, with their objects in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, Node] = {}

    def add(self, index: int) -> None:
        name, address = f"node-{index}", f"10.99.0.{10 + index}"
        made = deep_copy(document("node.json"))
        made["metadata"]["name"] = name
        for condition in made["status"]["conditions"]:
            condition |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        self._store.create("nodes", "", made)
        self.by_name[name] = Node(name=name, address=address)
        self.by_name[name].up.set()

    def lose(self, name: str) -> None:
        """Mark a node as lost, as after the grace period without a heartbeat: Ready Unknown, with the taints."""
        self.by_name[name].up.clear()
        self.by_name[name].exec_answer = "no route to host"

        def change(node: Json) -> None:
            for condition in node["status"]["conditions"]:
                condition |= {
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                    "lastTransitionTime": now(),
                }
            taints = node["spec"].setdefault("taints", [])
            taints.append({"key": UNREACHABLE, "effect": "NoSchedule", "timeAdded": now()})
            taints.append({"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": now()})

        self._store.edit("nodes", "", name, change)
        for pod in self._store.list("pods"):
            if pod["spec"].get("nodeName") == name:
                # Like the node lifecycle controller: the pod is not Ready, its phase stays Running.
                self._store.edit("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], _not_ready)

    def restore(self, name: str) -> None:
        """Mark a node as ready again."""
        good = {c["type"]: c for c in document("node.json")["status"]["conditions"]}

        def change(node: Json) -> None:
            for condition in node["status"]["conditions"]:
                condition |= good[condition["type"]] | {"lastTransitionTime": now(), "lastHeartbeatTime": now()}
            kept = [taint for taint in node["spec"].get("taints", []) if taint["key"] != UNREACHABLE]
            node["spec"] = {**node["spec"], "taints": kept}
            if not kept:
                del node["spec"]["taints"]

        self._store.edit("nodes", "", name, change)
        self.by_name[name].exec_answer = ""
        self.by_name[name].up.set()


def _not_ready(pod: Json) -> None:
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "Ready":
            condition |= {"status": "False", "lastTransitionTime": now()}
