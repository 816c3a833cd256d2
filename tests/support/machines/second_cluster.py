"""The tests' own cluster as the laptop of a build VM sees it, and the settings of an operator who uses both.

The cluster listens on this machine's loopback, which the laptop's namespace does not have: a forwarder stands between.
"""

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.kubernetes import Cluster
from tests.support.machines.build_vm import BuildVm
from tests.support.machines.http_stubs import Serving


@contextlib.contextmanager
def seen_beside(build_vm: BuildVm, cluster: Cluster) -> Iterator[dict[str, str]]:
    """The settings, as INVOKE_... variables without their prefix, for as long as the cluster can be seen."""
    kubeconfig = Path(build_vm.folder, "kubeconfig")
    kubeconfig.write_text(cluster.kubeconfig_text())
    with forwarded(build_vm, cluster.port):
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
def forwarded(build_vm: BuildVm, port: int) -> Iterator[None]:
    """This port of the laptop's loopback is that of this machine's."""
    with build_vm.network.laptop.network_of_this_thread():
        relaying = Serving(_Relay, ("127.0.0.1", port))
    with relaying:
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
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
