"""Credentials of Oracle Cloud, read by its SDK: a profile of the OCI CLI's configuration.

Ours are the checks that the SDK does not make: no secret in a file that others can read, none in a message or on the
terminal, a region that exists, a session that has not expired. Not covered: principals, delegation tokens.
"""

import base64
import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import requests
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt import PyJWTError
from oci import config as sdk_config
from oci import regions
from oci.auth.security_token_container import SecurityTokenContainer
from oci.auth.signers import SecurityTokenSigner
from oci.exceptions import (
    ConfigFileNotFound,
    InvalidConfig,
    InvalidKeyFilePath,
    InvalidPrivateKey,
    MissingPrivateKeyPassphrase,
    ProfileNotFound,
)
from oci.signer import AbstractBaseSigner, Signer, load_private_key_from_file

from remote.hosts.command import Secret
from tasks.clients.prompt import check_private, prompt_hidden
from tasks.errors import UsageError, file_errors
from tasks.settings.sources import display_path


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The SDK's configuration and signer. `name` describes them in messages."""

    name: str
    tenancy: str
    region: str
    signer: Any = field(repr=False)
    config: Mapping[str, Any] = field(repr=False)


def read_profile(file: Path, profile: str, region: str | None, *, may_prompt: bool = True) -> Credentials:
    """Read a profile with its key and its session's token; `region` replaces the profile's.

    A pass phrase that is missing there is asked for on a terminal. Raises UsageError.
    """
    config = _read_config(file, profile)
    name = f"profile {profile} of {display_path(file)}"
    if region:
        config["region"] = region
    try:
        signer = _create_signer(config, name, profile, may_prompt=may_prompt)
        tenancy, own_region = config["tenancy"], config["region"]
    except (InvalidConfig, KeyError) as error:
        problems = {error.args[0]: "missing"} if isinstance(error, KeyError) else error.errors
        text = ", ".join(f"{key} is {problem}" for key, problem in sorted(problems.items()))
        raise UsageError(f"{name}: {text}", remedy="`oci setup config` writes it") from error
    config["region"] = existing_region("tenancy.region" if region else f"{name}: region", own_region)
    return Credentials(name=name, tenancy=tenancy, region=config["region"], signer=signer, config=config)


def _read_config(file: Path, profile: str) -> dict[str, Any]:
    try:
        config: dict[str, Any] = sdk_config.from_file(str(file), profile)
    except ConfigFileNotFound as error:
        raise UsageError(
            f"{display_path(file)}: does not exist, or cannot be read",
            remedy="create it with `oci setup config` or `oci session authenticate`, or set tenancy.config_file",
        ) from error
    except ProfileNotFound as error:
        raise UsageError(f"{display_path(file)}: no profile {profile}", remedy="set tenancy.profile") from error
    except InvalidKeyFilePath as error:
        raise UsageError(f"profile {profile} of {display_path(file)}: key_file: no such file") from error
    except (configparser.Error, ValueError) as error:
        # Without the error's message: it quotes the line, which may contain the pass phrase.
        cause = ValueError(type(error).__name__)
        raise UsageError(f"{display_path(file)}: cannot be read: expected `key=value` lines in UTF-8") from cause
    if phrase := config.pop("pass_phrase"):
        check_private(file, f"{display_path(file)}, which contains a pass phrase")
        config["pass_phrase"] = phrase.encode()  # the SDK's error for a text that is not ASCII would contain it
    if config.get("security_token_file"):
        config.pop("user", None)  # inherited from [DEFAULT]: it need not be the session's
    return config | {"log_requests": False}  # it prints signatures


def _create_signer(config: dict[str, Any], name: str, profile: str, *, may_prompt: bool) -> AbstractBaseSigner:
    """Create the signer of a key, or of a session's token and key. Raises UsageError, InvalidConfig or KeyError."""
    key_file = Path(config["key_file"]).expanduser()
    key_name = display_path(key_file)
    check_private(key_file, f"private key {key_name}")
    try:
        with file_errors(f"{name}: key_file"):
            if config.get("security_token_file"):
                token = _read_session_token(Path(config["security_token_file"]).expanduser(), profile, config["region"])
                signer = SecurityTokenSigner(
                    token, load_private_key_from_file(config["key_file"], config.get("pass_phrase"))
                )
            else:
                signer = Signer.from_config(config)
    except MissingPrivateKeyPassphrase as error:
        phrase = prompt_hidden(f"pass phrase of {key_name}: ") if may_prompt else ""
        if not phrase:
            raise UsageError(
                f"{key_name}: the key has a pass phrase", remedy=f"put pass_phrase=... into {name}, chmod 600"
            ) from error
        return _create_signer(config | {"pass_phrase": phrase.encode()}, name, profile, may_prompt=False)
    except InvalidPrivateKey as error:
        raise UsageError(f"{name}: key_file: {key_name}: no private key in PEM, or a wrong pass phrase") from error
    if not isinstance(signer.private_key, RSAPrivateKey):
        raise UsageError(f"{name}: key_file: {key_name}: expected an RSA key")
    return signer


def _read_session_token(path: Path, profile: str, region: str) -> str:
    remedy = f"type: oci session authenticate --profile-name {profile} --region {region}"
    check_private(path, f"a session's token, {display_path(path)}")
    with file_errors(f"{display_path(path)}: cannot be read"):
        token = path.read_text(encoding="utf-8").strip()
    try:
        is_valid = SecurityTokenContainer(None, token).valid()
    except (PyJWTError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{display_path(path)}: not a session's token", remedy=remedy) from error
    if not is_valid:
        raise UsageError(f"{display_path(path)}: the session has expired", remedy=remedy)
    return token


def cluster_token(credentials: Credentials, host: str, cluster_id: str) -> Secret:
    """Create kubectl's token for an OKE cluster; `host` is the region's, containerengine.REGION.oraclecloud.com.

    The token is the base64 of a request's URL, with signature and date as parameters. The cluster sends that request,
    and the service identifies the signer. The service accepts the date for five minutes; until then the token grants
    the signer's access.
    """
    url = f"https://{host}/cluster_request/{cluster_id}"
    request = requests.Request("GET", url, auth=credentials.signer).prepare()
    request.prepare_url(url, {name: request.headers[name] for name in ("authorization", "date")})
    return Secret(base64.urlsafe_b64encode(str(request.url).encode()).decode())


def existing_region(setting: str, region: str) -> str:
    """Return the full name of a region that the SDK knows: requests go to no other host. Raises UsageError."""
    if regions.is_region(region) or regions.is_region_short_name(region):
        return str(regions.get_region_from_short_name(region))
    suggestions = get_close_matches(region, regions.REGIONS, 1, 0.6)
    remedy = f"did you mean {suggestions[0]}?" if suggestions else "a newer SDK may know it: pip install --upgrade oci"
    raise UsageError(f"{setting}: {region[:80]!r}: no such region", remedy=remedy)
