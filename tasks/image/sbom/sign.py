"""Signatures of a pushed image in cosign's layout, and the keys of image.sign_key and image.verify_key."""

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

from remote.hosts.base import Host
from remote.hosts.command import Secret
from remote.image.references import Reference
from remote.image.sbom import signature
from remote.image.sbom.signature import InvalidKey, NeedsPassPhrase
from tasks.clients import registry, secrets
from tasks.clients.prompt import prompt_hidden
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings


def signing_key(settings: Settings) -> EllipticCurvePrivateKey | None:
    """Load the key of image.sign_key; None if it is not set. Raises UsageError."""
    name = settings.image.sign_key
    if name is None:
        return None
    pem = secrets.read_secret(settings, "image.sign_key", name).reveal()
    with translate_errors(UsageError, InvalidKey, prefix=f"image.sign_key: {name}: "):
        try:
            return signature.load_private_key(pem, None)
        except NeedsPassPhrase:
            return signature.load_private_key(pem, _pass_phrase(settings, name))


def verifying_key(settings: Settings) -> EllipticCurvePublicKey | None:
    """Load the key of image.verify_key; None if it is not set. Raises UsageError."""
    name = settings.image.verify_key
    if name is None:
        return None
    pem = secrets.read_secret_text(settings, "image.verify_key", name)
    with translate_errors(UsageError, InvalidKey, prefix=f"image.verify_key: {settings.resolve_path(name)}: "):
        return signature.load_public_key(pem)


def sign(
    settings: Settings,
    host: Host,
    reference: Reference,
    digest: str,
    login: tuple[str, Secret],
    key: EllipticCurvePrivateKey,
) -> None:
    """Sign the pushed digest unless this key has signed it already. Raises HostError."""
    image = registry.query(settings, host, reference, login, {"do": "look", "name": digest})
    if signature.is_signed(key.public_key(), reference.repository, digest, image["signatures"]):
        print("already signed with image.sign_key")
        return
    text = signature.build_payload(reference.repository, digest)
    request = {"do": "sign", "subject": digest, "payload": text, "signature": signature.sign(key, text)}
    tag = registry.query(settings, host, reference, login, request)["tag"]
    print(f"signed with image.sign_key: {reference.repository}:{tag}")


def _pass_phrase(settings: Settings, key: str) -> Secret:
    name = settings.image.sign_password_file
    if name is not None:
        return secrets.read_secret(settings, "image.sign_password_file", name)
    text = prompt_hidden(f"pass phrase of {key}: ")
    if not text:
        raise UsageError(
            f"image.sign_key: {key}: needs a pass phrase, and there is no terminal to enter it",
            remedy="set image.sign_password_file to a file that only you can read",
        )
    return Secret(text)
