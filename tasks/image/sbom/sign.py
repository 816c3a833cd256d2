"""Signs a pushed image by the key of image.sign_key, in cosign's layout; reads the keys of the settings."""

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

from remote.hosts.command import Secret
from remote.hosts.host import Host
from remote.image.references import Reference
from remote.image.sbom import signature
from remote.image.sbom.signature import InvalidKey, NeedsPassPhrase
from tasks.clients import registry, secrets
from tasks.clients.prompt import typed
from tasks.errors import UsageError, translate_errors
from tasks.settings.load import Settings


def signing_key(settings: Settings) -> EllipticCurvePrivateKey | None:
    """The key of image.sign_key, None where it is not set. Raises UsageError before anything is pushed."""
    name = settings.image.sign_key
    if name is None:
        return None
    pem = secrets.read(settings, "image.sign_key", name).reveal()
    with translate_errors(UsageError, InvalidKey, before=f"image.sign_key: {name}: "):
        try:
            return signature.private_key(pem, None)
        except NeedsPassPhrase:
            return signature.private_key(pem, _pass_phrase(settings, name))


def verifying_key(settings: Settings) -> EllipticCurvePublicKey | None:
    """The key of image.verify_key, None where it is not set. Raises UsageError."""
    name = settings.image.verify_key
    if name is None:
        return None
    pem = secrets.text_of(settings, "image.verify_key", name)
    with translate_errors(UsageError, InvalidKey, before=f"image.verify_key: {settings.file(name)}: "):
        return signature.public_key(pem)


def sign(
    settings: Settings,
    host: Host,
    where: Reference,
    digest: str,
    login: tuple[str, Secret],
    key: EllipticCurvePrivateKey,
) -> None:
    """Sign the pushed digest, unless it has a signature by this key. Raises HostError."""
    found = registry.ask(settings, host, where, login, {"do": "look", "name": digest})
    if signature.is_signed(key.public_key(), where.repository, digest, found["signatures"]):
        print("signed by image.sign_key already")
        return
    text = signature.payload(where.repository, digest)
    what = {"do": "sign", "subject": digest, "payload": text, "signature": signature.sign(key, text)}
    tag = registry.ask(settings, host, where, login, what)["tag"]
    print(f"signed by image.sign_key: {where.repository}:{tag}")


def _pass_phrase(settings: Settings, key: str) -> Secret:
    name = settings.image.sign_password_file
    if name is not None:
        return secrets.read(settings, "image.sign_password_file", name)
    text = typed(f"pass phrase of {key}: ")
    if not text:
        raise UsageError(
            f"image.sign_key: {key}: has a pass phrase, and there is no terminal to ask for it; set "
            "image.sign_password_file to a file that only you can read"
        )
    return Secret(text)
