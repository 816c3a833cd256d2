"""Documents and signatures that are attached to an image in its registry (OCI referrers).

A document is a manifest whose `subject` is the image (OCI 1.1). A registry that supports such manifests says so
(OCI-Subject) and lists them itself. For other registries we maintain the list as a manifest under the tag sha256-HEX:
it is read, extended, written and read back. If two users write at the same time, one of them may have to rerun the
command. Signatures are stored in cosign's layout: a manifest under the tag sha256-HEX.sig, one layer per signature.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from remote.agent.shared.errors import VmAgentError
from remote.agent.shared.registry_api import INDEX_TYPE, MANIFEST_TYPE, Registry, digest_of, json_object, json_objects

EMPTY_TYPE, EMPTY_CONTENT = "application/vnd.oci.empty.v1+json", b"{}"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
TITLE_ANNOTATION = "org.opencontainers.image.title"
PAYLOAD_TYPE = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION = "dev.cosignproject.cosign/signature"
MAX_DOCUMENTS = 50  # per image; the same limit applies to signatures
REGISTRY_LIST = "the registry's own list"


def attach(registry: Registry, subject: str, documents: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Attach documents to the image `subject` (sha256:...). Returns their digests and where they are listed.

    A document has `kind` (a media type), `title`, `text` and `notes` (annotations). Attaching an identical document
    again creates the same manifest.
    """
    image = _fetch_image_manifest(registry, subject)
    media_type = str(json.loads(image).get("mediaType") or MANIFEST_TYPE)
    image_descriptor = {"mediaType": media_type, "digest": subject, "size": len(image)}
    _send_blob(registry, EMPTY_CONTENT)
    digests, lists = [], REGISTRY_LIST
    for document in documents:
        text = document["text"].encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": document["kind"],
            "config": descriptor(EMPTY_TYPE, EMPTY_CONTENT),
            "layers": [descriptor(document["kind"], text, {TITLE_ANNOTATION: document["title"]})],
            "subject": image_descriptor,
            "annotations": dict(document["notes"]),
        }
        content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        _send_blob(registry, text)
        if not registry.send_manifest(digest_of(content), content, MANIFEST_TYPE):
            lists = f"tag {fallback_tag(subject)}"
            entry = {**descriptor(MANIFEST_TYPE, content, document["notes"]), "artifactType": document["kind"]}
            _add_to_fallback_list(registry, subject, entry)
        digests.append(digest_of(content))
    listed = {entry["digest"] for entry in _list_referrers(registry, subject)[0]}
    if missing := [digest for digest in digests if digest not in listed]:
        raise VmAgentError("transient", f"{registry.host} accepted {missing[0]} but does not list it with {subject}")
    return {"digests": digests, "lists": lists}


def sign(registry: Registry, subject: str, payload: str, signature: str) -> dict[str, Any]:
    """Add a signature to the image; other users' signatures are kept."""
    _fetch_image_manifest(registry, subject)
    text, tag = payload.encode(), f"{fallback_tag(subject)}.sig"
    existing = registry.manifest(tag)
    layers = [layer for layer in _layers(existing) if isinstance(layer.get("digest"), str)]
    layers.append(descriptor(PAYLOAD_TYPE, text, {SIGNATURE_ANNOTATION: signature}))
    rootfs = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
    config = json.dumps({"architecture": "", "os": "", "config": {}, "rootfs": rootfs}).encode()
    parts = {"config": descriptor(CONFIG_TYPE, config), "layers": layers}
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, **parts}
    content = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    for blob in (text, config):
        _send_blob(registry, blob)
    registry.send_manifest(tag, content, MANIFEST_TYPE)
    if registry.manifest_bytes(tag) != content:
        raise VmAgentError("transient", f"{registry.host}: {tag} was changed by another user at the same time")
    return {"tag": tag, "signatures": len(layers)}


def describe_image(registry: Registry, name: str) -> dict[str, Any]:
    """Read an image by its tag or digest: manifest, configuration, documents and signatures."""
    content = _fetch_image_manifest(registry, name)
    digest, manifest = digest_of(content), json.loads(content)
    listed, lists = _list_referrers(registry, digest)
    config = _fetch_text(registry, json_object(manifest.get("config")).get("digest"))
    return {
        "digest": digest,
        "manifest": manifest,
        "config": config,
        "lists": lists,
        "documents": [_fetch_document(registry, entry) for entry in listed[:MAX_DOCUMENTS]],
        "signatures": _fetch_signatures(registry, digest),
    }


def fallback_tag(subject: str) -> str:
    """Return the tag for the list of referrers if the registry has none (OCI 1.1, "Referrers Tag Schema")."""
    return subject.replace(":", "-")


def _list_referrers(registry: Registry, subject: str) -> tuple[list[Mapping[str, Any]], str]:
    descriptors, lists = registry.referrers(subject), REGISTRY_LIST
    if descriptors is None:
        descriptors, lists = _fallback_list(registry, subject), f"tag {fallback_tag(subject)}"
    return [entry for entry in descriptors if isinstance(entry.get("digest"), str)], lists


def _fallback_list(registry: Registry, subject: str) -> list[dict[str, Any]]:
    """Read the list that we maintain if the registry has none."""
    index = registry.manifest(fallback_tag(subject))
    return [] if index is None else json_objects(index[1].get("manifests"))


def _add_to_fallback_list(registry: Registry, subject: str, entry: Mapping[str, Any]) -> None:
    listed = _fallback_list(registry, subject)
    if any(item.get("digest") == entry["digest"] for item in listed):
        return
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [*listed, entry]}
    registry.send_manifest(fallback_tag(subject), json.dumps(index).encode(), INDEX_TYPE)


def _fetch_document(registry: Registry, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Fetch one listed document with the text of its first file, or None if it has no file."""
    fetched = registry.manifest(entry["digest"])
    manifest, layers = {} if fetched is None else fetched[1], _layers(fetched)
    return {
        "digest": entry["digest"],
        "kind": str(manifest.get("artifactType") or entry.get("artifactType")),
        "notes": json_object(manifest.get("annotations")),
        "text": _fetch_text(registry, layers[0].get("digest")) if layers else None,
    }


def _fetch_signatures(registry: Registry, subject: str) -> list[dict[str, Any]]:
    fetched = registry.manifest(f"{fallback_tag(subject)}.sig")
    return [
        {
            "payload": _fetch_text(registry, layer.get("digest")),
            "signature": json_object(layer.get("annotations")).get(SIGNATURE_ANNOTATION),
        }
        for layer in _layers(fetched)[:MAX_DOCUMENTS]
    ]


def _layers(fetched: tuple[str, dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [] if fetched is None else json_objects(fetched[1].get("layers"))


def _fetch_text(registry: Registry, digest: object) -> str | None:
    content = registry.blob(digest) if isinstance(digest, str) else None
    return None if content is None else content.decode(errors="replace")


def _fetch_image_manifest(registry: Registry, name: str) -> bytes:
    content = registry.manifest_bytes(name)
    if content is None:
        raise VmAgentError(
            "usage", f"{registry.host} has no {name} in {registry.path}", remedy="push it with `inv push`"
        )
    return content


def _send_blob(registry: Registry, content: bytes) -> None:
    digest = digest_of(content)
    if not registry.has_blob(digest):
        registry.send_blob(content, digest)


def descriptor(media_type: str, content: bytes, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Build the descriptor of one part of a manifest."""
    optional = {"annotations": dict(annotations)} if annotations else {}
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content), **optional}
