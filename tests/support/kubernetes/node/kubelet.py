"""All kubelets in one: for every pod bound to a node, one worker that makes it run and tells the API server."""

import asyncio
import contextlib
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.controllers.events import Recorder
from tests.support.kubernetes.node.container import DEFAULT_PATH, Container
from tests.support.kubernetes.node.images import Images
from tests.support.kubernetes.node.names import Names
from tests.support.kubernetes.node.nodes import Node, Nodes
from tests.support.kubernetes.node.podworker import PodWorker
from tests.support.kubernetes.store.store import Change, Store


@dataclass(frozen=True, kw_only=True)
class Image:
    """What stands for every image: the machine itself, seen read-only, and these settings of a Dockerfile.

    `paths` are folders of the machine that the containers see at the same place, read-only.
    """

    entrypoint: tuple[str, ...] = ("tini", "--")
    command: tuple[str, ...] = ("sleep", "infinity")
    environment: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    user: int = 0

    def seen(self) -> list[str]:
        """`paths` and the running Python's own folders, where they are not in the tree that every container sees."""
        wanted = [*self.paths, sys.prefix, sys.base_prefix]
        inside = ("/usr/", "/opt/", "/etc/", "/lib/")
        return [path for path in dict.fromkeys(wanted) if not path.startswith(inside) and path != "/usr"]


@dataclass(frozen=True, kw_only=True)
class Delays:
    """Waits that are long on a real cluster; in seconds."""

    restart: float = 10.0
    image_back_off: float = 10.0
    retry: float = 0.5


class Kubelet:
    """Workers by pod uid."""

    def __init__(
        self,
        store: Store,
        nodes: Nodes,
        events: Recorder,
        images: Images,
        state: Path,
        image: Image,
        delays: Delays,
        disk_bytes: int | None,
    ) -> None:
        self.store, self.nodes, self.events, self.images = store, nodes, events, images
        self.state, self.image, self.delays, self.disk_bytes = state, image, delays, disk_bytes
        self.workers: dict[str, PodWorker] = {}
        self.sessions: dict[str, set[Callable[[str], None]]] = {}  # node to the ends of its live streams
        self.names = Names(state / "hosts")
        self._addresses = random.randint(64, 250)
        self._last_address = 0
        store.listen(self._seen)

    def address(self) -> str:
        """A pod's own address: on the loopback network, so that pods of this machine reach each other."""
        self._last_address += 1
        return f"127.{self._addresses}.{self._last_address // 250}.{self._last_address % 250 + 1}"

    def _seen(self, change: Change) -> None:
        if change.key != "pods":
            return
        uid = change.new["metadata"]["uid"]
        worker = self.workers.get(uid)
        if worker is not None:
            worker.look()
        elif not change.gone and change.new["spec"].get("nodeName") in self.nodes.by_name:
            node = self.nodes.by_name[change.new["spec"]["nodeName"]]
            self.workers[uid] = PodWorker(self, node, change.new)

    def node_of(self, pod: Json) -> Node:
        return self.nodes.by_name[pod["spec"]["nodeName"]]

    def container(self, pod: Json, name: str) -> Container | None:
        """The container if it runs."""
        worker = self.workers.get(pod["metadata"]["uid"])
        found = worker.containers.get(name) if worker else None
        return found if found is not None and found.running else None

    def forget(self, worker: PodWorker) -> None:
        self.workers.pop(worker.uid, None)
        self.names.remove(worker.pod)
        shutil.rmtree(self.state / "pods" / worker.uid, ignore_errors=True)

    def base_environment(self, hostname: str) -> dict[str, str]:
        home = "/root" if self.image.user == 0 else "/"
        return {"PATH": DEFAULT_PATH, "HOSTNAME": hostname, "HOME": home, **self.image.environment}

    def restart(self, name: str) -> None:
        """Every stream through this kubelet ends as recorded: cut, with close 1000 and no Status. Pods live on."""
        for end in list(self.sessions.get(name, ())):
            end("close-1000-without-status")

    async def stop(self) -> None:
        """Kill every container and wait until it is gone."""
        for worker in list(self.workers.values()):
            worker.task.cancel()
            for container in worker.containers.values():
                container.kill()
        for worker in list(self.workers.values()):
            for container in worker.containers.values():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.gather(*container.tasks), 5)
