"""Scheduler: assigns pods to nodes by taints, selectors, anti-affinity and resources, or records the real message.

Not covered: preemption, topology spread, priorities, topology of volumes, preferred rules (the least loaded node wins).
"""

from collections import Counter
from decimal import Decimal

from remote.cluster.quantities import parse_quantity
from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.api.selectors import selector_matches
from tests.support.kubernetes.controllers.events import Recorder
from tests.support.kubernetes.store.store import Store, set_condition

# Whether preemption could help differs in a real message; ours always says that it does not.
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

    def __init__(self, store: Store, events: Recorder) -> None:
        self._store, self._events = store, events

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
        reasons: Counter[str] = Counter()
        fitting = []
        claims = self._unbound_claims(pod)
        if claims:
            self._refuse(pod, claims, len(nodes))
            return
        for name, node in nodes.items():
            why = self._objection(pod, node, nodes, load)
            if not why:
                fitting.append(name)
            reasons.update(why)
        if fitting:
            self._bind(pod, min(fitting, key=lambda name: (len(load.get(name, [])), name)))
            return
        listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
        self._refuse(pod, listed, len(nodes))

    def _unbound_claims(self, pod: Json) -> str:
        for volume in pod["spec"].get("volumes") or []:
            name = volume.get("persistentVolumeClaim", {}).get("claimName")
            if not name:
                continue
            claim = self._store.find("persistentvolumeclaims", pod["metadata"]["namespace"], name)
            if claim is None:
                return f'persistentvolumeclaim "{name}" not found'
            if claim.get("status", {}).get("phase") != "Bound":
                return "pod has unbound immediate PersistentVolumeClaims"
        return ""

    def _objection(self, pod: Json, node: Json, nodes: dict[str, Json], load: dict[str, list[Json]]) -> list[str]:
        """Return the reasons of the first filter that rejects this node."""
        spec = pod["spec"]
        if node["spec"].get("unschedulable"):
            return ["node(s) were unschedulable"]
        taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
        if any(not tolerates(spec, taint) for taint in taints):
            return ["node(s) had untolerated taint(s)"]
        if not _matches_selector(spec, node):
            return ["node(s) didn't match Pod's node affinity/selector"]
        here = load.get(node["metadata"]["name"], [])
        if short := self._insufficient(pod, node, here):
            return [f"Insufficient {name}" for name in short]
        for name, others in load.items():
            if name in nodes and any(
                _repels(pod, other, nodes[name], node) or _repels(other, pod, nodes[name], node) for other in others
            ):
                return ["node(s) didn't match pod anti-affinity rules"]
        return []

    @staticmethod
    def _insufficient(pod: Json, node: Json, here: list[Json]) -> list[str]:
        """Return the insufficient resources."""
        allocatable = node["status"]["allocatable"]
        short = []
        for name, requested in requests(pod["spec"]).items():
            whole = parse_quantity(allocatable.get(name, "0"))
            taken = sum((requests(other["spec"]).get(name, Decimal(0)) for other in here), Decimal(0))
            if requested > whole - taken:
                short.append(name)
        return short

    def _bind(self, pod: Json, node: str) -> None:
        metadata = pod["metadata"]

        def change(changed: Json) -> None:
            changed["spec"]["nodeName"] = node
            set_condition(changed, "PodScheduled", True)

        # The event comes first, so that it precedes the kubelet's.
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        self._events.record("pods", pod, "Scheduled", message, by="default-scheduler")
        self._store.edit("pods", metadata["namespace"], metadata["name"], change)

    def _refuse(self, pod: Json, reasons: str, total: int) -> None:
        none = f"0/{total} nodes are available"
        preemption = f"no new claims to deallocate, preemption: {none}: {total} {_NO_HELP}."
        message, metadata = f"{none}: {reasons}. {preemption}", pod["metadata"]
        known = [c for c in pod.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]
        if known and known[0].get("message") == message:
            return

        def change(changed: Json) -> None:
            set_condition(changed, "PodScheduled", False, reason="Unschedulable", message=message)

        self._store.edit("pods", metadata["namespace"], metadata["name"], change)
        self._events.record("pods", pod, "FailedScheduling", message, by="default-scheduler", kind="Warning")
