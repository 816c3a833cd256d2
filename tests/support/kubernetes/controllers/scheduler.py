"""Scheduler: assigns pods to nodes by taints, selectors, anti-affinity and resources.

A pod that fits nowhere has the message of a missing GPU, whatever it lacks.

Not covered: preemption, topology spread, priorities, topology of volumes, preferred rules (the least loaded node wins).
"""

from decimal import Decimal

from remote.cluster.quantities import parse_quantity
from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.api.selectors import selector_matches
from tests.support.kubernetes.store.store import Store, set_condition

_NO_HELP = "Preemption is not helpful for scheduling"


def requests(spec: Json) -> dict[str, Decimal]:
    """Return a pod's resource requests, by resource."""
    total: dict[str, Decimal] = {}
    for container in spec["containers"]:
        resources = container.get("resources") or {}
        for name, quantity in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] = total.get(name, Decimal(0)) + parse_quantity(quantity)
    return total


def tolerates(spec: Json, taint: Json) -> bool:
    for toleration in spec.get("tolerations") or []:
        effect = toleration.get("effect")
        if effect and effect != taint["effect"]:
            continue
        if toleration.get("operator") == "Exists":
            if toleration.get("key") in (None, "", taint["key"]):
                return True
        elif toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", ""):
            return True
    return False


def _matches_selector(spec: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in (spec.get("nodeSelector") or {}).items())


def _repels(pod: Json, other: Json, other_node: Json, node: Json) -> bool:
    """Return whether a required anti-affinity of `pod` to `other`, on `other_node`, excludes `node`."""
    affinity = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    for term in affinity.get("requiredDuringSchedulingIgnoredDuringExecution", []):
        spaces = term.get("namespaces") or [pod["metadata"]["namespace"]]
        if other["metadata"]["namespace"] not in spaces:
            continue
        if not selector_matches(term.get("labelSelector"), other["metadata"].get("labels") or {}):
            continue
        domain = other_node["metadata"]["labels"].get(term["topologyKey"])
        if domain is not None and node["metadata"]["labels"].get(term["topologyKey"]) == domain:
            return True
    return False


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

    def _on_nodes(self) -> dict[str, list[Json]]:
        by_node: dict[str, list[Json]] = {}
        for pod in self._store.list("pods"):
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
                by_node.setdefault(pod["spec"].get("nodeName", ""), []).append(pod)
        return by_node

    def _place(self, pod: Json) -> None:
        nodes = {node["metadata"]["name"]: node for node in self._store.list("nodes")}
        load = self._on_nodes()
        fitting = [name for name, node in nodes.items() if self._fits(pod, node, nodes, load)]
        if fitting and self._claims_are_bound(pod):
            self._bind(pod, min(fitting, key=lambda name: (len(load.get(name, [])), name)))
        else:
            self._refuse(pod, len(nodes))

    def _claims_are_bound(self, pod: Json) -> bool:
        names = [
            volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["spec"].get("volumes") or []
        ]
        claims = [
            self._store.find("persistentvolumeclaims", pod["metadata"]["namespace"], name) for name in names if name
        ]
        return all(claim and claim.get("status", {}).get("phase") == "Bound" for claim in claims)

    def _fits(self, pod: Json, node: Json, nodes: dict[str, Json], load: dict[str, list[Json]]) -> bool:
        spec, here = pod["spec"], load.get(node["metadata"]["name"], [])
        taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
        return (
            not node["spec"].get("unschedulable")
            and all(tolerates(spec, taint) for taint in taints)
            and _matches_selector(spec, node)
            and self._has_room(pod, node, here)
            and not any(
                _repels(pod, other, nodes[name], node) or _repels(other, pod, nodes[name], node)
                for name, others in load.items()
                if name in nodes
                for other in others
            )
        )

    @staticmethod
    def _has_room(pod: Json, node: Json, here: list[Json]) -> bool:
        allocatable = node["status"]["allocatable"]
        return all(
            requested + sum((requests(other["spec"]).get(name, Decimal(0)) for other in here), Decimal(0))
            <= parse_quantity(allocatable.get(name, "0"))
            for name, requested in requests(pod["spec"]).items()
        )

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]

        def change(changed: Json) -> None:
            changed["spec"]["nodeName"] = node
            set_condition(changed, "PodScheduled", True)

        self._store.edit("pods", metadata["namespace"], metadata["name"], change)

    def _refuse(self, pod: Json, total: int) -> None:
        none, metadata = f"0/{total} nodes are available", pod["metadata"]
        known = [c for c in pod.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]
        message = f"{none}: {total} Insufficient nvidia.com/gpu. preemption: {none}: {total} {_NO_HELP}."
        if known and known[0].get("message") == message:
            return

        def change(changed: Json) -> None:
            set_condition(changed, "PodScheduled", False, reason="Unschedulable", message=message)

        self._store.edit("pods", metadata["namespace"], metadata["name"], change)
