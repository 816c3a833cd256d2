"""The fake cluster's parts, and the calls by which tests inspect them and inject faults, bypassing the API."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import traceback
from pathlib import Path
from typing import Any, Self

from tests.support.kubernetes.api.answers import Json
from tests.support.kubernetes.api.handlers import Api
from tests.support.kubernetes.api.server import Server
from tests.support.kubernetes.controllers.controllers import Controllers
from tests.support.kubernetes.faults import Faults
from tests.support.kubernetes.node.kubelet import Kubelet
from tests.support.kubernetes.node.nodes import Nodes
from tests.support.kubernetes.node.podworker import PodWorker
from tests.support.kubernetes.store.store import Store


class FakeCluster:
    """All parts of the cluster, an async context manager; `call` serves the process's standard input."""

    def __init__(self, state: Path, configuration: Json) -> None:
        self.store = Store()
        self.faults = Faults()
        self.nodes = Nodes(self.store)
        self.kubelet = Kubelet(self.store, self.nodes, self.faults, state, configuration)
        self.api = Api(self.store, self.kubelet, self.faults)
        scale = configuration["toleration_scale"]
        self.controllers = Controllers(self.store, self.api, self.nodes, scale)
        self.server = Server(self.api, self.faults, tls_context(state), configuration["signer"])
        self._tasks: set[asyncio.Task[None]] = set()
        for name in ("default", "kube-system"):
            self.store.create("namespaces", "", {"metadata": {"name": name}})
        for index in range(configuration["nodes"]):
            self.nodes.add(index)

    async def __aenter__(self) -> Self:
        await self.server.start()
        self._tasks.add(asyncio.create_task(self._control()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        for task in self._tasks:
            task.cancel()
        await self.kubelet.stop()

    async def _control(self) -> None:
        try:
            await self.controllers.run()
        except Exception:  # noqa: BLE001
            # Exit, because a dead controller would look like a slow cluster.
            traceback.print_exc()
            os._exit(70)

    async def call(self, name: str, positional: list[Any], arguments: Json) -> Any:
        """Call a method below, or one of a part."""
        parts = (self, self.faults, self.kubelet, self.store, self.server)
        method = next(getattr(part, name) for part in parts if hasattr(part, name))
        result = method(*positional, **arguments)
        return await result if asyncio.iscoroutine(result) else result

    def _schedule(self, seconds: float, action: Any) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            result = action()
            if asyncio.iscoroutine(result):
                await result

        task = asyncio.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _worker(self, pod: str, namespace: str) -> PodWorker:
        stored = self.store.get("pods", namespace, pod)
        return self.kubelet.workers[stored["metadata"]["uid"]]

    # Inspection

    def requests(self) -> list[str]:
        return self.server.requests

    def processes(self, pod: str, namespace: str = "default") -> list[list[Any]]:
        """Return [pid, argv] of every process in the pod."""
        pid = self._worker(pod, namespace).container.pid
        inside = None if pid is None else _pid_namespace(pid)
        processes: list[list[Any]] = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _pid_namespace(int(entry.name)) == inside:
                    argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                    processes.append([int(entry.name), argv])
        return sorted(processes)

    # Faults of the API server

    async def stop_server(self, seconds: float | None = None) -> None:
        """Cut all connections and refuse new ones, for `seconds` or until `start_server`."""
        await self.server.stop_listening()
        if seconds is not None:
            self._schedule(seconds, self.server.start_server)

    def silence_server(self) -> None:
        """Answer no request until faults are cleared, and freeze every stream; connections stay open."""
        self.faults.responsive.clear()
        for name in self.nodes.by_name:
            self.kubelet.end_streams(name, "freeze")

    # Faults of nodes and kubelets

    def restart_kubelet(self, node: str, seconds: float = 1.0) -> None:
        """End all streams of the node as recorded; refuse connections for `seconds`; its pods keep running."""
        self.kubelet.end_streams(node, "close-1000-without-status")
        machine = self.nodes.by_name[node]
        machine.exec_answer = "connection refused"
        machine.up.clear()

        def up() -> None:
            machine.exec_answer = ""
            machine.up.set()

        self._schedule(seconds, up)

    def lose_node(self, node: str, *, processes_die: bool = True) -> None:
        """Make a node NotReady and unreachable; its pods stay Running until their tolerations end."""
        self.kubelet.end_streams(node, "freeze")
        self.nodes.lose(node)
        if processes_die:
            for worker in self.kubelet.workers.values():
                if worker.node.name == node:
                    worker.container.kill()

    def restore_node(self, node: str) -> None:
        """Bring a lost node back; its kubelet reports its pods' status and ends those marked for deletion."""
        self.nodes.restore(node)
        for worker in self.kubelet.workers.values():  # its pods become Ready with the kubelet's report
            if worker.node.name == node:
                self._schedule(0, worker.report)

    def silence_node(self, node: str) -> None:
        """Drop all traffic to a node whose status stays Ready, until `restore_node`."""
        self.kubelet.end_streams(node, "freeze")
        self.nodes.by_name[node].exec_answer = "silence"
        self.nodes.by_name[node].up.clear()

    def set_gpus(self, node: str, gpus: int) -> None:
        def change(changed: Json) -> None:
            for part in ("allocatable", "capacity"):
                changed["status"][part]["nvidia.com/gpu"] = str(gpus)

        self.store.edit("nodes", "", node, change)

    # Faults of pods

    def oom_kill(self, pod: str, namespace: str = "default") -> None:
        """Kill the container's PID 1, like the kernel at its memory limit."""
        container = self._worker(pod, namespace).container
        container.kill_reason = "OOMKilled"
        container.kill()

    def delete_pod(self, pod: str, namespace: str = "default", *, grace: int | None = None) -> None:
        """Delete the pod like `kubectl delete pod --wait=false`."""
        self.controllers.delete_pod(namespace, pod, grace)

    def kill(self, pod: str, pid: int, namespace: str = "default") -> None:
        """Kill one process of a pod, by its pid on this machine."""
        if pid not in [process[0] for process in self.processes(pod, namespace)]:
            raise ValueError(f"{pid} is not a process of {pod}")
        os.kill(pid, signal.SIGKILL)


def tls_context(folder: Path) -> ssl.SSLContext:
    """Write a certificate for 127.0.0.1, its own authority, as `ca.crt`; return a server context."""
    authority, private = folder / "ca.crt", folder / "server.key"
    argv = (
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-keyout", str(private), "-out", str(authority)),
        *("-subj", "/CN=tests-apiserver", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
    )
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, private)
    return context


def _pid_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/pid")
