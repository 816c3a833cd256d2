"""Files as an OCI artifact in a registry, in the layout that ORAS reads: a layer for each file, its title the name.

Blobs first, the manifest last: a tag never names half of them. What the registry has is not sent again, and at the end
it is asked for the manifest by its tag and by its digest. `oras pull HOST/REPOSITORY:TAG` brings the files back.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.records.atomic_files import sha256_of
from remote.image.references import Reference
from remote.image.vm_agent.job import Failed, with_retries
from remote.image.vm_agent.registry.api import MANIFEST, Registry, digest_of
from remote.image.vm_agent.registry.referrers import EMPTY, EMPTY_CONTENT, TITLE, descriptor

FILE = "application/octet-stream"
FIRST_WAIT_SEC = 1.0


def manifest_of(files: Mapping[str, Path], kind: str, notes: Mapping[str, str]) -> dict[str, Any]:
    """The manifest of these files, by their names. Raises OSError."""
    layers = [
        {"mediaType": FILE, "digest": _digest(path), "size": path.stat().st_size, "annotations": {TITLE: name}}
        for name, path in sorted(files.items())
    ]
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": descriptor(EMPTY, EMPTY_CONTENT),
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
    digest = digest_of(content)
    blobs: dict[str, Path | bytes] = {_digest(path): path for path in files.values()}
    blobs[digest_of(EMPTY_CONTENT)] = EMPTY_CONTENT
    for name, blob in blobs.items():
        with_retries(partial(_send, registry, blob, name, say), FIRST_WAIT_SEC)
    with_retries(partial(registry.send_manifest, where.tag, content, MANIFEST), FIRST_WAIT_SEC)
    for name in (where.tag, digest):
        there = with_retries(partial(registry.manifest, name), FIRST_WAIT_SEC)
        if there is None or there[0] != digest:
            found = "nothing" if there is None else there[0]
            raise Failed("refused", f"{where}: the registry has {found} there, not {digest}; somebody moved the tag")
    size = sum(part["size"] for part in (manifest["config"], *manifest["layers"]))
    return {"digest": digest, "size_bytes": size, "compressed_bytes": size, "labels": dict(notes)}


def _send(registry: Registry, blob: Path | bytes, digest: str, say: Callable[[str], None]) -> None:
    size = f"{(len(blob) if isinstance(blob, bytes) else blob.stat().st_size) / 1e6:,.1f} MB"
    if registry.has_blob(digest):  # also after a reply that was lost: the registry may have it all
        say(f"{digest[:19]}, {size}: is there already")
        return
    registry.send_blob(blob, digest)
    if not registry.has_blob(digest):
        raise Failed("transient", f"{registry.host} took {digest} and does not have it")
    say(f"{digest[:19]}, {size}: sent")


def _digest(path: Path) -> str:
    return f"sha256:{sha256_of(path)}"
