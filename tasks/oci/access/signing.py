"""Private keys, and the token by which kubectl enters an OKE cluster. Without the SDK, which takes a second to import.

OKE's token is no secret of its own: it is the URL of a request that asks who we are, with its signature and date as
parameters, in base64. The cluster makes that request; the service then says who signed it. It is good for as long as
the service takes the date for a present one, five minutes; whoever has it is us for that long.
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
from tasks.clients.prompt import typed
from tasks.errors import UsageError
from tasks.oci.access.profile import OciProfile
from tasks.settings.sources import shown

TOKEN_MINUTES = 4  # a minute less than the service accepts: what is shown as valid must still be so on arrival
_HEADERS = "date (request-target) host"


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Who signs: the name of a key, as the service knows it, and the key."""

    key_id: str = field(repr=False)  # of a session it holds the session's token
    key: RSAPrivateKey = field(repr=False)

    def sign(self, text: str) -> str:
        return base64.b64encode(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()


def typed_pass_phrase(profile: OciProfile) -> Secret | None:
    """Asked for on the terminal; None where nobody can answer."""
    text = typed(f"pass phrase of {shown(profile.key_file)}: ")
    return Secret(text) if text else None


def signature_of(profile: OciProfile, ask: Callable[[OciProfile], Secret | None] = typed_pass_phrase) -> Signature:
    """How the profile signs; `ask` gives a key's pass phrase that the profile does not have. Raises UsageError."""
    key = _load(profile, profile.pass_phrase, ask)
    if profile.token is not None:
        return Signature(key_id=f"ST${profile.token.reveal()}", key=key)
    found = fingerprint(key)
    if found != profile.fingerprint:
        raise UsageError(
            f"{profile}: fingerprint is {profile.fingerprint}, but {shown(profile.key_file)} has {found}: "
            "it is another key, or another one was uploaded"
        )
    return Signature(key_id=f"{profile.tenancy}/{profile.user}/{found}", key=key)


def _load(profile: OciProfile, phrase: Secret | None, ask: Callable[[OciProfile], Secret | None]) -> RSAPrivateKey:
    name = shown(profile.key_file)
    try:
        # Bytes of our own: as text it would stand in the error that a letter outside ASCII ends in.
        key = serialization.load_pem_private_key(profile.key, None if phrase is None else phrase.reveal().encode())
    except TypeError:
        if phrase is not None:  # inherited from [DEFAULT] by a profile whose key has none
            return _load(profile, None, ask)
        given = ask(profile)
        if given is None:
            raise UsageError(
                f"{name}: the key has a pass phrase; put pass_phrase=... into {profile}, chmod 600"
            ) from None
        return _load(profile, given, lambda _: None)
    except ValueError:
        why = "not a private key in PEM" if phrase is None else "not a private key in PEM, or another pass phrase"
        raise UsageError(f"{profile}: key_file: {name}: {why}") from None
    if not isinstance(key, RSAPrivateKey):
        raise UsageError(f"{profile}: key_file: {name}: expected an RSA key")
    return key


def fingerprint(key: RSAPrivateKey) -> str:
    """As Oracle's console shows it: the MD5 of the public key."""
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return ":".join(f"{byte:02x}" for byte in hashlib.md5(public, usedforsecurity=False).digest())


def cluster_token(host: str, cluster_id: str, signature: Signature, now: datetime.datetime) -> Secret:
    """The token for a cluster; `host` is the region's, e.g. containerengine.eu-frankfurt-1.oraclecloud.com."""
    date = email.utils.format_datetime(now, usegmt=True)
    path = f"/cluster_request/{quote(cluster_id)}"
    signed = signature.sign(f"date: {date}\n(request-target): get {path}\nhost: {host}")
    parameters = {"version": "1", "keyId": signature.key_id, "algorithm": "rsa-sha256", "headers": _HEADERS}
    words = ",".join(f'{name}="{value}"' for name, value in {**parameters, "signature": signed}.items())
    url = f"https://{host}{path}?{urlencode({'authorization': f'Signature {words}', 'date': date})}"
    return Secret(base64.urlsafe_b64encode(url.encode()).decode())
