"""A signature of an image's digest by the user's own key, as `cosign sign --key` makes and `cosign verify --key` reads.

ECDSA on P-256 over cosign's "simple signing" payload, which names repository and digest. The private key stays on this
machine; the registry gets payload and signature. Not covered: keyless signatures, a transparency log.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.hosts.command import Secret

KIND = "cosign container image signature"
HOW = ec.ECDSA(hashes.SHA256())


class InvalidKey(ValueError):
    """A key that cannot be used; the message says why, and how a right one is made."""


class NeedsPassPhrase(InvalidKey):
    """The private key is encrypted, and no pass phrase was given."""


def private_key(pem: str, pass_phrase: Secret | None) -> ec.EllipticCurvePrivateKey:
    """Raises NeedsPassPhrase and KeyWrong."""
    if "SIGSTORE" in pem or "COSIGN" in pem:
        raise InvalidKey(f"is encrypted in cosign's own way; make one that both read: {_MAKE}")
    words = None if pass_phrase is None else pass_phrase.reveal().encode()
    try:
        key = serialization.load_pem_private_key(pem.encode(), words)
    except TypeError:  # a pass phrase that is missing, or one too many
        if words is None:
            raise NeedsPassPhrase("is encrypted, and no pass phrase was given") from None
        return private_key(pem, None)
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidKey(
            f"holds no private key that can be read{'' if words is None else ', or the pass phrase is wrong'}; {_MAKE}"
        ) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidKey(f"is no ECDSA key on P-256, which cosign's layout has; {_MAKE}")
    return key


def public_key(pem: str) -> ec.EllipticCurvePublicKey:
    """Raises KeyWrong."""
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidKey("holds no public key on P-256; `openssl pkey -in KEY -pubout -out KEY.pub` makes it of yours")
    return key


def payload(repository: str, digest: str) -> str:
    """What is signed: this digest, for this repository."""
    critical = {
        "identity": {"docker-reference": repository},
        "image": {"docker-manifest-digest": digest},
        "type": KIND,
    }
    return json.dumps({"critical": critical, "optional": None}, separators=(",", ":"))


def sign(key: ec.EllipticCurvePrivateKey, text: str) -> str:
    return base64.b64encode(key.sign(text.encode(), HOW)).decode()


def is_signed(
    key: ec.EllipticCurvePublicKey, repository: str, digest: str, signatures: Iterable[Mapping[str, Any]]
) -> bool:
    """Whether one of the signatures (`payload`, `signature`) is this key's, of this digest for this repository.

    A payload for another repository does not count: one who may push elsewhere could have brought it here.
    """
    return any(_is_by(key, repository, digest, signature) for signature in signatures)


def _is_by(key: ec.EllipticCurvePublicKey, repository: str, digest: str, one: Mapping[str, Any]) -> bool:
    try:
        text = one["payload"]
        key.verify(base64.b64decode(one["signature"], validate=True), text.encode(), HOW)
        said = json.loads(text)["critical"]
        named = (said["identity"]["docker-reference"], said["image"]["docker-manifest-digest"], said["type"])
    except (InvalidSignature, ValueError, binascii.Error, KeyError, TypeError, AttributeError):
        return False
    return bool(named == (repository, digest, KIND))


_MAKE = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -aes-256-cbc -out sign.key"
