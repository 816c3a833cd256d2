"""The pods' names in the cluster: what its DNS would say of a headless Service, as the hosts file of every pod.

A pod with hostname and subdomain is found as HOSTNAME.SUBDOMAIN by the pods of its namespace, as soon as it has an
address, ready or not (publishNotReadyAddresses). Not here: that the Service must exist, names of Services themselves,
the time that a real DNS caches an answer.
"""

import os
from pathlib import Path

from tests.support.kubernetes.api.answers import Json

_MACHINE = Path("/etc/hosts")


class Names:
    """One file a namespace, changed in place: the pods see it by a bind mount, which would keep a replaced one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, dict[str, str]] = {}  # namespace to pod uid to its line

    def file(self, namespace: str) -> Path:
        """The hosts file of a namespace's pods."""
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
            os.pwrite(handle, content.encode(), 0)  # at once, so that nobody reads an empty file
            os.ftruncate(handle, len(content.encode()))
        finally:
            os.close(handle)
