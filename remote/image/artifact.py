"""Files as an OCI artifact in a registry, in the layout that ORAS reads: a layer for each file, its title the name.

Blobs first, the manifest last: a tag never names half of them. What the registry has is not sent again, and at the end
it is asked for the manifest by its tag and by its digest. `oras pull HOST/REPOSITORY:TAG` brings the files back.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.records.durable import sha256_of
from remote.image.names import Reference
from remote.image.onvm.job import ATTEMPTS, Failed
from remote.image.onvm.registry.api import MANIFEST, Registry

EMPTY, EMPTY_CONTENT = "application/vnd.oci.empty.v1+json", b"{}"
FILE = "application/octet-stream"
TITLE = "org.opencontainers.image.title"
FIRST_WAIT_SEC = 1.0


def manifest_of(files: Mapping[str, Path], kind: str, notes: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of these files, by their names. Raises OSError."""
    layers = [
        {"mediaType": FILE, "digest": _digest(path), "size": path.stat().st_size, "annotations": {TITLE: name}}
        for name, path in sorted(files.items())
    ]
    empty = f"sha256:{hashlib.sha256(EMPTY_CONTENT).hexdigest()}"
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": {"mediaType": EMPTY, "digest": empty, "size": len(EMPTY_CONTENT)},
        "layers": layers,
        "annotations": dict(notes),
    }


def push(
    registry: Registry,
    where: Reference,
    files: Mapping[str, Path],
    kind: str,
    notes: Mapping[str, str],
    say: Callable[[str], None],
) -> dict[str, object]:
    """Send what is missing; digest, sizes and annotations as the registry confirmed them. Raises Failed and OSError."""
    manifest = manifest_of(files, kind, notes)
    content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    paths = {_digest(path): path for path in files.values()}
    with tempfile.NamedTemporaryFile() as empty:
        empty.write(EMPTY_CONTENT)
        empty.flush()
        paths[manifest["config"]["digest"]] = Path(empty.name)
        for name, path in paths.items():
            _patiently(partial(_send, registry, path, name, say))
    _patiently(lambda: registry.send_manifest(where.tag, content, MANIFEST))
    for name in (where.tag, digest):
        there = _patiently(partial(registry.manifest, name))
        if there is None or there[0] != digest:
            found = "nothing" if there is None else there[0]
            raise Failed("refused", f"{where}: the registry has {found} there, not {digest}; somebody moved the tag")
    size = sum(part["size"] for part in (manifest["config"], *manifest["layers"]))
    return {"digest": digest, "size_bytes": size, "compressed_bytes": size, "labels": dict(notes)}


def _send(registry: Registry, path: Path, digest: str, say: Callable[[str], None]) -> None:
    size = f"{path.stat().st_size / 1e6:,.1f} MB"
    if registry.has_blob(digest):  # also after a reply that was lost: the registry may have it all
        say(f"{digest[:19]}, {size}: is there already")
        return
    registry.send_blob(path, digest)
    if not registry.has_blob(digest):
        raise Failed("transient", f"{registry.host} took {digest} and does not have it")
    say(f"{digest[:19]}, {size}: sent")


def _patiently(act: Callable[[], Any]) -> Any:
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return act()
        except Failed as failed:
            if failed.kind != "transient" or attempt == ATTEMPTS:
                raise
            time.sleep(FIRST_WAIT_SEC * 2 ** (attempt - 1))
    raise AssertionError("unreachable")


def _digest(path: Path) -> str:
    return f"sha256:{sha256_of(path)}"
