"""Profiles of the OCI CLI's configuration: problems reported before the first request, and no secret in a message."""

import base64
import json
import re
import time
from pathlib import Path

import pytest

pytest.importorskip("oci", reason="Oracle's SDK is not installed: `make sdk` installs it")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tasks.errors import UsageError
from tasks.oci import credentials
from tasks.oci.credentials import Credentials, cluster_token, read_profile
from tests.support.machines.fake_tenancy import TENANCY, USER, ApiKey, ocid, token_error


def profile(config: Path, name: str = "DEFAULT", region: str | None = None) -> Credentials:
    return read_profile(config, name, region)


def changed(config: Path, old: str, new: str) -> Path:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return config


def test_a_region_of_the_settings_overrides_the_profile_s(tmp_path: Path, keys: ApiKey) -> None:
    assert profile(keys.write_config(tmp_path), region="uk-london-1").region == "uk-london-1"
    assert profile(keys.write_config(tmp_path), region="lhr").region == "uk-london-1"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (f"user={USER}", "", "config: user is missing; "),
        (f"user={USER}", "user=me", "config: user is malformed; "),
        ("region=eu-frankfurt-1", "", "config: region is missing; "),
        ("region=eu-frankfurt-1", "region=../x", "config: region: '../x': no such region"),
        ("key_file=", "key=", "config: key_file is missing; "),
        ("key.pem", "no.pem", "config: key_file: no such file"),
        ("[DEFAULT]", "", "expected `key=value` lines"),
        ("region=eu-frankfurt-1", "pass_phrase hush", "expected `key=value` lines"),
        ("region=eu-frankfurt-1", "log_requests=hush", "expected `key=value` lines"),
    ],
)
def test_a_missing_or_invalid_value_is_reported(
    tmp_path: Path, keys: ApiKey, old: str, new: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)) as raised:
        profile(changed(keys.write_config(tmp_path), old, new))
    chain = f"{raised.value} {raised.value.__cause__} {raised.value.__suppress_context__ or raised.value.__context__}"
    assert "hush" not in chain


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, keys: ApiKey) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    config = keys.write_config(home)
    (home / ".oci" / "key.pem").chmod(0o640)
    with pytest.raises(UsageError, match=r"private key .*; type: chmod 600 '/.*key\.pem'$"):
        profile(config)


def test_a_configuration_that_others_can_read_is_refused_if_it_contains_a_pass_phrase(
    tmp_path: Path, keys: ApiKey
) -> None:
    config = keys.write_config(tmp_path, phrase="hush")
    config.chmod(0o644)
    with pytest.raises(UsageError, match=r"pass phrase: .*; type: chmod 600 .*config"):
        profile(config)
    keys.write_config(tmp_path).chmod(0o644)
    assert profile(config).tenancy == TENANCY


def test_an_expired_session_is_reported_with_the_command_that_renews_it(tmp_path: Path, keys: ApiKey) -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": time.time() - 7200}).encode()).decode().rstrip("=")
    token = tmp_path / "token"
    token.write_text(f"e30.{payload}.c2ln")
    token.chmod(0o600)
    config = keys.write_config(tmp_path, profile="SESSION", security_token_file=str(token))
    command = "type: oci session authenticate --profile-name SESSION --region eu-frankfurt-1"
    with pytest.raises(UsageError, match=f"the session has expired; {command}"):
        profile(config, "SESSION")
    for odd in ("no token", "e30.e30.c2ln"):
        token.write_text(odd)
        with pytest.raises(UsageError, match=f"not a session's token; {command}"):
            profile(config, "SESSION")
    token.chmod(0o644)
    with pytest.raises(UsageError, match=r"session's token, .*; type: chmod 600"):
        profile(config, "SESSION")


@pytest.mark.parametrize(
    ("typed", "expected"), [("mistyped", "key_file: "), ("mistypéd", "key_file: "), ("", "; put pass_phrase=...")]
)
def test_a_wrong_pass_phrase_is_not_shown(tmp_path: Path, keys: ApiKey, typed: str, expected: str) -> None:
    config = changed(keys.write_config(tmp_path, phrase="right"), "pass_phrase=right", f"pass_phrase={typed}")
    with pytest.raises(UsageError, match=re.escape(expected)) as raised:
        read_profile(config, "DEFAULT", None, may_prompt=False)
    assert "mistyp" not in f"{raised.value} {raised.value.__cause__} {raised.value.__context__}"


def test_a_pass_phrase_may_be_typed(tmp_path: Path, keys: ApiKey, monkeypatch: pytest.MonkeyPatch) -> None:
    config = changed(keys.write_config(tmp_path, phrase="typéd"), "pass_phrase=typéd\n", "")
    monkeypatch.setattr(credentials, "prompt_hidden", lambda _: "typéd")
    assert profile(config).signer.api_key == keys.key_id
    with pytest.raises(UsageError, match=r"the key has a pass phrase; "):
        read_profile(config, "DEFAULT", None, may_prompt=False)


def test_an_invalid_key_file_is_reported(tmp_path: Path, keys: ApiKey) -> None:
    config = keys.write_config(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    for content, expected in ((keys.public_pem.encode(), "PEM"), (key, "expected an RSA key")):
        (tmp_path / ".oci" / "key.pem").write_bytes(content)
        with pytest.raises(UsageError, match=rf"key_file: .*key\.pem.*{expected}"):
            profile(config)


def test_a_cluster_s_token_is_a_signed_url_that_the_service_accepts(tmp_path: Path, keys: ApiKey) -> None:
    host = "containerengine.eu-frankfurt-1.oraclecloud.com"
    token = cluster_token(profile(keys.write_config(tmp_path)), host, ocid("cluster", "one"))
    assert token_error(keys.public_pem, keys.key_id, token.reveal()) is None
    assert str(token) == repr(token) == "***"
    assert token_error(ApiKey().public_pem, keys.key_id, token.reveal()) == "the signature does not verify"
