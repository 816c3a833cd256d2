"""An instance of the fake tenancy: its metadata service, and the service that gives it tokens for its certificate.

As there: metadata only for `Authorization: Bearer Oracle`; a certificate of the instance that names its tenancy, signed
by an intermediate one; a request for a token signed with that certificate's key over its headers and body, with the
chain and the public key of a session; the token's own claims; requests after that signed with the session's key, under
the token's name, until it expires. Not covered: TLS, the service's own root certificate, who is in a dynamic group.
"""

import base64
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.support.kubernetes.pki import builder

Verified = Callable[[rsa.RSAPublicKey, str, str, Callable[[str], str]], str | None]
_PEM = serialization.Encoding.PEM


class FakeInstance:
    """What answers below /opc/v2 and at /v1/x509. `lifetime_sec` is that of the next token; `sessions` are the keys."""

    def __init__(self, tenancy: str, verified: Verified) -> None:
        self.tenancy, self.verified = tenancy, verified
        self.region, self.lifetime_sec = "fra", 1200.0
        self.sessions: dict[str, tuple[rsa.RSAPublicKey, float]] = {}
        self._authority = ec.generate_private_key(ec.SECP256R1())  # Oracle's are RSA; which is nothing to the SDK
        self._intermediate = certificate("PKISVC Intermediate", self._authority.public_key(), self._authority)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.rotate()

    def rotate(self, tenancy: str | None = None) -> None:
        """Another certificate, as the service gives every few hours."""
        units = ("opc-certtype:instance", "opc-instance:ocid1.instance.oc1..i", f"opc-tenant:{tenancy or self.tenancy}")
        self.leaf = certificate("ocid1.instance.oc1..i", self.key.public_key(), self._authority, *units)

    @property
    def _metadata(self) -> dict[str, bytes]:
        return {
            "/opc/v2/instance/region": self.region.encode(),
            "/opc/v2/identity/cert.pem": self.leaf.public_bytes(_PEM),
            "/opc/v2/identity/intermediate.pem": self._intermediate.public_bytes(_PEM),
            "/opc/v2/identity/key.pem": self.key.private_bytes(
                _PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
            ),
        }

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body of an answer; `headers` in small letters, with (request-target)."""
        if path == "/v1/x509":
            return self._token(headers, json.loads(body), body)
        if headers.get("authorization") != "Bearer Oracle":
            return 401, b"no bearer"
        found = self._metadata.get(path)
        return (404, b"not found") if found is None else (200, found)

    def _token(self, headers: Mapping[str, str], asked: Mapping[str, Any], body: bytes) -> tuple[int, bytes]:
        why = self._refused(headers, asked, body)
        if why is not None:
            return 401, json.dumps({"code": "NotAuthenticated", "message": why}).encode()
        session = serialization.load_der_public_key(base64.b64decode(asked["publicKey"]))
        assert isinstance(session, rsa.RSAPublicKey)
        now = time.time()
        claims = {"iat": int(now), "exp": int(now + self.lifetime_sec), "opc-tenant": self.tenancy, "n": id(session)}
        parts = ({"alg": "RS256", "typ": "JWT"}, claims)
        token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        self.sessions[f"ST${token}.c2lnbmVk"] = session, now + self.lifetime_sec
        return 200, json.dumps({"token": f"{token}.c2lnbmVk"}).encode()

    def _refused(self, headers: Mapping[str, str], asked: Mapping[str, Any], body: bytes) -> str | None:
        held = x509.load_der_x509_certificate(base64.b64decode(asked["certificate"]))
        (above,) = (x509.load_der_x509_certificate(base64.b64decode(one)) for one in asked["intermediateCertificates"])
        try:
            held.verify_directly_issued_by(above)
        except (InvalidSignature, ValueError, TypeError):
            return "the certificate is not of the intermediate one"
        if held.fingerprint(hashes.SHA256()) != self.leaf.fingerprint(hashes.SHA256()):
            return "the certificate is an old one"
        needed = {"date", "(request-target)", "content-length", "content-type", "x-content-sha256"}
        signed = re.search(r'headers="([^"]*)"', headers["authorization"])
        if signed is None or set(signed[1].split()) != needed:
            return f"expected a signature over {' '.join(sorted(needed))}"
        if base64.b64encode(hashlib.sha256(body).digest()).decode() != headers["x-content-sha256"]:
            return "the body is not the one that was signed"
        name = ":".join(f"{byte:02X}" for byte in held.fingerprint(hashes.SHA1()))  # noqa: S303 - a name of the key, as there
        key = held.public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        return self.verified(key, f"{self.tenancy}/fed-x509/{name}", headers["authorization"], headers.__getitem__)


def certificate(name: str, key: Any, signer: ec.EllipticCurvePrivateKey, *units: str) -> x509.Certificate:
    """Of this key, signed by `signer`, whose own name is always that of the intermediate one."""
    return builder(name, "PKISVC Intermediate", key, *units).sign(signer, hashes.SHA256())
