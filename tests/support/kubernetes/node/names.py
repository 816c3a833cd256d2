"""Name resolution of pods: a hosts file per namespace instead of the cluster's DNS for headless Services.

The pods of a namespace resolve HOSTNAME.SUBDOMAIN as soon as that pod has an address, ready or not
(publishNotReadyAddresses). Not covered: a missing Service, names of Services, caching by a real DNS.
"""

import os
from pathlib import Path

from tests.support.kubernetes.api.answers import Json

_MACHINE = Path("/etc/hosts")


class Names:
    """Hosts files, one per namespace. Changed in place: a pod's bind mount would keep showing a replaced file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, dict[str, str]] = {}  # namespace to pod uid to its line

    def file(self, namespace: str) -> Path:
        """Return the hosts file of a namespace's pods."""
        path = self._folder / namespace
        if not path.exists():
            self._write(namespace)
        return path

    def add(self, pod: Json, address: str) -> None:
        spec, meta = pod["spec"], pod["metadata"]
        if spec.get("hostname") and spec.get("subdomain"):
            short = f"{spec['hostname']}.{spec['subdomain']}"
            names = (short, f"{short}.{meta['namespace']}.svc", f"{short}.{meta['namespace']}.svc.cluster.local")
            self._lines.setdefault(meta["namespace"], {})[meta["uid"]] = f"{address} {' '.join(names)}\n"
            self._write(meta["namespace"])

    def remove(self, pod: Json) -> None:
        if self._lines.get(pod["metadata"]["namespace"], {}).pop(pod["metadata"]["uid"], None):
            self._write(pod["metadata"]["namespace"])

    def _write(self, namespace: str) -> None:
        self._folder.mkdir(exist_ok=True)
        content = _MACHINE.read_text() + "".join(self._lines.get(namespace, {}).values())
        handle = os.open(self._folder / namespace, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(handle, content.encode(), 0)  # in one call, so that no reader sees an empty file
            os.ftruncate(handle, len(content.encode()))
        finally:
            os.close(handle)
