"""Access to the fake cluster from a build VM's laptop, and the settings of an operator who uses both.

The cluster listens on this machine's loopback, which the laptop's namespace cannot reach, so a relay forwards its port.
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.kubernetes import Cluster
from tests.support.machines.build_vm import BuildVm
from tests.support.machines.http_stubs import StubServer


@contextlib.contextmanager
def cluster_seen_by_laptop(build_vm: BuildVm, cluster: Cluster) -> Iterator[dict[str, str]]:
    """Make the cluster reachable from the laptop; provide the settings, as INVOKE_... variables without prefix."""
    kubeconfig = Path(build_vm.folder, "kubeconfig")
    kubeconfig.write_text(cluster.kubeconfig_text())
    with forwarded_port(build_vm, cluster.port):
        yield {
            "FLEET_KIND": "pods",
            "FLEET_SIZE": "2",
            "BENCH_PROFILE": "gpu",
            "CLUSTER_KUBECONFIG": str(kubeconfig),
            "CLUSTER_IMAGE": "fra.ocir.io/axtenancy/r@sha256:" + "ab" * 32,
            "REGISTRY_IMAGE": "fra.ocir.io/axtenancy/doctor:1",
            "CLUSTER_CPU": "100m",
            "FLEET_PODS_THREADS": "1",
            "CLUSTER_MEMORY": "64Mi",
            "CLUSTER_SHM": "16Mi",
            "CLUSTER_SCRATCH": "64Mi",
        }


@contextlib.contextmanager
def forwarded_port(build_vm: BuildVm, port: int) -> Iterator[None]:
    """Forward a port of the laptop's loopback to the same port of this machine's."""
    with build_vm.network.laptop.network_of_this_thread():
        relay = StubServer(_Relay, ("127.0.0.1", port))
    with relay:
        yield


class _Relay(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        near: socket.socket = self.request
        with contextlib.suppress(OSError), socket.create_connection(self.server.server_address) as far:
            back = threading.Thread(target=_pump, args=(far, near), daemon=True)
            back.start()
            _pump(near, far)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(1 << 16):
            sink.sendall(chunk)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
