"""Names of registries and users, as OCIR takes them."""

import pytest

from remote.image.references import InvalidReference, check_user, reference

GOOD = {
    "fra.ocir.io/axabc/team/qlora-fleet:1.0": ("fra.ocir.io", "axabc/team/qlora-fleet", "1.0"),
    "fra.ocir.io/axabc/qlora-fleet": ("fra.ocir.io", "axabc/qlora-fleet", "current"),
    "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q:v": ("ocir.eu-frankfurt-1.oci.oraclecloud.com", "axabc/q", "v"),
    "registry.example.com:5000/q:v": ("registry.example.com:5000", "q", "v"),
    "localhost/q": ("localhost", "q", "current"),
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
    "fra.ocir.io/ns/repo@sha256:" + "0" * 64: "a push returns the digest",
    "-x.ocir.io/ns/repo": "expected HOST/REPOSITORY:TAG",
    "fra.ocir.io/ns/re po": "lower case",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_name_is_taken_apart(text: str) -> None:
    found = reference(text, "current")
    assert (found.host, found.path, found.tag) == GOOD[text]
    assert str(found) == (text if ":" in text.partition("/")[2] else f"{text}:current")


@pytest.mark.parametrize("text", BAD)
def test_a_name_that_cannot_be_says_which_part(text: str) -> None:
    with pytest.raises(InvalidReference, match=BAD[text]):
        reference(text, "current")


OCIR = "fra.ocir.io/axabc/q"
USERS = ("axabc/me@example.com", "axabc/oracleidentitycloudservice/me@example.com", "axabc/Default/me@example.com")
FOREIGN, FORM = "does not begin with the tenancy's namespace, axabc/", "is none of NAMESPACE/USER"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("repository", [OCIR, "ocir.eu-frankfurt-1.oci.oraclecloud.com/axabc/q"])
def test_the_three_forms_of_a_user_name_are_taken(repository: str, user: str) -> None:
    check_user(user, repository)


@pytest.mark.parametrize(
    ("user", "words"),
    [
        *((user, "is not a user name") for user in ("", "axabc/m e")),
        *((user, FOREIGN) for user in ("me@example.com", "other/me")),
        *((user, FORM) for user in ("axabc", "axabc/", "axabc/a/b/c", "axabc//me")),
    ],
)
def test_another_form_is_refused_before_the_registry_answers_401(user: str, words: str) -> None:
    with pytest.raises(InvalidReference, match=words):
        check_user(user, OCIR)


def test_another_registrys_users_are_its_own_business() -> None:
    check_user("anybody", "registry.example.com/a/q")
