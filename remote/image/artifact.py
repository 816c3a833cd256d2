"""Files as an OCI artifact in a registry, in the layout that ORAS reads: one layer per file, titled with the file name.

The blobs are sent first and the manifest last, so a tag never names an incomplete artifact. Blobs that the registry has
are not sent again. At the end the manifest is read back by its tag and by its digest. `oras pull HOST/REPOSITORY:TAG`
downloads the files.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.records.atomic_files import sha256_of
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.referrers import EMPTY_CONTENT, EMPTY_TYPE, TITLE_ANNOTATION, descriptor
from remote.agent.shared.registry_api import MANIFEST_TYPE, Registry, digest_of
from remote.image.references import Reference

FILE_TYPE = "application/octet-stream"
FIRST_WAIT_SEC = 1.0


def build_manifest(files: Mapping[str, Path], artifact_type: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """Build the manifest of these files, which are keyed by file name. Raises OSError."""
    layers = [
        {
            "mediaType": FILE_TYPE,
            "digest": _file_digest(path),
            "size": path.stat().st_size,
            "annotations": {TITLE_ANNOTATION: name},
        }
        for name, path in sorted(files.items())
    ]
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": artifact_type,
        "config": descriptor(EMPTY_TYPE, EMPTY_CONTENT),
        "layers": layers,
        "annotations": dict(annotations),
    }


def push(
    registry: Registry,
    reference: Reference,
    files: Mapping[str, Path],
    artifact_type: str,
    annotations: Mapping[str, str],
    log: Callable[[str], None],
) -> dict[str, object]:
    """Upload what is missing. Returns digest, sizes and annotations, read back. Raises VmAgentError and OSError."""
    manifest = build_manifest(files, artifact_type, annotations)
    content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    digest = digest_of(content)
    blobs: dict[str, Path | bytes] = {_file_digest(path): path for path in files.values()}
    blobs[digest_of(EMPTY_CONTENT)] = EMPTY_CONTENT
    for name, blob in blobs.items():
        with_retries(partial(_send_blob, registry, blob, name, log), FIRST_WAIT_SEC)
    with_retries(partial(registry.send_manifest, reference.tag, content, MANIFEST_TYPE), FIRST_WAIT_SEC)
    for name in (reference.tag, digest):
        stored = with_retries(partial(registry.manifest, name), FIRST_WAIT_SEC)
        if stored is None or stored[0] != digest:
            actual = "nothing" if stored is None else stored[0]
            raise VmAgentError(
                "refused", f"{reference}: the registry has {actual}, not {digest}", remedy="another user moved the tag"
            )
    size = sum(part["size"] for part in (manifest["config"], *manifest["layers"]))
    return {"digest": digest, "size_bytes": size, "compressed_bytes": size, "labels": dict(annotations)}


def _send_blob(registry: Registry, blob: Path | bytes, digest: str, log: Callable[[str], None]) -> None:
    size = f"{(len(blob) if isinstance(blob, bytes) else blob.stat().st_size) / 1e6:,.1f} MB"
    if registry.has_blob(digest):  # also true if an earlier upload succeeded and only its reply was lost
        log(f"{digest[:19]}, {size}: already in the registry")
        return
    registry.send_blob(blob, digest)
    if not registry.has_blob(digest):
        raise VmAgentError("transient", f"{registry.host} accepted {digest} but does not have it")
    log(f"{digest[:19]}, {size}: sent")


def _file_digest(path: Path) -> str:
    return f"sha256:{sha256_of(path)}"
