"""Profiles of the OCI CLI's configuration: values, and problems reported before the first request."""

import base64
import datetime
import json
import re
from pathlib import Path

import pytest

from remote.hosts.command import Secret
from tasks.errors import UsageError
from tasks.oci.credentials import OciProfile, check_ocid, cluster_token, load_signing_key, read_profile
from tests.support.machines.fake_tenancy import TENANCY, USER, ApiKey, ocid, token_error

NOW = 1_800_000_000.0


def profile(config: Path, name: str = "DEFAULT", region: str | None = None) -> OciProfile:
    return read_profile(config, name, region=region, now=NOW)


def changed(config: Path, old: str, new: str) -> Path:
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))
    return config


def test_a_profile_inherits_from_the_default_one(tmp_path: Path, keys: ApiKey) -> None:
    config = keys.write_config(tmp_path)
    config.write_text(config.read_text() + "[WORK]\nregion=us-phoenix-1\n")
    selected = profile(config, "WORK")
    assert (selected.region, selected.user, selected.tenancy) == ("us-phoenix-1", USER, TENANCY)


def test_a_region_of_the_settings_overrides_the_profile_s(tmp_path: Path, keys: ApiKey) -> None:
    assert profile(keys.write_config(tmp_path), region="uk-london-1").region == "uk-london-1"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (f"user={USER}", "", "[DEFAULT]: user: missing"),
        (f"user={USER}", f"user={TENANCY}", "that is the OCID of a tenancy"),
        (f"tenancy={TENANCY}", "tenancy=acme", "tenancy: expected an OCID like ocid1.tenancy.oc1..., found 'acme'"),
        ("region=eu-frankfurt-1", "", "region: missing"),
        ("region=eu-frankfurt-1", "region=../x", "expected a region like eu-frankfurt-1"),
        ("fingerprint=", "fingerprint=zz", "fingerprint: expected 16 pairs"),
        ("key.pem", "no.pem", "No such file or directory"),
        ("[DEFAULT]", "", "config:2: "),
        ("region=eu-frankfurt-1", "pass_phrase hush", "expected `key=value` lines"),
    ],
)
def test_a_missing_or_invalid_value_is_reported(
    tmp_path: Path, keys: ApiKey, old: str, new: str, expected: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)) as raised:
        profile(changed(keys.write_config(tmp_path), old, new))
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, keys: ApiKey, mode: int) -> None:
    home = tmp_path / "my home"
    home.mkdir()
    config = keys.write_config(home)
    (home / ".oci" / "key.pem").chmod(mode)
    with pytest.raises(UsageError, match=r"private key; type: chmod 600 '/.*key\.pem'$"):
        profile(config)


def test_a_configuration_that_others_can_read_is_refused_if_it_contains_a_pass_phrase(
    tmp_path: Path, keys: ApiKey
) -> None:
    config = keys.write_config(tmp_path, phrase="hush")
    config.chmod(0o644)
    with pytest.raises(UsageError, match=r"pass phrase; type: chmod 600 .*config"):
        profile(config)
    keys.write_config(tmp_path).chmod(0o644)
    assert profile(config).pass_phrase is None


def test_an_expired_session_is_reported_with_the_command_that_renews_it(tmp_path: Path, keys: ApiKey) -> None:
    payload = base64.urlsafe_b64encode(json.dumps({"exp": NOW - 7200}).encode()).decode().rstrip("=")
    token = tmp_path / "token"
    token.write_text(f"e30.{payload}.sig")
    token.chmod(0o600)
    config = keys.write_config(tmp_path, profile="SESSION", security_token_file=str(token))
    with pytest.raises(UsageError) as raised:
        profile(config, "SESSION")
    expected = "type: oci session authenticate --profile-name SESSION --region eu-frankfurt-1"
    assert "2.0 hours" in str(raised.value)
    assert f"; {expected}" in str(raised.value)
    token.write_text("no token")
    with pytest.raises(UsageError, match=r"token.*; type: oci session authenticate"):
        profile(config, "SESSION")


@pytest.mark.parametrize(("typed", "expected"), [("mistyped", "key_file: "), ("", "; put pass_phrase=...")])
def test_a_wrong_pass_phrase_is_not_shown(tmp_path: Path, keys: ApiKey, typed: str, expected: str) -> None:
    config = changed(keys.write_config(tmp_path, phrase="right"), "pass_phrase=right", f"pass_phrase={typed}")
    with pytest.raises(UsageError, match=re.escape(expected)) as raised:
        load_signing_key(profile(config), lambda _: None)
    assert "mistyped" not in str(raised.value)


def test_a_pass_phrase_may_be_typed(tmp_path: Path, keys: ApiKey) -> None:
    config = changed(keys.write_config(tmp_path, phrase="typed"), "pass_phrase=typed\n", "")
    assert load_signing_key(profile(config), lambda _: Secret("typed")).key_id == keys.key_id


def test_a_key_with_another_fingerprint_is_reported(tmp_path: Path, keys: ApiKey) -> None:
    config = changed(keys.write_config(tmp_path), keys.fingerprint, ":".join(["ab"] * 16))
    with pytest.raises(UsageError, match=re.escape(keys.fingerprint)):
        load_signing_key(profile(config), lambda _: None)


def test_an_invalid_key_file_is_reported(tmp_path: Path, keys: ApiKey) -> None:
    config = keys.write_config(tmp_path)
    (tmp_path / ".oci" / "key.pem").write_text(keys.public_pem)
    with pytest.raises(UsageError, match=r"key_file: .*key\.pem.*PEM"):
        load_signing_key(profile(config), lambda _: None)


def test_a_key_with_the_label_that_the_console_appends_is_read(tmp_path: Path, keys: ApiKey) -> None:
    config = keys.write_config(tmp_path)
    (tmp_path / ".oci" / "key.pem").write_bytes(keys.pem() + b"OCI_API_KEY\n")
    assert load_signing_key(profile(config), lambda _: None).key_id == keys.key_id


def test_a_cluster_s_token_is_a_signed_url_that_the_service_accepts(tmp_path: Path, keys: ApiKey) -> None:
    signature = load_signing_key(profile(keys.write_config(tmp_path)), lambda _: None)
    host = "containerengine.eu-frankfurt-1.oraclecloud.com"
    now = datetime.datetime.now(datetime.UTC)
    token = cluster_token(host, ocid("cluster", "one"), signature, now)
    assert token_error(keys.public_pem, keys.key_id, token.reveal()) is None
    assert str(token) == repr(token) == "***"
    old = cluster_token(host, ocid("cluster", "one"), signature, now - datetime.timedelta(minutes=6))
    assert token_error(keys.public_pem, keys.key_id, old.reveal()) == "expired"
    assert token_error(ApiKey().public_pem, keys.key_id, token.reveal()) == "the signature does not verify"


@pytest.mark.parametrize("text", ["cluster", "ocid1.nodepool.oc1.x.y", "ocid1.cluster.oc1.fra.x\n", ""])
def test_an_ocid_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"expected an OCID like ocid1\.cluster\.oc1"):
        check_ocid("cluster", text, "cluster")
