"""On the build VM: what stands beside an image in its registry: documents about it, and signatures of its digest.

A document is a manifest whose `subject` is the image (OCI 1.1). A registry that knows such manifests says so
(OCI-Subject) and lists them itself. For one that does not, the list is a manifest under the tag sha256-HEX, which we
keep: it is read, added to, written and read again, so that of two writers at one moment the later one may have to type
its command again. Signatures are where cosign looks: a manifest under the tag sha256-HEX.sig, a layer for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remote.image.vm_agent.job import Failed
from remote.image.vm_agent.registry.api import INDEX, MANIFEST, Registry, digest_of, entries, fields

EMPTY, EMPTY_CONTENT = "application/vnd.oci.empty.v1+json", b"{}"
CONFIG = "application/vnd.oci.image.config.v1+json"
TITLE = "org.opencontainers.image.title"
PAYLOAD = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE = "dev.cosignproject.cosign/signature"
MOST_PARTS = 50  # documents, or signatures, that are read of one image
BY_REGISTRY = "the registry's own list"


def attach(registry: Registry, subject: str, documents: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Put documents beside the image `subject` (sha256:...); their digests, and who lists them.

    A document is `kind` (a media type), `title`, `text` and `notes`. The same document again is the same manifest.
    """
    image = _image(registry, subject)
    kind = str(json.loads(image).get("mediaType") or MANIFEST)
    about = {"mediaType": kind, "digest": subject, "size": len(image)}
    _send(registry, EMPTY_CONTENT)
    digests, lists = [], BY_REGISTRY
    for document in documents:
        text = document["text"].encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": document["kind"],
            "config": descriptor(EMPTY, EMPTY_CONTENT),
            "layers": [descriptor(document["kind"], text, {TITLE: document["title"]})],
            "subject": about,
            "annotations": dict(document["notes"]),
        }
        content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        _send(registry, text)
        if not registry.send_manifest(digest_of(content), content, MANIFEST):
            lists = f"tag {tag_of(subject)}"
            entry = {**descriptor(MANIFEST, content, document["notes"]), "artifactType": document["kind"]}
            _enlist(registry, subject, entry)
        digests.append(digest_of(content))
    listed = {one["digest"] for one in _listed(registry, subject)[0]}
    if missing := [digest for digest in digests if digest not in listed]:
        raise Failed("transient", f"{registry.host} took {missing[0]} and does not list it with {subject}")
    return {"digests": digests, "lists": lists}


def sign(registry: Registry, subject: str, payload: str, signature: str) -> dict[str, Any]:
    """Add a signature to those of the image; what others signed stays."""
    _image(registry, subject)
    text, tag = payload.encode(), f"{tag_of(subject)}.sig"
    there = registry.manifest(tag)
    layers = [layer for layer in _layers(there) if isinstance(layer.get("digest"), str)]
    layers.append(descriptor(PAYLOAD, text, {SIGNATURE: signature}))
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    written = json.dumps({"architecture": "", "os": "", "config": {}, "rootfs": rootfs}).encode()
    parts = {"config": descriptor(CONFIG, written), "layers": layers}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, **parts}
    content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    for part in (text, written):
        _send(registry, part)
    registry.send_manifest(tag, content, MANIFEST)
    if registry.manifest_bytes(tag) != content:
        raise Failed("transient", f"{registry.host}: {tag} is not what was written there; somebody signed as well")
    return {"tag": tag, "signatures": len(layers)}


def look(registry: Registry, name: str) -> dict[str, Any]:
    """An image by its tag or digest: its manifest, its configuration, and all that stands beside it."""
    content = _image(registry, name)
    digest, manifest = digest_of(content), json.loads(content)
    listed, lists = _listed(registry, digest)
    config = _blob(registry, fields(manifest.get("config")).get("digest"))
    return {
        "digest": digest,
        "manifest": manifest,
        "config": config,
        "lists": lists,
        "documents": [_document(registry, one) for one in listed[:MOST_PARTS]],
        "signatures": _signatures(registry, digest),
    }


def tag_of(subject: str) -> str:
    """The tag that a digest has where a registry keeps no list (OCI 1.1, "Referrers Tag Schema")."""
    return subject.replace(":", "-")


def _listed(registry: Registry, subject: str) -> tuple[list[Mapping[str, Any]], str]:
    found, lists = registry.referrers(subject), BY_REGISTRY
    if found is None:
        found, lists = _kept(registry, subject), f"tag {tag_of(subject)}"
    return [one for one in found if isinstance(one.get("digest"), str)], lists


def _kept(registry: Registry, subject: str) -> list[dict[str, Any]]:
    """The list that we keep where the registry has none."""
    there = registry.manifest(tag_of(subject))
    return [] if there is None else entries(there[1].get("manifests"))


def _enlist(registry: Registry, subject: str, entry: Mapping[str, Any]) -> None:
    listed = _kept(registry, subject)
    if any(one.get("digest") == entry["digest"] for one in listed):
        return
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*listed, entry]}
    registry.send_manifest(tag_of(subject), json.dumps(index).encode(), INDEX)


def _document(registry: Registry, entry: Mapping[str, Any]) -> dict[str, Any]:
    """One entry of the list with its first file's text, None where there is none or it is no text."""
    there = registry.manifest(entry["digest"])
    manifest, layers = {} if there is None else there[1], _layers(there)
    return {
        "digest": entry["digest"],
        "kind": str(manifest.get("artifactType") or entry.get("artifactType")),
        "notes": fields(manifest.get("annotations")),
        "text": _blob(registry, layers[0].get("digest")) if layers else None,
    }


def _signatures(registry: Registry, subject: str) -> list[dict[str, Any]]:
    there = registry.manifest(f"{tag_of(subject)}.sig")
    return [
        {"payload": _blob(registry, layer.get("digest")), "signature": fields(layer.get("annotations")).get(SIGNATURE)}
        for layer in _layers(there)[:MOST_PARTS]
    ]


def _layers(there: tuple[str, dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [] if there is None else entries(there[1].get("layers"))


def _blob(registry: Registry, digest: object) -> str | None:
    content = registry.blob(digest) if isinstance(digest, str) else None
    return None if content is None else content.decode(errors="replace")


def _image(registry: Registry, name: str) -> bytes:
    content = registry.manifest_bytes(name)
    if content is None:
        raise Failed("usage", f"{registry.host} has no {name} in {registry.path}; `inv push` puts it there")
    return content


def _send(registry: Registry, content: bytes) -> None:
    digest = digest_of(content)
    if not registry.has_blob(digest):
        registry.send_blob(content, digest)


def descriptor(kind: str, content: bytes, notes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a manifest says of one part."""
    more = {"annotations": dict(notes)} if notes else {}
    return {"mediaType": kind, "digest": digest_of(content), "size": len(content), **more}
