"""A profile of the OCI CLI's configuration file, checked before anything is asked.

    [DEFAULT]
    user=ocid1.user.oc1..x            tenancy=ocid1.tenancy.oc1..x       region=eu-frankfurt-1
    fingerprint=12:34:...             key_file=~/.oci/key.pem            pass_phrase=...       (where the key has one)
    security_token_file=...           (after `oci session authenticate`: instead of a user's own key)

Every profile inherits what stands under [DEFAULT], as for the CLI. Not covered: resource principals, delegation tokens.
"""

import base64
import configparser
import json
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from bench.records.atomic_files import read_regular
from remote.hosts.command import Secret
from remote.hosts.local import expanded
from tasks.errors import UsageError, file_errors
from tasks.settings.sources import shown

_MOST_BYTES = 1 << 20
_OCID = re.compile(r"ocid1\.([a-z0-9]+)\.[a-z0-9-]+\.[a-z0-9-]*\.[A-Za-z0-9._-]+")
_FINGERPRINT = re.compile(r"([0-9a-f]{2}:){15}[0-9a-f]{2}")
_REGION = re.compile(r"[a-z]{2,5}(-[a-z]+)+-[0-9]{1,2}|[a-z]{3}")


@dataclass(frozen=True, kw_only=True)
class OciProfile:
    """Whose credentials: a user's API key, or a session's token with the key that it was made for."""

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
        return f"profile {self.name} of {shown(self.file)}"


def ocid_kind(text: str) -> str | None:
    """`cluster` for ocid1.cluster.oc1.region.x; None for what is no OCID."""
    match = _OCID.fullmatch(text)
    return match[1] if match else None


def check_ocid(what: str, text: str, kind: str) -> None:
    """Raises UsageError where `text` is not the OCID of a `kind`."""
    found = ocid_kind(text)
    if found != kind:
        is_one = f"that is the OCID of a {found}" if found else "that is no OCID"
        raise UsageError(f"{what}: expected an OCID like ocid1.{kind}.oc1..., found {text[:80]!r}: {is_one}")


def check_region(what: str, text: str) -> None:
    """Raises UsageError for what cannot be a region. Whether there is such a region, the SDK knows."""
    if not _REGION.fullmatch(text):
        raise UsageError(f"{what}: expected a region like eu-frankfurt-1, found {text[:80]!r}")


def read_profile(file: Path, name: str, *, region: str | None, now: float) -> OciProfile:
    """The profile, with its key and token read. `region` counts before the profile's; `now` is in seconds since 1970.

    Raises UsageError: what is missing or wrong, a file that others can read, a session that has expired.
    """
    values = _section(file, name)
    where = f"{shown(file)}: [{name}]"

    def given(key: str) -> str:
        value = values.get(key, "").strip()
        if not value:
            raise UsageError(f"{where}: {key}: missing; `oci setup config` writes it; or set tenancy.profile")
        return value

    tenancy = given("tenancy")
    check_ocid(f"{where}: tenancy", tenancy, "tenancy")
    chosen = region or given("region")
    check_region("tenancy.region" if region else f"{where}: region", chosen)
    key_file = _path(file, given("key_file"))
    whose: dict[str, str] = {}
    token = None
    if values.get("security_token_file", "").strip():
        token = _session_token(_path(file, values["security_token_file"].strip()), name, chosen, now)
    else:
        whose = {"user": given("user"), "fingerprint": given("fingerprint").lower()}
        check_ocid(f"{where}: user", whose["user"], "user")
        if not _FINGERPRINT.fullmatch(whose["fingerprint"]):
            raise UsageError(f"{where}: fingerprint: expected 16 pairs of hexadecimal digits with ':' between them")
    phrase = values.get("pass_phrase", "")
    if phrase:
        refuse_open(file, "it holds a pass phrase")
    refuse_open(key_file, "it is a private key")
    return OciProfile(
        file=file,
        name=name,
        tenancy=tenancy,
        region=chosen,
        key=_content(key_file, f"{where}: key_file"),
        key_file=key_file,
        pass_phrase=Secret(phrase) if phrase else None,
        token=token,
        **whose,
    )


def refuse_open(path: Path, why: str) -> None:
    """Raises UsageError where others can read the file, or write it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # whoever reads it says so
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UsageError(f"{shown(path)}: others may read it, and {why}; type: chmod 600 {shown(path)}")


def _section(file: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        text = read_regular(file, most_bytes=_MOST_BYTES).decode("utf-8")
        parser.read_string(text)
    except FileNotFoundError:
        raise UsageError(
            f"{shown(file)}: not there; `oci setup config` or `oci session authenticate` writes it; "
            "tenancy.config_file names another; tenancy.auth: instance_principal needs none"
        ) from None
    except OSError as error:
        raise UsageError(f"{shown(file)}: cannot be read: {error.strerror}; set tenancy.config_file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown(file)}: expected UTF-8 text") from None
    except configparser.Error as error:
        # Its own message shows the line, and the line may be the one with the pass phrase.
        line = getattr(error, "lineno", None) or next((at for at, _ in getattr(error, "errors", ())), None)
        at = f":{line}" if line else ""
        raise UsageError(f"{shown(file)}{at}: cannot be read: expected `key=value` lines") from None
    if name != parser.default_section and not parser.has_section(name):
        known = ", ".join([parser.default_section, *parser.sections()])
        raise UsageError(f"{shown(file)}: no profile {name}; there are {known}; set tenancy.profile")
    return dict(parser[name])


def _path(file: Path, text: str) -> Path:
    """Relative ones: to the folder of the configuration."""
    return file.parent / expanded(os.path.expandvars(text))


def _content(path: Path, what: str) -> bytes:
    with file_errors(f"{what}: {shown(path)}: cannot be read"):
        return read_regular(path, most_bytes=_MOST_BYTES)


def _session_token(path: Path, name: str, region: str, now: float) -> Secret:
    again = f"type: oci session authenticate --profile-name {name} --region {region}"
    refuse_open(path, "it is a session's token")
    text = _content(path, "security_token_file").decode("ascii", "replace").strip()
    try:
        payload = text.split(".")[1]
        expires = float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (LookupError, ValueError, TypeError, OverflowError, RecursionError):
        raise UsageError(f"{shown(path)}: not a session's token; {again}") from None
    if expires <= now:
        raise UsageError(f"{shown(path)}: the session expired {_ago(now - expires)} ago; {again}")
    return Secret(text)


def _ago(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{max(1, round(seconds / 60))} min"
