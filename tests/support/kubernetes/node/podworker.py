"""One pod's life on its node: image, volumes, containers, probes, restarts, and every way it can end."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
from typing import TYPE_CHECKING

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.node.container import Container
from tests.support.kubernetes.node.podstatus import status_of
from tests.support.kubernetes.node.volumes import CannotConfigure, CannotMount, environment, expand, mounts
from tests.support.kubernetes.store.store import now

if TYPE_CHECKING:
    from tests.support.kubernetes.node.kubelet import Kubelet
    from tests.support.kubernetes.node.nodes import Node

_KILL_WAIT_SEC = 30.0
_RESTART_SEC, _RETRY_SEC = 1.0, 0.5  # both are longer on a real cluster
_ENTRYPOINT, _COMMAND = ("tini", "--"), ("sleep", "infinity")  # of every image, which is run as root


class PodWorker:
    """Owns the pod's processes. All that others may do is `look()`, `evict()` and `oom_kill()`."""

    def __init__(self, kubelet: Kubelet, node: Node, pod: Json) -> None:
        self.kubelet, self.node, self.pod = kubelet, node, pod
        self.uid = pod["metadata"]["uid"]
        self.namespace, self.name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.hostname = pod["spec"].get("hostname") or self.name
        self.address = ""
        self.starts = 0
        self.started_at = now()
        self.reason, self.message = "", ""  # Evicted, DeadlineExceeded
        self.disrupted = ""
        self.initialized = False
        self.finished = False
        spec = pod["spec"]
        self.initial = {c["name"]: Container(name=c["name"], spec=c) for c in spec.get("initContainers", [])}
        self.main = {c["name"]: Container(name=c["name"], spec=c) for c in spec["containers"]}
        self.containers = {**self.initial, **self.main}
        self._starts: list[asyncio.Task[None]] = []
        self._look = asyncio.Event()
        self._evicted = asyncio.Event()
        self.task = asyncio.create_task(self._guard())

    def look(self) -> None:
        """The pod's object has changed."""
        self._look.set()

    def evict(self, reason: str, message: str) -> None:
        self.reason, self.message, self.disrupted = reason, message, "TerminationByKubelet"
        self._evicted.set()

    def oom_kill(self) -> None:
        """Kill the first container's PID 1 as the kernel does when its memory limit is reached."""
        container = next(iter(self.main.values()))
        container.death = "OOMKilled"
        container.kill()

    def event(self, reason: str, message: str, *, kind: str = "Normal", container: str = "") -> None:
        current = self._current() or self.pod
        self.kubelet.events.say(
            "pods", current, reason, message, by="kubelet", kind=kind, host=self.node.name, container=container
        )

    def _current(self) -> Json | None:
        found = self.kubelet.store.find("pods", self.namespace, self.name)
        return found if found is not None and found["metadata"]["uid"] == self.uid else None

    async def report(self) -> None:
        """Write the status once the node can."""
        await self.node.up.wait()
        if self._current() is not None:
            self.kubelet.store.edit(
                "pods", self.namespace, self.name, lambda pod: pod.update(status=status_of(self, pod))
            )

    async def _guard(self) -> None:
        """Run the pod beside everything that may end it early; then see it out."""
        life = asyncio.create_task(self._life())
        ends = [asyncio.create_task(wait()) for wait in (self._deletion, self._evicted.wait, self._deadline)]
        try:
            await asyncio.wait([life, *ends], return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                await life  # an error of ours must not pass for an ended pod
        finally:
            for task in (life, *ends[1:]):
                task.cancel()
        if not ends[0].done() and not life.done():
            await self._stop(self._grace() if self.reason == "DeadlineExceeded" else 0)
        if not ends[0].done():
            self.finished = True
            await self.report()
        await ends[0]
        await self._stop(self._deletion_grace())
        self.finished = True
        await self.report()
        if self._current() is not None:
            self.kubelet.store.remove("pods", self.namespace, self.name)
        self.kubelet.forget(self)

    def _grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _deletion_grace(self) -> float:
        current = self._current()
        return float(current["metadata"].get("deletionGracePeriodSeconds", 0)) if current else 0.0

    async def _deletion(self) -> None:
        """Return when the pod is to go, as far as this node can know."""
        while True:
            self._look.clear()
            await self.node.up.wait()
            current = self._current()
            if current is None or current["metadata"].get("deletionTimestamp"):
                return
            await self._look.wait()

    async def _deadline(self) -> None:
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        if limit is None:
            await asyncio.Event().wait()
        await asyncio.sleep(limit)
        self.reason, self.message = "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"
        self.event(self.reason, self.message)

    async def _stop(self, grace: float) -> None:
        """TERM, then KILL after `grace` seconds, for every container that runs."""
        await asyncio.gather(*self._starts)
        alive = [container for container in self.containers.values() if container.running]
        for container in alive:
            self.event("Killing", f"Stopping container {container.name}", container=container.name)
            container.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
        ends = asyncio.gather(*(container.ended.wait() for container in alive))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ends), grace)
        for container in alive:
            container.kill()
        await asyncio.wait_for(ends, _KILL_WAIT_SEC)

    async def _life(self) -> None:
        self.address = self.kubelet.address()
        self.kubelet.names.add(self.pod, self.address)
        await self.report()
        for container in self.initial.values():
            await self._bring_up(container)
            await container.ended.wait()
            if container.exit_code != 0:
                self.finished = True
                return
        self.initialized = True
        policy = self.pod["spec"].get("restartPolicy", "Always")
        await asyncio.gather(*(self._keep(container, policy) for container in self.main.values()))
        self.finished = True

    async def _keep(self, container: Container, policy: str) -> None:
        """Run a container, again and again if its policy says so."""
        while True:
            await self._bring_up(container)
            probe = asyncio.create_task(self._probe(container))
            try:
                await container.ended.wait()
            finally:
                probe.cancel()
            if policy == "Never" or (policy == "OnFailure" and container.exit_code == 0):
                if len(self.main) > 1:
                    await self.report()
                return
            await self.report()
            container.last_state, container.restarts = container.state, container.restarts + 1
            where = f"{self.name}_{self.namespace}({self.uid})"
            container.state = {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {_RESTART_SEC:g}s restarting failed container={container.name} pod={where}",
                }
            }
            said = f"Back-off restarting failed container {container.name} in pod {where}"
            self.event("BackOff", said, kind="Warning", container=container.name)
            await self.report()
            await asyncio.sleep(_RESTART_SEC)

    async def _bring_up(self, container: Container) -> None:
        spec = container.spec
        await self._pull(container)
        variables, folders = await self._configure(container)
        command = [expand(word, variables) for word in spec.get("command", [])]
        words = [expand(word, variables) for word in spec.get("args", [])]
        argv = [*command, *words] if command else [*_ENTRYPOINT, *(words or _COMMAND)]
        self.event("Created", f"Created container: {container.name}", container=container.name)
        start = asyncio.create_task(container.start(self._sandbox(spec, folders, variables, argv)))
        self._starts.append(start)
        await asyncio.shield(start)  # a pod that ends meanwhile must still find the process to kill it
        if container.running:
            container.ready = "readinessProbe" not in spec
            self.event("Started", f"Started container {container.name}", container=container.name)
        else:
            await container.ended.wait()
            message = container.state["terminated"]["message"]
            self.event("Failed", f"Error: {message}", kind="Warning", container=container.name)
        await self.report()

    def _sandbox(self, container: Json, folders: list[Json], variables: dict[str, str], argv: list[str]) -> Json:
        """The specification that sandbox.py takes."""
        security = self.pod["spec"].get("securityContext", {}) | container.get("securityContext", {})
        uid = security.get("runAsUser", 0)
        fs_group = [security["fsGroup"]] if "fsGroup" in security else []
        root = self.kubelet.state / "pods" / self.uid / "containers" / f"{container['name']}-{self.starts}"
        root.mkdir(parents=True)
        root.chmod(0o755)
        self.starts += 1
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
            "mounts": [*folders, {"path": "/etc/hosts", "source": str(self.kubelet.names.file(self.namespace))}],
            "image_paths": self.kubelet.image_paths,
            "read_only_root": security.get("readOnlyRootFilesystem", False),
        }

    async def _pull(self, container: Container) -> None:
        image, name = container.spec["image"], container.name
        if image in self.node.present_images and container.spec.get("imagePullPolicy") != "Always":
            self.event("Pulled", f'Container image "{image}" already present on machine', container=name)
            return
        self.event("Pulling", f'Pulling image "{image}"', container=name)
        while (failing := self.kubelet.images.failure_of(image)) is not None:
            self.event("Failed", f'Failed to pull image "{image}": {failing}', kind="Warning", container=name)
            self.event("Failed", "Error: ErrImagePull", kind="Warning", container=name)
            container.state = {"waiting": {"reason": "ErrImagePull", "message": failing}}
            await self.report()
            await asyncio.sleep(_RETRY_SEC)
            self.event("BackOff", f'Back-off pulling image "{image}"', container=name)
            self.event("Failed", "Error: ImagePullBackOff", kind="Warning", container=name)
            waiting = f'Back-off pulling image "{image}": ErrImagePull: {failing}'
            container.state = {"waiting": {"reason": "ImagePullBackOff", "message": waiting}}
            await self.report()
            await asyncio.sleep(self.kubelet.image_back_off_sec)
            self.event("Pulling", f'Pulling image "{image}"', container=name)
        self.node.present_images.add(image)
        pulled = f'Successfully pulled image "{image}" in 17ms (17ms including waiting). Image size: 2130691 bytes.'
        self.event("Pulled", pulled, container=name)

    async def _configure(self, container: Container) -> tuple[dict[str, str], list[Json]]:
        """The environment and the mounts, as soon as all they refer to exists."""
        kubelet, spec = self.kubelet, container.spec
        while True:
            pod = self._current() or self.pod
            pod = {**pod, "status": status_of(self, pod)}
            try:
                folders = mounts(kubelet.store, pod, spec, kubelet.state, kubelet.disk_bytes)
            except CannotMount as error:
                volume = next(v["name"] for v in pod["spec"].get("volumes", []))
                said = f'MountVolume.SetUp failed for volume "{volume}" : {error}'
                self.event("FailedMount", said, kind="Warning")
                await asyncio.sleep(_RETRY_SEC)
                continue
            try:
                self._check_user(container)
                variables = environment(kubelet.store, pod, spec, kubelet.base_environment(self.hostname))
            except CannotConfigure as error:
                container.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
                self.event("Failed", f"Error: {error}", kind="Warning", container=container.name)
                await self.report()
                await asyncio.sleep(_RETRY_SEC)
                continue
            return variables, folders

    def _check_user(self, container: Container) -> None:
        security = self.pod["spec"].get("securityContext", {}) | container.spec.get("securityContext", {})
        if security.get("runAsNonRoot") and security.get("runAsUser", 0) == 0:
            where = f'pod: "{self.name}_{self.namespace}({self.uid})", container: {container.name}'
            raise CannotConfigure(f"container has runAsNonRoot and image will run as root ({where})")

    def _get(self, container: Container, asked: Json) -> tuple[bool, bytes]:
        """Whether the pod's address answers with a status from 200 to 399, as a kubelet asks."""
        ports = {one.get("name"): one["containerPort"] for one in container.spec.get("ports", [])}
        link = http.client.HTTPConnection(self.address, ports.get(asked["port"], asked["port"]), timeout=5)
        try:
            link.request("GET", asked.get("path", "/"))
            status = link.getresponse().status
            return 200 <= status < 400, f"HTTP probe failed with statuscode: {status}".encode()
        except OSError as error:
            return False, str(error).encode()
        finally:
            link.close()

    async def _probe(self, container: Container) -> None:
        """A readiness probe by command or HTTP; other kinds of probe are taken as passed."""
        probe = container.spec.get("readinessProbe", {})
        if not probe:
            return
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            passed, said = True, b""
            if "exec" in probe:
                process = await container.execute(probe["exec"]["command"], stdin=False)
                out, err = await process.communicate()
                passed, said = process.returncode == 0, out + err
            if "httpGet" in probe:
                passed, said = await asyncio.to_thread(self._get, container, probe["httpGet"])
            if not passed:
                failed = f"Readiness probe failed: {said.decode(errors='replace')}"
                self.event("Unhealthy", failed, kind="Warning", container=container.name)
            if passed != container.ready and container.running:
                container.ready = passed
                await self.report()
            await asyncio.sleep(probe.get("periodSeconds", 10))
