"""Private keys, and kubectl's token for an OKE cluster. Does not import the SDK, which takes a second.

OKE's token is the base64 of a request URL, with signature and date as parameters. The cluster sends that request, and
the service identifies the signer. The service accepts the date for five minutes; until then the token grants the
signer's access.
"""

import base64
import datetime
import email.utils
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from remote.hosts.command import Secret
from tasks.clients.prompt import prompt_hidden
from tasks.errors import UsageError
from tasks.oci.access.profile import OciProfile
from tasks.settings.sources import display_path

TOKEN_LIFETIME_MINUTES = 4  # a minute less than the service accepts, so that the token is still valid on arrival
_HEADERS = "date (request-target) host"
PassPhrasePrompt = Callable[[OciProfile], Secret | None]


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """A private key and the key id by which the service identifies it."""

    key_id: str = field(repr=False)  # may contain a session's token
    key: RSAPrivateKey = field(repr=False)

    def sign(self, text: str) -> str:
        return base64.b64encode(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()


def prompt_pass_phrase(profile: OciProfile) -> Secret | None:
    """Prompt for the key's pass phrase; None without a terminal."""
    text = prompt_hidden(f"pass phrase of {display_path(profile.key_file)}: ")
    return Secret(text) if text else None


def load_signing_key(profile: OciProfile, ask_pass_phrase: PassPhrasePrompt = prompt_pass_phrase) -> SigningKey:
    """Load the profile's key; `ask_pass_phrase` is called if the profile lacks its pass phrase. Raises UsageError."""
    key = _load_key(profile, profile.pass_phrase, ask_pass_phrase)
    if profile.token is not None:
        return SigningKey(key_id=f"ST${profile.token.reveal()}", key=key)
    key_fingerprint = fingerprint(key)
    if key_fingerprint != profile.fingerprint:
        raise UsageError(
            f"{profile}: fingerprint is {profile.fingerprint}, but {display_path(profile.key_file)} has "
            f"{key_fingerprint}: it is another key, or another one was uploaded"
        )
    return SigningKey(key_id=f"{profile.tenancy}/{profile.user}/{key_fingerprint}", key=key)


def _load_key(profile: OciProfile, phrase: Secret | None, ask_pass_phrase: PassPhrasePrompt) -> RSAPrivateKey:
    name = display_path(profile.key_file)
    try:
        # Pass bytes: the error for a non-ASCII text would contain the pass phrase.
        key = serialization.load_pem_private_key(profile.key, None if phrase is None else phrase.reveal().encode())
    except TypeError as error:
        if phrase is not None:  # the key has no pass phrase; this one was inherited from [DEFAULT]
            return _load_key(profile, None, ask_pass_phrase)
        typed = ask_pass_phrase(profile)
        if typed is None:
            raise UsageError(
                f"{name}: the key has a pass phrase", remedy=f"put pass_phrase=... into {profile}, chmod 600"
            ) from error
        return _load_key(profile, typed, lambda _: None)
    except ValueError as error:
        problem = "not a private key in PEM" if phrase is None else "not a private key in PEM, or wrong pass phrase"
        raise UsageError(f"{profile}: key_file: {name}: {problem}") from error
    if not isinstance(key, RSAPrivateKey):
        raise UsageError(f"{profile}: key_file: {name}: expected an RSA key")
    return key


def fingerprint(key: RSAPrivateKey) -> str:
    """Compute the fingerprint as Oracle's console shows it: the MD5 of the public key."""
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return ":".join(f"{byte:02x}" for byte in hashlib.md5(public, usedforsecurity=False).digest())


def cluster_token(host: str, cluster_id: str, signing_key: SigningKey, now: datetime.datetime) -> Secret:
    """Create a cluster's token; `host` is the region's, e.g. containerengine.eu-frankfurt-1.oraclecloud.com."""
    date = email.utils.format_datetime(now, usegmt=True)
    path = f"/cluster_request/{quote(cluster_id)}"
    signed = signing_key.sign(f"date: {date}\n(request-target): get {path}\nhost: {host}")
    parameters = {"version": "1", "keyId": signing_key.key_id, "algorithm": "rsa-sha256", "headers": _HEADERS}
    authorization = ",".join(f'{name}="{value}"' for name, value in {**parameters, "signature": signed}.items())
    url = f"https://{host}{path}?{urlencode({'authorization': f'Signature {authorization}', 'date': date})}"
    return Secret(base64.urlsafe_b64encode(url.encode()).decode())
