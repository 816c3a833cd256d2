"""Credentials of Oracle Cloud: profiles of the OCI CLI's configuration file, private keys, a cluster's token.

Validated before the first request, and without the SDK, which takes 0.2 s to import: kubectl calls for each token.

    [DEFAULT]
    user=ocid1.user.oc1..x            tenancy=ocid1.tenancy.oc1..x       region=eu-frankfurt-1
    fingerprint=12:34:...             key_file=~/.oci/key.pem            pass_phrase=...       (if the key has one)
    security_token_file=...           (after `oci session authenticate`: replaces user and fingerprint)

Every profile inherits the values of [DEFAULT], as in the CLI. Not covered: resource principals, delegation tokens.
"""

import base64
import configparser
import datetime
import email.utils
import hashlib
import json
import os
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from bench.records.atomic_files import read_regular
from remote.hosts.command import Secret
from remote.hosts.local import expand_user
from tasks.clients.prompt import prompt_hidden
from tasks.errors import UsageError, file_errors
from tasks.settings.sources import display_path

TOKEN_LIFETIME_MINUTES = 4  # a minute less than the service accepts, so that the token is still valid on arrival
_MAX_BYTES = 1 << 20
_OCID = re.compile(r"ocid1\.([a-z0-9]+)\.[a-z0-9-]+\.[a-z0-9-]*\.[A-Za-z0-9._-]+")
_FINGERPRINT = re.compile(r"([0-9a-f]{2}:){15}[0-9a-f]{2}")
_REGION = re.compile(r"[a-z]{2,5}(-[a-z]+)+-[0-9]{1,2}|[a-z]{3}")
_HEADERS = "date (request-target) host"


@dataclass(frozen=True, kw_only=True)
class OciProfile:
    """Credentials of one profile: a user's API key, or a session token with its key."""

    file: Path
    name: str
    tenancy: str
    region: str
    key: bytes = field(repr=False)
    key_file: Path
    user: str | None = None
    fingerprint: str | None = None
    pass_phrase: Secret | None = None
    token: Secret | None = None

    def __str__(self) -> str:
        return f"profile {self.name} of {display_path(self.file)}"


def ocid_type(text: str) -> str | None:
    """Return the resource type, `cluster` for ocid1.cluster.oc1.region.x; None for an invalid OCID."""
    match = _OCID.fullmatch(text)
    return match[1] if match else None


def check_ocid(setting: str, text: str, kind: str) -> None:
    """Check that `text` is the OCID of a `kind`. Raises UsageError."""
    kind_found = ocid_type(text)
    if kind_found != kind:
        actual = f"that is the OCID of a {kind_found}" if kind_found else "not an OCID"
        raise UsageError(f"{setting}: expected an OCID like ocid1.{kind}.oc1..., found {text[:80]!r}: {actual}")


def check_region(setting: str, text: str) -> None:
    """Check the region's format; `clients.check_region_exists` checks that it exists. Raises UsageError."""
    if not _REGION.fullmatch(text):
        raise UsageError(f"{setting}: expected a region like eu-frankfurt-1, found {text[:80]!r}")


def read_profile(file: Path, name: str, *, region: str | None, now: float) -> OciProfile:
    """Read the profile with its key and token. `region` overrides the profile's; `now` is Unix time.

    Raises UsageError for a missing or invalid value, a file that other users can read, or an expired session.
    """
    values = _read_section(file, name)
    section = f"{display_path(file)}: [{name}]"

    def require(key: str) -> str:
        value = values.get(key, "").strip()
        if not value:
            raise UsageError(
                f"{section}: {key}: missing", remedy="`oci setup config` writes it; or set tenancy.profile"
            )
        return value

    tenancy = require("tenancy")
    check_ocid(f"{section}: tenancy", tenancy, "tenancy")
    chosen_region = region or require("region")
    check_region("tenancy.region" if region else f"{section}: region", chosen_region)
    key_file = _resolve_path(file, require("key_file"))
    user_values: dict[str, str] = {}
    token = None
    if values.get("security_token_file", "").strip():
        token = _read_session_token(
            _resolve_path(file, values["security_token_file"].strip()), name, chosen_region, now
        )
    else:
        user_values = {"user": require("user"), "fingerprint": require("fingerprint").lower()}
        check_ocid(f"{section}: user", user_values["user"], "user")
        if not _FINGERPRINT.fullmatch(user_values["fingerprint"]):
            raise UsageError(f"{section}: fingerprint: expected 16 pairs of hexadecimal digits with ':' between them")
    phrase = values.get("pass_phrase", "")
    if phrase:
        check_private(file, "it contains a pass phrase")
    check_private(key_file, "it is a private key")
    return OciProfile(
        file=file,
        name=name,
        tenancy=tenancy,
        region=chosen_region,
        key=_read_file(key_file, f"{section}: key_file"),
        key_file=key_file,
        pass_phrase=Secret(phrase) if phrase else None,
        token=token,
        **user_values,
    )


