"""One pod's life cycle on its node: image, volumes, its one container, and termination."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.node.container import Container, termination_log
from tests.support.kubernetes.node.podstatus import status_of
from tests.support.kubernetes.node.volumes import environment, expand, mounts
from tests.support.kubernetes.store.store import now

if TYPE_CHECKING:
    from tests.support.kubernetes.node.kubelet import Kubelet
    from tests.support.kubernetes.node.nodes import Node

_KILL_WAIT_SEC = 30.0
_RETRY_SEC = 0.5  # longer on a real cluster
_IMAGE_ENTRYPOINT = ("tini", "--")


class PodWorker:
    """Owner of a pod's processes. Other objects call only `notify_changed` and `report`."""

    def __init__(self, kubelet: Kubelet, node: Node, pod: Json) -> None:
        self.kubelet, self.node, self.pod = kubelet, node, pod
        self.uid = pod["metadata"]["uid"]
        self.namespace, self.name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.hostname = pod["spec"].get("hostname") or self.name
        self.address = ""
        self.started_at = now()
        self.finished = False
        (spec,) = pod["spec"]["containers"]
        self.container = Container(spec=spec)
        self._start: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._supervise())

    def notify_changed(self) -> None:
        """Notify the worker that the pod's object has changed."""
        self._changed.set()

    def _current(self) -> Json | None:
        stored = self.kubelet.store.find("pods", self.namespace, self.name)
        return stored if stored is not None and stored["metadata"]["uid"] == self.uid else None

    async def report(self) -> None:
        """Write the status as soon as the node is connected."""
        await self.node.up.wait()
        if self._current() is not None:
            self.kubelet.store.edit(
                "pods", self.namespace, self.name, lambda pod: pod.update(status=status_of(self, pod))
            )

    async def _supervise(self) -> None:
        """Run the pod until it ends or is deleted; then stop and remove it."""
        life, deletion = asyncio.create_task(self._run()), asyncio.create_task(self._deletion())
        try:
            await asyncio.wait([life, deletion], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                await life  # raise our own errors
        finally:
            life.cancel()
        if not deletion.done():
            self.finished = True
            await self.report()
        await deletion
        await self._stop(self._deletion_grace())
        self.finished = True
        await self.report()
        if (current := self._current()) is not None:
            if current["metadata"].get("finalizers"):
                # Api.finalize removes it, once the Job controller has counted it.
                self.kubelet.store.edit(
                    "pods", self.namespace, self.name, lambda pod: pod["metadata"].update(deletionGracePeriodSeconds=0)
                )
            else:
                self.kubelet.store.remove("pods", self.namespace, self.name)
        self.kubelet.forget(self)

    def _deletion_grace(self) -> float:
        current = self._current()
        return float(current["metadata"].get("deletionGracePeriodSeconds", 0)) if current else 0.0

    async def _deletion(self) -> None:
        """Wait until the connected node sees that the pod is deleted."""
        while True:
            self._changed.clear()
            await self.node.up.wait()
            current = self._current()
            if current is None or current["metadata"].get("deletionTimestamp"):
                return
            await self._changed.wait()

    async def _stop(self, grace: float) -> None:
        """Send SIGTERM to the running container, and SIGKILL after `grace` seconds."""
        if self._start is not None:
            await self._start
        if self.container.running:
            self.container.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.container.ended.wait(), grace)
            self.container.kill()
            await asyncio.wait_for(self.container.ended.wait(), _KILL_WAIT_SEC)

    async def _run(self) -> None:
        self.address, container = self.kubelet.address(), self.container
        self.kubelet.names.add(self.pod, self.address)
        await self.report()
        await self._pull(container)
        variables, folders = self._configure(container)
        argv = [*_IMAGE_ENTRYPOINT, *(expand(text, variables) for text in container.spec["args"])]
        self._start = asyncio.create_task(container.start(self._sandbox(container.spec, folders, variables, argv)))
        await asyncio.shield(self._start)  # not cancelled with the pod, so that its process is known and can be killed
        container.ready = True
        await self.report()
        await container.ended.wait()
        self.finished = True

    def _sandbox(self, container: Json, folders: list[Json], variables: dict[str, str], argv: list[str]) -> Json:
        """Return the specification for sandbox.py."""
        security = self.pod["spec"].get("securityContext", {}) | container.get("securityContext", {})
        uid = security.get("runAsUser", 0)
        fs_group = [security["fsGroup"]] if "fsGroup" in security else []
        root = self.kubelet.state / "pods" / self.uid / "container"
        root.mkdir(parents=True)
        root.chmod(0o755)
        message = termination_log(root)
        message.touch()
        message.chmod(0o666)
        return {
            "root": str(root),
            "parent": os.getpid(),
            "hostname": self.hostname,
            "uid": uid,
            "gid": security.get("runAsGroup", uid),
            "groups": [*security.get("supplementalGroups", []), *fs_group],
            "cwd": container.get("workingDir", "/"),
            "argv": argv,
            "environment": variables,
            "mounts": [
                *folders,
                {"path": "/etc/hosts", "source": str(self.kubelet.names.file(self.pod))},
                {"path": "/dev/termination-log", "source": str(message)},
            ],
            "image_paths": self.kubelet.image_paths,
            "read_only_root": security.get("readOnlyRootFilesystem", False),
        }

    async def _pull(self, container: Container) -> None:
        image = container.spec["image"]
        if image in self.node.present_images and container.spec.get("imagePullPolicy") != "Always":
            return
        while (failing := self.kubelet.faults.of_pull(image)) is not None:
            container.state = {"waiting": {"reason": "ErrImagePull", "message": failing}}
            await self.report()
            await asyncio.sleep(_RETRY_SEC)
            waiting = f'Back-off pulling image "{image}": ErrImagePull: {failing}'
            container.state = {"waiting": {"reason": "ImagePullBackOff", "message": waiting}}
            await self.report()
            await asyncio.sleep(2 * _RETRY_SEC)
        self.node.present_images.add(image)

    def _configure(self, container: Container) -> tuple[dict[str, str], list[Json]]:
        """Return the environment and the mounts."""
        pod = self._current() or self.pod
        pod = {**pod, "status": status_of(self, pod)}
        base = self.kubelet.base_environment(self.hostname)
        variables = environment(self.kubelet.store, pod, container.spec, base)
        return variables, mounts(pod, container.spec, self.kubelet.state)
