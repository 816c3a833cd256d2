"""The pull secret's form, and user names that cannot be right."""

from __future__ import annotations

import base64
import json

import kubernetes_validate
import pytest

from remote.cluster.pullsecret import pull_secret, user_problem
from remote.hosts.command import Secret

NASTY = "p 'a\"$s`s\\w"


def test_the_secret_is_what_a_kubelet_reads() -> None:
    made, _ = pull_secret(name="s", namespace="n", registry="fra.ocir.io", user="ns/me", password=Secret(NASTY))
    kubernetes_validate.validate(made, "1.34", strict=True)
    login = json.loads(base64.b64decode(made["data"][".dockerconfigjson"]))["auths"]["fra.ocir.io"]
    assert (login["username"], login["password"]) == ("ns/me", NASTY)
    assert base64.b64decode(login["auth"]).decode() == f"ns/me:{NASTY}"


def test_every_form_of_the_password_is_told_to_be_hidden() -> None:
    made, hidden = pull_secret(name="s", namespace="n", registry="h", user="u", password=Secret(NASTY))
    forms = {secret.reveal() for secret in hidden}
    assert forms == {NASTY, base64.b64encode(f"u:{NASTY}".encode()).decode(), made["data"][".dockerconfigjson"]}
    assert NASTY not in repr(hidden)


@pytest.mark.parametrize("user", ["ns/me", "ns/oracleidentitycloudservice/me@example.com", "ns/Default/me"])
@pytest.mark.parametrize("registry", ["fra.ocir.io", "ocir.eu-frankfurt-1.oci.oraclecloud.com"])
def test_the_three_forms_of_a_user_name_are_taken(registry: str, user: str) -> None:
    assert user_problem(registry, f"{registry}/ns/repo", user) is None


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ("me", "does not begin with the tenancy's namespace, ns/"),
        ("other/me", "does not begin with the tenancy's namespace, ns/"),
        ("ns", "is none of"),
        ("ns/", "is none of"),
        ("ns/a/b/c", "is none of"),
    ],
)
def test_a_user_name_that_cannot_be_right_is_told_before_anything_is_sent(user: str, words: str) -> None:
    assert words in (user_problem("fra.ocir.io", "fra.ocir.io/ns/repo", user) or "")


def test_other_registries_have_their_own_names() -> None:
    assert user_problem("registry.example.com", "registry.example.com/a/b", "anything") is None