def check_private(path: Path, reason: str) -> None:
    """Check that other users can neither read nor write the file. Raises UsageError."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # reading it reports the error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        name = display_path(path)
        raise UsageError(
            f"{name}: other users can access it, and {reason}", remedy=f"type: chmod 600 {shlex.quote(str(path))}"
        )


def _read_section(file: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        text = read_regular(file, max_bytes=_MAX_BYTES).decode("utf-8")
        parser.read_string(text)
    except FileNotFoundError as error:
        raise UsageError(
            f"{display_path(file)}: does not exist",
            remedy="create it with `oci setup config` or `oci session authenticate`, "
            "or set tenancy.config_file, or tenancy.auth: instance_principal",
        ) from error
    except OSError as error:
        raise UsageError(
            f"{display_path(file)}: cannot be read: {error.strerror}", remedy="set tenancy.config_file"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{display_path(file)}: expected UTF-8 text") from error
    except configparser.Error as error:
        # The error's own message quotes the line, which may contain the pass phrase.
        line = getattr(error, "lineno", None) or next((at for at, _ in getattr(error, "errors", ())), None)
        at = f":{line}" if line else ""
        raise UsageError(f"{display_path(file)}{at}: cannot be read: expected `key=value` lines") from error
    if name != parser.default_section and not parser.has_section(name):
        known = ", ".join([parser.default_section, *parser.sections()])
        raise UsageError(f"{display_path(file)}: no profile {name}, only {known}", remedy="set tenancy.profile")
    return dict(parser[name])


def _resolve_path(file: Path, text: str) -> Path:
    """Resolve a path of the configuration; relative paths start at the configuration's folder."""
    return file.parent / expand_user(os.path.expandvars(text))


def _read_file(path: Path, setting: str) -> bytes:
    with file_errors(f"{setting}: {display_path(path)}: cannot be read"):
        return read_regular(path, max_bytes=_MAX_BYTES)


def _read_session_token(path: Path, name: str, region: str, now: float) -> Secret:
    remedy = f"type: oci session authenticate --profile-name {name} --region {region}"
    check_private(path, "it is a session's token")
    text = _read_file(path, "security_token_file").decode("ascii", "replace").strip()
    try:
        payload = text.split(".")[1]
        expires = float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (LookupError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{display_path(path)}: not a session's token", remedy=remedy) from error
    if expires <= now:
        raise UsageError(f"{display_path(path)}: the session expired {_format_age(now - expires)} ago", remedy=remedy)
    return Secret(text)


def _format_age(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"


# --- keys and tokens --------------------------------------------------------------------------------------------------


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
    """Create kubectl's token for an OKE cluster; `host` is the region's, containerengine.REGION.oraclecloud.com.

    The token is the base64 of a request URL, with signature and date as parameters. The cluster sends that request, and
    the service identifies the signer. The service accepts the date for five minutes; until then the token grants the
    signer's access.
    """
    date = email.utils.format_datetime(now, usegmt=True)
    path = f"/cluster_request/{quote(cluster_id)}"
    signed = signing_key.sign(f"date: {date}\n(request-target): get {path}\nhost: {host}")
    parameters = {"version": "1", "keyId": signing_key.key_id, "algorithm": "rsa-sha256", "headers": _HEADERS}
    authorization = ",".join(f'{name}="{value}"' for name, value in {**parameters, "signature": signed}.items())
    url = f"https://{host}{path}?{urlencode({'authorization': f'Signature {authorization}', 'date': date})}"
    return Secret(base64.urlsafe_b64encode(url.encode()).decode())
