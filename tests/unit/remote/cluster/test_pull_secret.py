"""Tests of the format of the Secrets."""

import base64
import json

import kubernetes_validate

from remote.cluster.pull_secret import key_secret, pull_secret
from remote.hosts.command import Secret

NASTY = "p 'a\"$s`s\\w"


def test_the_secret_is_what_a_kubelet_reads() -> None:
    made, _ = pull_secret(name="s", namespace="n", registry="fra.ocir.io", user="ns/me", password=Secret(NASTY))
    kubernetes_validate.validate(made, "1.34", strict=True)
    login = json.loads(base64.b64decode(made["data"][".dockerconfigjson"]))["auths"]["fra.ocir.io"]
    assert (login["username"], login["password"]) == ("ns/me", NASTY)
    assert base64.b64decode(login["auth"]).decode() == f"ns/me:{NASTY}"


def test_every_form_of_the_password_is_returned_for_masking() -> None:
    made, hidden = pull_secret(name="s", namespace="n", registry="h", user="u", password=Secret(NASTY))
    forms = {secret.reveal() for secret in hidden}
    assert forms == {NASTY, base64.b64encode(f"u:{NASTY}".encode()).decode(), made["data"][".dockerconfigjson"]}
    assert NASTY not in repr(hidden)


def test_a_servers_key_is_one_field_and_returned_for_masking() -> None:
    made, hidden = key_secret(name="serve-key", namespace="n", key=Secret(NASTY))
    kubernetes_validate.validate(made, "1.34", strict=True)
    assert base64.b64decode(made["data"]["key"]).decode() == NASTY
    assert {secret.reveal() for secret in hidden} == {NASTY, made["data"]["key"]}
