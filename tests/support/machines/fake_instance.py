"""Fake instance of the fake tenancy: its metadata service, and the token service for its certificate.

Modelled as in Oracle Cloud: metadata requires `Authorization: Bearer Oracle`; the instance certificate names the
tenancy and is signed by an intermediate certificate; a token request is signed with the certificate's key over headers
and body, and contains the chain and a session's public key; later requests are signed with the session's key, under the
token's name, until it expires. Not covered: TLS, the service's root certificate, dynamic groups.
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

SignatureCheck = Callable[[rsa.RSAPublicKey, str, str, Callable[[str], str]], str | None]
_PEM = serialization.Encoding.PEM


class FakeInstance:
    """Handler of /opc/v2 and /v1/x509. `lifetime_sec` applies to the next token; `sessions` maps key ids to keys."""

    def __init__(self, tenancy: str, signature_error: SignatureCheck) -> None:
        self.tenancy, self.signature_error = tenancy, signature_error
        self.region, self.lifetime_sec = "fra", 1200.0
        self.sessions: dict[str, tuple[rsa.RSAPublicKey, float]] = {}
        self._authority = ec.generate_private_key(ec.SECP256R1())  # Oracle uses RSA; the SDK accepts both
        self._intermediate = make_certificate("PKISVC Intermediate", self._authority.public_key(), self._authority)
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.rotate()

    def rotate(self, tenancy: str | None = None) -> None:
        """Issue a new certificate, as the service does every few hours."""
        units = ("opc-certtype:instance", "opc-instance:ocid1.instance.oc1..i", f"opc-tenant:{tenancy or self.tenancy}")
        self.leaf = make_certificate("ocid1.instance.oc1..i", self.key.public_key(), self._authority, *units)

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

    def respond(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Return status and body of the response; `headers` are in lower case, with (request-target)."""
        if path == "/v1/x509":
            return self._issue_token(headers, json.loads(body), body)
        if headers.get("authorization") != "Bearer Oracle":
            return 401, b"no bearer"
        content = self._metadata.get(path)
        return (404, b"not found") if content is None else (200, content)

    def _issue_token(self, headers: Mapping[str, str], request: Mapping[str, Any], body: bytes) -> tuple[int, bytes]:
        reason = self._authentication_error(headers, request, body)
        if reason is not None:
            return 401, json.dumps({"code": "NotAuthenticated", "message": reason}).encode()
        session = serialization.load_der_public_key(base64.b64decode(request["publicKey"]))
        assert isinstance(session, rsa.RSAPublicKey)
        now = time.time()
        claims = {"iat": int(now), "exp": int(now + self.lifetime_sec), "opc-tenant": self.tenancy, "n": id(session)}
        parts = ({"alg": "RS256", "typ": "JWT"}, claims)
        token = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        self.sessions[f"ST${token}.c2lnbmVk"] = session, now + self.lifetime_sec
        return 200, json.dumps({"token": f"{token}.c2lnbmVk"}).encode()

    def _authentication_error(self, headers: Mapping[str, str], request: Mapping[str, Any], body: bytes) -> str | None:
        leaf = x509.load_der_x509_certificate(base64.b64decode(request["certificate"]))
        (issuer,) = (
            x509.load_der_x509_certificate(base64.b64decode(encoded)) for encoded in request["intermediateCertificates"]
        )
        try:
            leaf.verify_directly_issued_by(issuer)
        except (InvalidSignature, ValueError, TypeError):
            return "the certificate is not signed by the intermediate one"
        if leaf.fingerprint(hashes.SHA256()) != self.leaf.fingerprint(hashes.SHA256()):
            return "the certificate is outdated"
        needed = {"date", "(request-target)", "content-length", "content-type", "x-content-sha256"}
        signed = re.search(r'headers="([^"]*)"', headers["authorization"])
        if signed is None or set(signed[1].split()) != needed:
            return f"expected a signature over {' '.join(sorted(needed))}"
        if base64.b64encode(hashlib.sha256(body).digest()).decode() != headers["x-content-sha256"]:
            return "the body differs from the signed one"
        name = ":".join(f"{byte:02X}" for byte in leaf.fingerprint(hashes.SHA1()))  # noqa: S303 - a key name, as in Oracle Cloud
        key = leaf.public_key()
        assert isinstance(key, rsa.RSAPublicKey)
        return self.signature_error(
            key, f"{self.tenancy}/fed-x509/{name}", headers["authorization"], headers.__getitem__
        )


def make_certificate(name: str, key: Any, signer: ec.EllipticCurvePrivateKey, *units: str) -> x509.Certificate:
    """Create a certificate for `key`, signed by `signer` with the intermediate certificate as issuer."""
    return builder(name, "PKISVC Intermediate", key, *units).sign(signer, hashes.SHA256())
