"""Certificates of a registry, over real TLS on this machine: which are accepted, and what to type for the others."""

import datetime
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from remote.agent.shared import registry_api
from remote.agent.shared.registry_api import Registry
from tests.support.machines.failures import raises_agent_error
from tests.support.machines.registry_proxy import RegistryProxy

HOST = "registry.example.com"


def make_certificate(folder: Path, name: str, days: int) -> tuple[Path, Path]:
    """Create a certificate that signs itself, without the extension keyUsage, valid for `days` from yesterday on."""
    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(issuer_name=subject, subject_name=subject, public_key=key.public_key())
        .serial_number(1)
        .not_valid_before(yesterday - datetime.timedelta(days=1))
        .not_valid_after(yesterday + datetime.timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "cert").write_bytes(certificate.public_bytes(pem))
    (folder / "key").write_bytes(key.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    return folder / "cert", folder / "key"


@pytest.mark.parametrize(
    ("name", "days", "is_trusted", "remedy"),
    [
        (HOST, 9, True, ""),
        (HOST, 9, False, rf"/certs.d/{HOST}:\d+/ca.crt"),
        (HOST, 0, True, "clock"),
    ],
)
def test_only_a_trusted_certificate_of_this_host_is_accepted_and_waiting_is_never_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, days: int, is_trusted: bool, remedy: str
) -> None:
    certificate, key = make_certificate(tmp_path, name, days)
    create_context, look_up = ssl.create_default_context, socket.getaddrinfo

    def create_strict_context() -> ssl.SSLContext:  # the default of Python 3.13
        context = create_context()
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    def look_up_here(_: str, *arguments: Any, **options: Any) -> Any:
        return look_up("127.0.0.1", *arguments, **options)

    monkeypatch.setattr(registry_api, "CERTIFICATES_FOLDER", tmp_path / "certs.d")
    monkeypatch.setattr(ssl, "create_default_context", create_strict_context)
    with RegistryProxy(certificate=certificate, key=key) as proxy:
        monkeypatch.setattr(socket, "getaddrinfo", look_up_here)
        host = f"{HOST}:{proxy.server_address[1]}"
        if is_trusted:
            (tmp_path / "certs.d" / host).mkdir(parents=True)
            (tmp_path / "certs.d" / host / "ca.crt").symlink_to(certificate)
        registry = Registry(host, "ns/repo", "")
        if not remedy:
            assert registry.manifest("1.0") is None
            return
        with raises_agent_error("usage", rf"^{HOST}:\d+: .*certificate.*; .*{remedy}"):
            registry.manifest("1.0")
