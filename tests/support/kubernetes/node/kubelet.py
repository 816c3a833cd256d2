"""Kubelet of all nodes: starts one PodWorker for each pod that is bound to a node."""

import asyncio
import contextlib
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.faults import Faults
from tests.support.kubernetes.node.container import DEFAULT_PATH, Container
from tests.support.kubernetes.node.names import Names
from tests.support.kubernetes.node.nodes import Node, Nodes
from tests.support.kubernetes.node.podworker import PodWorker
from tests.support.kubernetes.store.store import Change, Store


class Kubelet:
    """PodWorkers by pod uid. Every image is the machine itself, read-only."""

    def __init__(self, store: Store, nodes: Nodes, faults: Faults, state: Path, configuration: Json) -> None:
        self.store, self.nodes, self.faults, self.state = store, nodes, faults, state
        self.image_environment: dict[str, str] = configuration["image_environment"]
        # Includes the running Python's folders, unless they are in the tree that every container sees.
        wanted = dict.fromkeys([*configuration["image_paths"], sys.prefix, sys.base_prefix])
        self.image_paths = [path for path in wanted if not f"{path}/".startswith(("/usr/", "/opt/", "/etc/", "/lib/"))]
        self.workers: dict[str, PodWorker] = {}
        self.sessions: dict[str, set[Callable[[str], None]]] = {}  # node to the functions that end its open streams
        self.names = Names(state / "hosts")
        self._addresses = random.randint(64, 250)
        self._last_address = 0
        store.listen(self._on_change)

    def address(self) -> str:
        """Return a new pod address on the loopback network, so that pods reach each other."""
        self._last_address += 1
        return f"127.{self._addresses}.{self._last_address // 250}.{self._last_address % 250 + 1}"

    def _on_change(self, change: Change) -> None:
        if change.key != "pods":
            return
        uid = change.new["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.notify_changed()
        elif not change.is_deletion and change.new["spec"].get("nodeName") in self.nodes.by_name:
            node = self.nodes.by_name[change.new["spec"]["nodeName"]]
            self.workers[uid] = PodWorker(self, node, change.new)

    def node_of(self, pod: Json) -> Node:
        return self.nodes.by_name[pod["spec"]["nodeName"]]

    def container(self, pod: Json) -> Container | None:
        """Return the pod's container if it is running."""
        worker = self.workers.get(pod["metadata"]["uid"])
        return worker.container if worker and worker.container.running else None

    def end_streams(self, node: str, how: str) -> None:
        for end in list(self.sessions.get(node, ())):
            end(how)

    def forget(self, worker: PodWorker) -> None:
        self.workers.pop(worker.uid, None)
        self.names.remove(worker.pod)
        shutil.rmtree(self.state / "pods" / worker.uid, ignore_errors=True)

    def base_environment(self, hostname: str) -> dict[str, str]:
        return {"PATH": DEFAULT_PATH, "HOSTNAME": hostname, "HOME": "/root", **self.image_environment}

    async def stop(self) -> None:
        """Kill every container and wait for its exit."""
        for worker in list(self.workers.values()):
            worker.task.cancel()
            worker.container.kill()
        for worker in list(self.workers.values()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*worker.container.tasks), 5)
