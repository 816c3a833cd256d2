"""Names of registries and users, as OCIR takes them."""

from __future__ import annotations

import pytest

from remote.image.registry import NameWrong, check_user, reference

GOOD = {
    "fra.ocir.io/axabc/team/qlora-fleet:1.0": ("fra.ocir.io", "axabc/team/qlora-fleet", "1.0", "axabc"),
    "fra.ocir.io/axabc/qlora-fleet": ("fra.ocir.io", "axabc/qlora-fleet", "current", "axabc"),
    "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q:v": (
        *("ocir.eu-frankfurt-1.oci.oraclecloud.com", "axabc/q"),
        *("v", "axabc"),
    ),
    "registry.example.com:5000/q:v": ("registry.example.com:5000", "q", "v", None),
    "localhost/q": ("localhost", "q", "current", None),
}
BAD = {
    "": "expected HOST/REPOSITORY:TAG",
    "qlora-fleet:1": "expected HOST/REPOSITORY:TAG",
    "team/qlora-fleet": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/repo": "needs the tenancy's namespace",
    "frankfurt.ocir.io/ns/repo": "no region key",
    "FR1.ocir.io/ns/repo": "no region key",
    "ocir.frankfurt.oci.oraclecloud.com/ns/repo": "no region",
    "fra.ocir.io/ns/Repo": "lower case",
    "fra.ocir.io/ns//repo": "lower case",
    "fra.ocir.io/ns/repo:-x": "tag",
    "fra.ocir.io/ns/repo:" + "x" * 129: "tag",
    "fra.ocir.io/ns/repo@sha256:" + "0" * 64: "a digest is what a push answers with",
    "-x.ocir.io/ns/repo": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/ns/re po": "lower case",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_name_is_taken_apart(text: str) -> None:
    found = reference(text, "current")
    assert (found.host, found.path, found.tag, found.namespace) == GOOD[text]
    assert str(found) == (text if ":" in text.partition("/")[2] else f"{text}:current")


@pytest.mark.parametrize("text", BAD)
def test_a_name_that_cannot_be_says_which_part(text: str) -> None:
    with pytest.raises(NameWrong, match=BAD[text]):
        reference(text, "current")


OCIR = reference("fra.ocir.io/axabc/q:1", "current")
USERS = ("axabc/me@example.com", "axabc/oracleidentitycloudservice/me@example.com", "axabc/Default/me@example.com")


@pytest.mark.parametrize("user", USERS)
def test_the_three_forms_of_a_user_name_are_taken(user: str) -> None:
    check_user(user, OCIR)


@pytest.mark.parametrize("user", ["", "me@example.com", "other/me", "axabc/", "axabc/a/b/c", "axabc/m e", "axabc//me"])
def test_another_form_is_refused_before_the_registry_answers_401(user: str) -> None:
    with pytest.raises(NameWrong):
        check_user(user, OCIR)


def test_another_registrys_users_are_its_own_business() -> None:
    check_user("anybody", reference("registry.example.com/q", "current"))
