"""Tests of YAML for kubectl: texts that look like numbers."""

import base64
import json

import kubernetes_validate
import pytest
import yaml

from remote.cluster.manifests import pull_secret, to_yaml
from remote.hosts.command import Secret


# tests/system/cluster has such texts as annotations and real kubectl.
@pytest.mark.parametrize("text", ["12e34567", "1234567890123456", "0x1f", "1_000", "no", "null", "~", "", "a: b"])
def test_a_text_is_quoted_whatever_it_looks_like(text: str) -> None:
    written = to_yaml([{"digest": text, "replicas": 4, "none": None, "yes": True}])
    assert '"digest": "' in written
    assert yaml.safe_load(written) == {"digest": text, "replicas": 4, "none": None, "yes": True}


NASTY = "p 'a\"$s`s\\w"


def test_the_secret_is_what_a_kubelet_reads_and_every_form_of_the_password_is_returned_for_masking() -> None:
    made, hidden = pull_secret(name="s", namespace="n", registry="fra.ocir.io", user="ns/me", password=Secret(NASTY))
    kubernetes_validate.validate(made, "1.34", strict=True)
    login = json.loads(base64.b64decode(made["data"][".dockerconfigjson"]))["auths"]["fra.ocir.io"]
    assert (login["username"], login["password"]) == ("ns/me", NASTY)
    assert base64.b64decode(login["auth"]).decode() == f"ns/me:{NASTY}"
    assert {secret.reveal() for secret in hidden} == {NASTY, login["auth"], made["data"][".dockerconfigjson"]}
    assert NASTY not in repr(hidden)
