"""The nodes: what each one is, and what is wrong with it just now."""

import asyncio
from dataclasses import dataclass, field

from tests.support.kubernetes.api.answers import Json, copied
from tests.support.kubernetes.store.resources import document
from tests.support.kubernetes.store.store import Store, now

UNREACHABLE = "node.kubernetes.io/unreachable"


@dataclass(kw_only=True)
class Node:
    """A kubelet's machine. `up` is set while the kubelet reports to and hears from the API server."""

    name: str
    address: str
    up: asyncio.Event = field(default_factory=asyncio.Event)
    exec_answer: str = ""  # how dialling the kubelet fails: "", "connection refused", "no route to host", "silence"
    present_images: set[str] = field(default_factory=set)


class Nodes:
    """All nodes and their objects in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.by_name: dict[str, Node] = {}

    def add(self, index: int, *, tainted: bool) -> None:
        name, address = f"node-{index}", f"10.99.0.{10 + index}"
        made = copied(document("node.json"))
        made["metadata"]["name"] = name
        made["metadata"]["labels"] |= {"kubernetes.io/hostname": name}
        made["status"]["addresses"][0]["address"], made["status"]["addresses"][1]["address"] = address, name
        if not tainted:
            del made["spec"]["taints"]
        for condition in made["status"]["conditions"]:
            condition |= {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        self._store.create("nodes", "", made)
        self.by_name[name] = Node(name=name, address=address)
        self.by_name[name].up.set()

    def lose(self, name: str) -> None:
        """The kubelet has not been heard of for the grace period: Ready Unknown, and the taints that follow."""
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
                # What the node lifecycle controller does: the pod is not Ready, its phase still says Running.
                self._store.edit("pods", pod["metadata"]["namespace"], pod["metadata"]["name"], _not_ready)

    def find_again(self, name: str) -> None:
        """The kubelet is back."""
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
