"""Files as an OCI artifact in a registry, in the layout that ORAS reads: one layer per file, titled with the file name.

The blobs are sent first and the manifest last, so a tag never names an incomplete artifact. Blobs that the registry has
are not sent again. At the end the manifest is read back by its tag and by its digest. `oras pull HOST/REPOSITORY:TAG`
downloads the files.

Signature of an image's digest with the user's own key, compatible with `cosign sign --key` and `verify --key`.

ECDSA on P-256 over cosign's "simple signing" payload, which contains repository and digest. The private key stays on
this machine; the registry gets payload and signature. Not covered: keyless signatures, a transparency log.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.records import schema
from bench.records.atomic_files import sha256_of
from bench.records.status import Failure
from bench.records.units import format_mb
from remote.agent.shared.errors import VmAgentError, with_retries
from remote.agent.shared.referrers import EMPTY_CONTENT, EMPTY_TYPE, TITLE_ANNOTATION, descriptor
from remote.agent.shared.registry_api import MANIFEST_TYPE, Registry, digest_of
from remote.hosts.command import Secret
from remote.image.references import Reference

SIGNATURE_TYPE = "cosign container image signature"
ALGORITHM = ec.ECDSA(hashes.SHA256())


class InvalidKey(Failure, ValueError):
    """Error raised for an unusable key; the message has the cause and the command that creates a usable one."""


class NeedsPassPhrase(InvalidKey):
    """Error raised if the private key is encrypted and no pass phrase was passed."""


def load_private_key(pem: str, pass_phrase: Secret | None) -> ec.EllipticCurvePrivateKey:
    """Load an ECDSA P-256 key. Raises NeedsPassPhrase and InvalidKey."""
    if "SIGSTORE" in pem or "COSIGN" in pem:
        raise InvalidKey(
            "is encrypted in cosign's own format", remedy=f"create one that both can read: {_CREATE_KEY_COMMAND}"
        )
    password = None if pass_phrase is None else pass_phrase.reveal().encode()
    try:
        key = serialization.load_pem_private_key(pem.encode(), password)
    except TypeError as error:  # the pass phrase is missing, or not needed
        if password is None:
            raise NeedsPassPhrase("is encrypted, and there is no pass phrase for it") from error
        return load_private_key(pem, None)
    except (ValueError, UnsupportedAlgorithm) as error:
        hint = "" if password is None else ", or the pass phrase is wrong"
        raise InvalidKey(f"contains no readable private key{hint}", remedy=_CREATE_KEY_COMMAND) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidKey("is not an ECDSA P-256 key, which cosign requires", remedy=_CREATE_KEY_COMMAND)
    return key


def load_public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """Load an ECDSA P-256 public key. Raises InvalidKey."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidKey(
            "contains no P-256 public key", remedy="extract it with `openssl pkey -in KEY -pubout -out KEY.pub`"
        )
    return key


def build_payload(repository: str, digest: str) -> str:
    """Build the text to sign: this digest, for this repository."""
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": SIGNATURE_TYPE,
    }
    return json.dumps({"critical": critical, "optional": None}, separators=(",", ":"))


def sign(key: ec.EllipticCurvePrivateKey, text: str) -> str:
    return base64.b64encode(key.sign(text.encode(), ALGORITHM)).decode()


def is_signed(
    key: ec.EllipticCurvePublicKey, repository: str, digest: str, signatures: Iterable[Mapping[str, Any]]
) -> bool:
    """Return True if one of the signatures (`payload`, `signature`) is valid for this key, repository and digest.

    A payload for another repository does not count: a user who may push there could have copied it.
    """
    return any(_is_valid(key, repository, digest, signature) for signature in signatures)


def _is_valid(key: ec.EllipticCurvePublicKey, repository: str, digest: str, entry: Mapping[str, Any]) -> bool:
    try:
        text = entry["payload"]
        key.verify(base64.b64decode(entry["signature"], validate=True), text.encode(), ALGORITHM)
        critical = schema.parse_object(text)["critical"]
        named = (
            critical["identity"]["docker-reference"],
            critical["image"]["docker-manifest-digest"],
            critical["type"],
        )
    except (InvalidSignature, ValueError, binascii.Error, KeyError, TypeError, AttributeError):
        return False
    return bool(named == (repository, digest, SIGNATURE_TYPE))


_CREATE_KEY_COMMAND = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes-256-cbc -out sign.key"


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
    size = format_mb(len(blob) if isinstance(blob, bytes) else blob.stat().st_size)
    if registry.has_blob(digest):  # also true if an earlier upload succeeded and only its reply was lost
        log(f"{digest[:19]}, {size}: already in the registry")
        return
    registry.send_blob(blob, digest)
    if not registry.has_blob(digest):
        raise VmAgentError("transient", f"{registry.host} accepted {digest} but does not have it")
    log(f"{digest[:19]}, {size}: sent")


def _file_digest(path: Path) -> str:
    return f"sha256:{sha256_of(path)}"
