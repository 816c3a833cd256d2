"""Signature of an image's digest with the user's own key, compatible with `cosign sign --key` and `verify --key`.

ECDSA on P-256 over cosign's "simple signing" payload, which contains repository and digest. The private key stays on
this machine; the registry gets payload and signature. Not covered: keyless signatures, a transparency log.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from bench.records import schema
from bench.records.status import Failure
from remote.hosts.command import Secret

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
