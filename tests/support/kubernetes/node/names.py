"""Name resolution of pods: a hosts file per pod instead of the cluster's DNS for headless Services.

The pods of a namespace resolve HOSTNAME.SUBDOMAIN as soon as that pod has an address, ready or not
(publishNotReadyAddresses); two pods with one name are both in it, the older one first. A pod resolves its own hostname
to itself, as the file that a kubelet writes says. Not covered: a missing Service, names of Services, caching by a real
DNS.
"""

import os
from pathlib import Path

from tests.support.kubernetes.api.answers import Json

_MACHINE = Path("/etc/hosts")


class Names:
    """Hosts files, one per pod. Changed in place: a pod's bind mount would keep showing a replaced file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pods: dict[str, tuple[Json, str]] = {}  # pod uid to the pod and its address

    def file(self, pod: Json) -> Path:
        """Return the hosts file of a pod that has an address."""
        return self._folder / str(pod["metadata"]["uid"])

    def add(self, pod: Json, address: str) -> None:
        self._pods[pod["metadata"]["uid"]] = pod, address
        self._write(pod["metadata"]["namespace"])

    def remove(self, pod: Json) -> None:
        if self._pods.pop(pod["metadata"]["uid"], None):
            self._write(pod["metadata"]["namespace"])
            self.file(pod).unlink()

    def _write(self, namespace: str) -> None:
        self._folder.mkdir(exist_ok=True)
        same = [(pod, address) for pod, address in self._pods.values() if pod["metadata"]["namespace"] == namespace]
        common = _MACHINE.read_text() + "".join(_service_line(pod["spec"], namespace, address) for pod, address in same)
        for pod, address in same:
            content = f"{common}{address} {pod['spec'].get('hostname') or pod['metadata']['name']}\n".encode()
            handle = os.open(self.file(pod), os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(handle, content, 0)  # in one call, so that no reader sees an empty file
                os.ftruncate(handle, len(content))
            finally:
                os.close(handle)


def _service_line(spec: Json, namespace: str, address: str) -> str:
    if not (spec.get("hostname") and spec.get("subdomain")):
        return ""
    short = f"{spec['hostname']}.{spec['subdomain']}"
    return f"{address} {short} {short}.{namespace}.svc {short}.{namespace}.svc.cluster.local\n"
