"""Controller loop: scheduling, Jobs, eviction from lost nodes, binding of claims.

Each change of the store triggers a pass over all objects; the tests' clusters are small.
"""

import asyncio
import contextlib
import time
from datetime import datetime

from tests.support.kubernetes.api.answers import Json, Refusal
from tests.support.kubernetes.api.handlers import Api
from tests.support.kubernetes.controllers.jobs import JobController
from tests.support.kubernetes.controllers.scheduler import Scheduler
from tests.support.kubernetes.node.nodes import OUT_OF_SERVICE, UNREACHABLE, Nodes
from tests.support.kubernetes.store.resources import Target, by_key
from tests.support.kubernetes.store.store import Change, Store, set_condition, true_conditions

_IDLE_SEC = 0.2  # the interval of passes without changes, for deadlines and tolerations


class Controllers:
    """Controller manager and scheduler."""

    def __init__(self, store: Store, api: Api, nodes: Nodes, toleration_scale: float) -> None:
        self._store, self._api, self._nodes = store, api, nodes
        self._toleration_scale = toleration_scale
        self._scheduler = Scheduler(store)
        self.jobs = JobController(store, self._create_pod, self.delete_pod)
        self._changed = asyncio.Event()
        store.listen(self._on_change)

    def _on_change(self, _: Change) -> None:
        self._changed.set()

    async def run(self) -> None:
        while True:
            self._changed.clear()
            self.step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _IDLE_SEC)
            await asyncio.sleep(0)

    def step(self) -> None:
        self._api.finalize()
        self._claims()
        self.jobs.run()
        self._evict()
        self._scheduler.run()

    def _create_pod(self, namespace: str, pod: Json) -> None:
        at = Target(resource=by_key("pods"), namespace=namespace)
        self._api.writer.write("POST", at, pod, {"fieldManager": "kube-controller-manager"}, "application/json")

    def delete_pod(self, namespace: str, pod: str, grace: int | None = None) -> None:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        with contextlib.suppress(Refusal):  # gone meanwhile
            self._api.delete("pods", namespace, pod, options)

    def _claims(self) -> None:
        """Bind claims to the volumes that they name."""
        for claim in self._store.list("persistentvolumeclaims"):
            name = claim["spec"].get("volumeName", "")
            volume = self._store.find("persistentvolumes", "", name)
            if volume is None or claim["status"]["phase"] == "Bound":
                continue
            self._store.replace("persistentvolumes", {**volume, "status": {"phase": "Bound"}})
            self._store.replace("persistentvolumeclaims", {**claim, "status": {"phase": "Bound"}})

    def _evict(self) -> None:
        """Mark the pods of lost nodes for deletion when their tolerations have expired; end them if a node is off."""
        for node in self._store.list("nodes"):
            taints = {t["key"]: t for t in node["spec"].get("taints") or [] if t["effect"] == "NoExecute"}
            is_off = OUT_OF_SERVICE in taints and "Ready" not in true_conditions(node)
            for pod in self._store.list("pods") if taints.keys() & {UNREACHABLE, OUT_OF_SERVICE} else ():
                if pod["spec"].get("nodeName") != node["metadata"]["name"]:
                    continue
                if pod["metadata"].get("deletionTimestamp"):
                    if is_off:
                        self._end_without_node(pod)
                elif OUT_OF_SERVICE in taints or (
                    _age(taints[UNREACHABLE]["timeAdded"]) >= self._toleration_sec(pod, taints[UNREACHABLE])
                ):
                    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
                    self._store.edit("pods", namespace, name, _disrupt)
                    self.delete_pod(namespace, name)

    def _end_without_node(self, pod: Json) -> None:
        """Fail and remove a pod that is being deleted, like the controller of garbage: its node cannot."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._store.edit("pods", namespace, name, lambda changed: changed["status"].update(phase="Failed"))
        self.delete_pod(namespace, name, grace=0)

    def _toleration_sec(self, pod: Json, taint: Json) -> float:
        limits = [
            toleration["tolerationSeconds"]
            for toleration in pod["spec"].get("tolerations", ())
            if toleration.get("key") in (None, taint["key"]) and "tolerationSeconds" in toleration
        ]
        return min(limits) * self._toleration_scale if limits else float("inf")


def _disrupt(pod: Json) -> None:
    message = "Taint manager: deleting due to NoExecute taint"
    set_condition(pod, "DisruptionTarget", True, reason="DeletionByTaintManager", message=message)


def _age(stamp: str) -> float:
    return time.time() - datetime.fromisoformat(stamp).timestamp()
